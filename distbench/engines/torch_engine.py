"""torch: torch.mm and torch.bmm with out=, on the CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def prepare(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], object]:
    import torch

    assert c.shape == (a.shape[0], a.shape[1], b.shape[2])  # a wrong out= would be resized silently
    if c.shape[0] == 1:
        return partial(torch.mm, a[0], b[0], out=c[0])
    return partial(torch.bmm, a, b, out=c)


def settings() -> dict[str, Any]:
    import torch

    torch.set_float32_matmul_precision("highest")
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = False
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_bf16_reduced_precision_reduction = False
    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "allow_tf32": matmul.allow_tf32,
        "allow_fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "allow_bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
    }
