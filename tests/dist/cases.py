"""What tests/dist runs in every world: all that is legal, taken from the tables themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from distbench.config import CollectName, Config, ConfigError, DType, EngineName, Fill, Path, Split
from distbench.dtypes import FACTS
from distbench.rules import check

SIZES = (
    (1, 7, 5, 9),  # uneven on every axis
    (3, 7, 5, 9),
    (1, 2, 2, 2),  # fewer than ranks on every axis
    (3, 2, 2, 2),
    (4, 12, 12, 12),  # even on every axis, in every world up to 4 but for the batch in 3
)
"""(batch, m, n, k)."""
ON_CPU = [dtype for dtype, facts in FACTS.items() if facts.on_cpu]
IN_NUMPY = [dtype for dtype, facts in FACTS.items() if facts.in_numpy]
UNEVEN = (SIZES[1], SIZES[3])


@dataclass(frozen=True)
class Case:
    split: Split
    collect: CollectName
    path: Path
    sizes: tuple[int, int, int, int]
    dtype: DType
    fill: Fill
    engine: EngineName = EngineName.torch
    whole: bool = False
    """A cell with all its stages."""

    @property
    def title(self) -> str:
        batch, m, n, k = self.sizes
        kind = "cell" if self.whole else "collect"
        return f"{kind}, {batch} x [{m}, {k}] · [{k}, {n}], {self.dtype}, {self.fill}, {self.engine}"


Key = tuple[str, str, str]


def keys() -> list[Key]:
    """(split, collect, path) of everything legal on a CPU."""
    return [
        (str(split), str(collect), str(path))
        for split, collect, path in product(Split, CollectName, Path)
        if path not in (Path.auto, Path.pinned, Path.pipelined)
        and collect is not CollectName.topk
        and _is_legal(Config(split=split, collect=collect, path=path))
    ]


def _is_legal(config: Config) -> bool:
    try:
        check(config)
    except ConfigError:
        return False
    return True


def key_of(case: Case) -> Key:
    return (str(case.split), str(case.collect), str(case.path))


def cases() -> Iterator[Case]:
    """In the same order on every rank."""
    for key in keys():
        named = (Split(key[0]), CollectName(key[1]), Path(key[2]))
        for sizes in SIZES:
            yield Case(*named, sizes, DType.float64, Fill.integer)
        for sizes, dtype in product(UNEVEN, [dtype for dtype in ON_CPU if dtype is not DType.float64]):
            yield Case(*named, sizes, dtype, Fill.integer)
        for dtype in ON_CPU:
            yield Case(*named, SIZES[1], dtype, Fill.normal)
        for sizes, dtype in product(UNEVEN, IN_NUMPY):
            yield Case(*named, sizes, dtype, Fill.integer, EngineName.numpy)
        yield Case(*named, SIZES[0], DType.float64, Fill.normal, whole=True)
        for dtype in (DType.complex64, DType.int8, DType.float8_e4m3fn):
            yield Case(*named, SIZES[1], dtype, Fill.normal, whole=True)
