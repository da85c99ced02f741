"""What distbench knows of each dtype: its torch and numpy types, its size and its rounding."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.config import DType


@dataclass(frozen=True)
class DTypeFacts:
    """Facts of one compute type."""

    name: str
    """The name that torch gives it; numpy's too where numpy has it."""
    itemsize: int
    """Bytes of one element."""
    unit_roundoff: float
    """Largest relative error of rounding to this type, 2**-p for p significand bits."""
    accumulate_roundoff: float
    """The same for the type in which products are summed."""
    significand_bits: int
    """Integers up to 2**significand_bits are exact."""


FACTS: dict[DType, DTypeFacts] = {
    DType.float64: DTypeFacts("float64", 8, 2.0**-53, 2.0**-53, 53),
    DType.float32: DTypeFacts("float32", 4, 2.0**-24, 2.0**-24, 24),
    # The 16-bit types are summed in float32 (reduced-precision reductions are switched off by the engine).
    DType.bfloat16: DTypeFacts("bfloat16", 2, 2.0**-8, 2.0**-24, 8),
    DType.float16: DTypeFacts("float16", 2, 2.0**-11, 2.0**-24, 11),
}
