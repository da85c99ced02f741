"""A and B in a rank's memory: how they are stored (layout, padding) and scaled. The values stay those of their index.

Engines get views of the logical shapes, A [batch, m, k] and B [batch, k, n], whatever lies in memory: C is the same for
every layout, padding and scaling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distbench.config import Layout, Scaling, Workload
from distbench.dtypes import FACTS, of_operand, storage
from distbench.layout import Block, Extent

if TYPE_CHECKING:
    import torch

Shape = tuple[int, int, int]
_CHUNK = 1 << 24  # elements scaled at a time

# float8 is stored as value · 2**e and its scale is 2**-e, so that all is exact: values stay below 4 and 4 · 2**6 below
# e4m3's 448. By row, e goes through these, so that a scale in another row's place shows.
_TENSOR_EXPONENT = 4
_ROW_EXPONENTS = (3, 4, 5, 6)


def layout_of(workload: Workload) -> Layout:
    """The layout that `auto` stands for."""
    if workload.layout is not Layout.auto:
        return workload.layout
    facts = FACTS[workload.dtype]
    # float8's units take no other; cuBLAS has its fast int8 kernels for it alone: nn reached 128 TOP/s of 920 on an H200.
    return Layout.nt if facts.is_scaled or facts.is_integer else Layout.nn


def stored_shapes(block: Block, layout: Layout, padding: int) -> tuple[Shape, Shape]:
    """Shapes of A and B as they lie in memory, padding included."""
    return tuple(  # type: ignore[return-value]
        (batch, columns, rows + padding) if letter == "t" else (batch, rows, columns + padding)
        for letter, (batch, rows, columns) in zip(layout.value, (block.a_shape, block.b_shape), strict=True)
    )


def allocate(block: Block, workload: Workload, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Uninitialised A [batch, m, k] and B [batch, k, n] of a block, as views of what is stored."""
    import torch

    layout = layout_of(workload)
    views = []
    shapes = stored_shapes(block, layout, workload.padding)
    for operand, letter, shape in zip("ab", layout.value, shapes, strict=True):
        memory = torch.empty(shape, dtype=storage(of_operand(workload.dtype, operand)), device=device)
        own = memory[:, :, : shape[2] - workload.padding] if workload.padding else memory
        views.append(own.mT if letter == "t" else own)
    return views[0], views[1]


def stored(operand: torch.Tensor) -> torch.Tensor:
    """The memory that an operand from `allocate` is a view of: contiguous, padding included."""
    return operand if operand._base is None else operand._base


def scales(block: Block, workload: Workload, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """What the product multiplies stored float8 operands with, float32: scalars, or [m, 1] and [1, n] by row."""
    a, b = (_exponents(extent, workload.scaling, device) for extent in (block.m, block.n))
    return ((-a).exp2(), (-b).exp2()) if a.dim() == 0 else ((-a).exp2()[:, None], (-b).exp2()[None, :])


def scale_up(operands: tuple[torch.Tensor, torch.Tensor], block: Block, workload: Workload) -> None:
    """Multiply filled float8 operands, in place, by the inverse of their `scales`. Other dtypes stay as they are."""
    if not FACTS[workload.dtype].is_scaled:
        return
    for operand, scale in zip(operands, scales(block, workload, operands[0].device), strict=True):
        factor = scale.reciprocal().expand(operand.shape[1:])
        step = max(1, _CHUNK // max(1, operand.shape[2]))
        for entry in operand:
            for top in range(0, entry.shape[0], step):
                part = entry[top : top + step]
                part.copy_(part.float() * factor[top : top + step])


def _exponents(extent: Extent, scaling: Scaling, device: torch.device) -> torch.Tensor:
    import torch

    if scaling is Scaling.tensor:
        return torch.tensor(float(_TENSOR_EXPONENT), device=device)
    index = torch.arange(extent.start, extent.stop, device=device) % len(_ROW_EXPONENTS)
    return torch.tensor([float(e) for e in _ROW_EXPONENTS], device=device)[index]
