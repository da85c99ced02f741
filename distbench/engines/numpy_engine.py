"""numpy: np.matmul with out=, on the CPU. The arrays are views of the same memory that torch would use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from distbench.config import DType

if TYPE_CHECKING:
    import torch


def prepare(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Callable[[], object]:
    operands = (a, b, c) if c.shape[0] > 1 else (a[0], b[0], c[0])
    a_view, b_view, c_view = (tensor.numpy() for tensor in operands)
    return partial(np.matmul, a_view, b_view, out=c_view)


def settings(dtype: DType = DType.float32) -> dict[str, Any]:
    return {}


def to_host(c: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.from_numpy(c.numpy().copy())
