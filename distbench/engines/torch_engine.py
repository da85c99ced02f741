"""torch: the library's product with out=, on the CPU or a GPU: mm and bmm, _int_mm for int8, _scaled_mm for float8."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from distbench.config import DType
from distbench.dtypes import FACTS

if TYPE_CHECKING:
    import torch

Call = Callable[[], object]
_PANEL = 1 << 24  # elements of C that are computed apart where C is not contiguous: 64 MB


def prepare(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Call:
    import torch

    assert c.shape == (a.shape[0], a.shape[1], b.shape[2])  # a wrong out= would be resized silently
    if a.dtype == torch.int8:
        return _one_after_the_other([_int_product(*entry) for entry in zip(a, b, c, strict=True)])
    if c.shape[0] == 1:
        return partial(torch.mm, a[0], b[0], out=c[0])
    return partial(torch.bmm, a, b, out=c)


def prepare_scaled(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> Call:
    """`prepare` for float8: c = (scale_a · a) · (b · scale_b) in bfloat16. A batch is a loop: the library has no other."""
    import torch

    assert c.shape == (a.shape[0], a.shape[1], b.shape[2])
    how: dict[str, Any] = {"scale_a": scale_a, "scale_b": scale_b, "out_dtype": c.dtype, "use_fast_accum": False}
    entries = zip(a, b, c, strict=True)
    return _one_after_the_other([partial(torch._scaled_mm, a2, b2, out=c2, **how) for a2, b2, c2 in entries])


def settings(dtype: DType = DType.float32) -> dict[str, Any]:
    import torch

    is_tf32 = dtype is DType.tf32
    torch.set_float32_matmul_precision("high" if is_tf32 else "highest")
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = is_tf32
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_bf16_reduced_precision_reduction = False
    told = {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "allow_tf32": matmul.allow_tf32,
        "allow_fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "allow_bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
    }
    return told | ({"use_fast_accum": False} if dtype in FACTS and FACTS[dtype].is_scaled else {})


def to_host(c: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty(c.shape, dtype=c.dtype).copy_(c)  # `.cpu()`, which returns a tensor of the CPU itself


def _one_after_the_other(calls: list[Call]) -> Call:
    if len(calls) == 1:
        return calls[0]

    def run() -> None:
        for call in calls:
            call()

    return run


def _plainly_strided(operand: torch.Tensor) -> torch.Tensor:
    """The same elements: torch's CPU code writes nothing where a row or column has the strides (1, 1) of a transposed one."""
    rows, columns = operand.shape
    return operand.as_strided(operand.shape, (columns, 1)) if rows == 1 and operand.stride(1) == 1 else operand


def _int_product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Call:
    """_int_mm writes contiguous memory only: into a slice of columns of a shared C it goes by way of row panels."""
    import torch

    a, b = (_plainly_strided(operand) for operand in (a, b))
    if c.is_contiguous():
        return partial(torch._int_mm, a, b, out=c)
    rows = min(c.shape[0], max(1, _PANEL // c.shape[1]))
    panel = torch.empty(rows, c.shape[1], dtype=c.dtype, device=c.device)

    def run() -> None:
        for top in range(0, c.shape[0], rows):
            part = panel[: min(rows, c.shape[0] - top)]
            torch._int_mm(a[top : top + rows], b, out=part)
            c[top : top + rows].copy_(part)

    return run
