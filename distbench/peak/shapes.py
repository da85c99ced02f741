"""The shapes that a peak search tries: pure numbers. Each has a kind, which becomes the cell's workload.name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

SIZES = (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
"""Squares for a start: powers of two, and half-way between them."""
STEP = 64
"""Sizes of a search are its multiples: every vector, and every tile's edge, is full."""
SQUARE, FOUND, ODD, TILE, WHOLE, WAVE, SKINNY = (
    "peak_square",
    "peak_found",
    "peak_odd",
    "peak_tile",
    "peak_whole_waves",
    "peak_wave",
    "peak_skinny",
)
_THIN = 32
_TILE_M, _TILE_N = 128, 256
"""The tile of C that cuBLAS's and CUTLASS's kernels for large products give a multiprocessor (CUTLASS's profiles of
Hopper): what is one row of tiles more than whole waves is so whatever the library takes, by a divisor of it."""


@dataclass(frozen=True)
class Shape:
    """C[m, n] = A[m, k] · B[k, n]."""

    m: int
    n: int
    k: int
    kind: str = FOUND

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k

    @property
    def volume(self) -> int:
        """Multiply-adds."""
        return self.m * self.n * self.k

    @property
    def label(self) -> str:
        """As the table writes it: 1024³, or m x n x k."""
        return f"{self.m}³" if self.m == self.n == self.k else f"{self.m} x {self.n} x {self.k}"


def squares(largest: int) -> list[Shape]:
    """The squares of a start, from the smallest on; one at least."""
    return [Shape(n, n, n, SQUARE) for n in SIZES if n <= max(largest, SIZES[0])]


def ordinary(n: int, multiprocessors: int | None) -> list[Shape]:
    """What people multiply too, near a fast square of size n: off by one, one above a tile, one above a wave, skinny.

    multiprocessors: of the GPU; None on a CPU, which has no waves.
    """
    told = [Shape(size, size, size, ODD) for size in (n - 1, n + 1)]
    told += [Shape(n + 1, n, n, TILE), Shape(n, n + 1, n, TILE), Shape(n, n, n + 1, TILE)]
    if multiprocessors:
        told += waves(n, multiprocessors)
    return [*told, Shape(_THIN, n, n, SKINNY), Shape(n, _THIN, n, SKINNY), Shape(n, n, _THIN, SKINNY)]


def waves(n: int, multiprocessors: int) -> list[Shape]:
    """A C of whole waves of tiles near n x n, and one with a row of tiles more, whose last wave is nearly empty.

    A wave is as many tiles as there are multiprocessors: 132 on an H200, which is 11 rows of 12 tiles.
    """
    widths = [width for width in range(1, multiprocessors + 1) if multiprocessors % width == 0]
    across = min(widths, key=lambda width: abs(width * _TILE_N - n))
    rows = multiprocessors // across
    count = max(1, round(n / (_TILE_M * rows)))
    whole = Shape(count * rows * _TILE_M, across * _TILE_N, n, WHOLE)
    return [whole, Shape(whole.m + _TILE_M, whole.n, n, WAVE)]


def neighbours(shape: Shape, share: float, largest: int) -> Iterator[Shape]:
    """All shapes in which one axis, or all three, are larger or smaller by this share; multiples of 64, none the same."""
    seen = {shape.sizes}
    axes = [(True, True, True), (True, False, False), (False, True, False), (False, False, True)]
    for moved, factor in product(axes, (1 + share, 1 - share)):
        m, n, k = (
            min(2 * largest, max(STEP, round(size * factor / STEP) * STEP)) if moves else size
            for size, moves in zip(shape.sizes, moved, strict=True)
        )
        found = Shape(m, n, k)
        if found.sizes not in seen:
            seen.add(found.sizes)
            yield found
