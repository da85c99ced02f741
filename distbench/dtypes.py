"""What distbench knows of each dtype: how A, B and C are stored, how products are summed, and what the errors are.

A dtype is how a product is computed. Its unit roundoffs are 2**-p for p significand bits: the largest relative error of
one rounding. A and B are filled with values that their storage holds exactly, so only tf32 rounds them on the way in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from distbench.config import DType

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DTypeFacts:
    """Facts of one compute type."""

    name: str
    """How A and B are stored: the name that torch gives it; numpy's too where numpy has it."""
    itemsize: int
    """Bytes of one element of A or B."""
    unit_roundoff: float
    """Largest relative error of rounding to C's type."""
    accumulate_roundoff: float
    """The same for the type in which products are summed."""
    significand_bits: int
    """Whole numbers up to 2**significand_bits are exact in C and in the sums."""
    c_name: str
    """How C is stored."""
    c_itemsize: int
    accumulate: str
    """The type in which products are summed."""
    peak: str
    """The name of its peak in show/peaks.py."""
    operand_roundoff: float = 0.0
    """Largest relative error of an operand on the way into the multiplier."""
    block_roundoff: float = 0.0
    """Of sums within 128 terms, where the matrix unit keeps fewer bits than the type that the blocks are summed in."""
    flop_per_term: int = 2
    """Real operations per multiply-add: 2, and 8 for complex numbers (4 multiplications, 4 additions)."""
    on_cpu: bool = True
    """Whether a CPU computes it."""
    in_numpy: bool = False
    capability: tuple[int, int] = (0, 0)
    """The least CUDA compute capability that has it."""
    is_scaled: bool = False
    """A and B are stored multiplied by powers of two, which the product divides out: workload.scaling."""
    is_integer: bool = False
    b_dtype: DType | None = None
    """How B is stored and filled, where not as A."""

    @property
    def components(self) -> int:
        """Real numbers in one element."""
        return 2 if self.flop_per_term == 8 else 1


_FLOAT64 = DTypeFacts("float64", 8, 2.0**-53, 2.0**-53, 53, "float64", 8, "float64", "float64", in_numpy=True)
_FLOAT32 = DTypeFacts("float32", 4, 2.0**-24, 2.0**-24, 24, "float32", 4, "float32", "float32", in_numpy=True)
# Hopper's units keep about 14 bits (13 after the point) of the sums of 8-bit products: DeepSeek-V3 Technical Report
# (2024), 3.3.2. With use_fast_accum=False a sum is moved to float32 every 128 terms. 2**-13: they truncate.
_FLOAT8 = DTypeFacts(
    "float8_e4m3fn",
    1,
    2.0**-8,
    2.0**-24,
    8,
    "bfloat16",
    2,
    "float32 of blocks of 128 terms",
    "float8",
    block_roundoff=2.0**-13,
    capability=(8, 9),
    is_scaled=True,
)

FACTS: dict[DType, DTypeFacts] = {
    DType.float64: _FLOAT64,
    DType.float32: _FLOAT32,
    # 10 bits after the point. cuBLAS does not say how it comes to them: 2**-10 allows for truncation, rounding is 2**-11.
    DType.tf32: replace(
        _FLOAT32, peak="tf32", operand_roundoff=2.0**-10, on_cpu=False, in_numpy=False, capability=(8, 0)
    ),
    # The 16-bit types are summed in float32 (reduced-precision reductions are switched off by the engine).
    DType.bfloat16: DTypeFacts("bfloat16", 2, 2.0**-8, 2.0**-24, 8, "bfloat16", 2, "float32", "bfloat16"),
    DType.float16: DTypeFacts("float16", 2, 2.0**-11, 2.0**-24, 11, "float16", 2, "float32", "float16", in_numpy=True),
    DType.float8_e4m3fn: _FLOAT8,
    # cuBLAS multiplies no two float8_e5m2 matrices (cuBLASLt's table of FP8 types): B is float8_e4m3fn, as where gradients
    # meet weights.
    DType.float8_e5m2: replace(_FLOAT8, name="float8_e5m2", b_dtype=DType.float8_e4m3fn),
    DType.int8: DTypeFacts("int8", 1, 0.0, 0.0, 31, "int32", 4, "int32", "int8", capability=(7, 5), is_integer=True),
    DType.complex64: replace(_FLOAT32, name="complex64", itemsize=8, c_name="complex64", c_itemsize=8, flop_per_term=8),
    DType.complex128: replace(
        _FLOAT64, name="complex128", itemsize=16, c_name="complex128", c_itemsize=16, flop_per_term=8
    ),
}
"""The dtypes that distbench computes."""

NEEDS_BLACKWELL: tuple[DType, ...] = (DType.mxfp8, DType.nvfp4)
"""Named, and skipped with a reason: the formats whose scales belong to blocks of 32 and 16 terms."""


def of_operand(dtype: DType, operand: str) -> DType:
    """The dtype in which operand "a" or "b" is stored and filled."""
    return FACTS[dtype].b_dtype or dtype if operand == "b" else dtype


def storage(dtype: DType) -> torch.dtype:
    """How an operand of this dtype is stored."""
    import torch

    stored: torch.dtype = getattr(torch, FACTS[dtype].name)
    return stored


def result(dtype: DType) -> torch.dtype:
    """How C is stored."""
    import torch

    stored: torch.dtype = getattr(torch, FACTS[dtype].c_name)
    return stored


def poison(tensor: torch.Tensor) -> None:
    """Fill with what no right product or operand has, so that an element that nobody writes shows.

    NaN; for integers the most negative number, which no fill and, within the plan's limit on k, no sum reaches.
    """
    import torch

    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).min)


def wire(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as the data group moves it: complex numbers as pairs of real ones, which every operation takes.

    gloo's gather refuses complex64, and NCCL has no complex type.
    """
    import torch

    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def wide(tensor: Any) -> Any:
    """The tensor in float64, complex numbers in complex128."""
    import torch

    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
