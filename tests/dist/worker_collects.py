"""Run under torchrun: every legal collect in one world; each rank writes what it found to <folder>/rank<r>.json.

Cases without `whole` go below the cell (a site, a collect, a product, one run): as many as there are dtypes and shapes.
Cases with `whole` are cells with all their stages, verification and one sample, which meets what the first run left.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import Case, cases, key_of

from distbench.alive import Watch
from distbench.cell import Cell
from distbench.collects import TABLE
from distbench.collects.base import Means, Site
from distbench.config import Config, DType, Fill, Measure, Start, Workload
from distbench.data import values_at
from distbench.dtypes import result, wide
from distbench.engines import ENGINES
from distbench.launch import detect
from distbench.layout import whole
from distbench.measure import Samples
from distbench.rules import check
from distbench.unit import Unit
from distbench.world import CellFailed, World

TOLERANCE = {DType.float64: 1e-13, DType.float32: 1e-5, DType.float16: 1e-2, DType.bfloat16: 8e-2}
TOLERANCE |= dict.fromkeys((DType.float8_e4m3fn, DType.float8_e5m2), 8e-2)
TOLERANCE |= {DType.int8: 0.0, DType.complex64: 1e-5, DType.complex128: 1e-13}
"""Of the largest entry of C: far above rounding, far below a wrong term."""


class Seen(Cell):
    """A cell that keeps what its rank holds after the last sample."""

    seen: torch.Tensor | None = None

    def _measured(self, *arguments: Any) -> Samples:
        samples = super()._measured(*arguments)
        collect = self.units[0].collect
        if collect is not None and collect.held is not None:
            self.seen = collect.held.clone()
        return samples


def main() -> None:
    launch = detect(os.environ)
    watch = Watch(launch, 60, 120)
    watch.start()
    world = World(launch, watch)
    world.join()
    told = []
    gc.collect()
    gc.freeze()  # a collection per cell over all that torch imported takes longer than all the rest
    for key, group in groupby(cases(), key_of):
        alike = list(group)
        bare = [case for case in alike if not case.whole]
        errors = [*_bare(world, bare), *(_whole(world, case) for case in alike if case.whole)]
        ordered = [*bare, *(case for case in alike if case.whole)]
        told += [{"key": key, "case": case.title, "error": e} for case, e in zip(ordered, errors, strict=True)]
    Path(sys.argv[1], f"rank{world.rank}.json").write_text(json.dumps(told))
    world.leave()


def _config(case: Case) -> Config:
    config = Config(split=case.split, collect=case.collect, path=case.path, engine=case.engine)
    batch, m, n, k = case.sizes
    config.workload = Workload(batch=batch, m=m, n=n, k=k, dtype=case.dtype, fill=case.fill, seed=11)
    config.measure = Measure(warmup=1, min_samples=1, max_samples=1, start=Start.barrier)
    check(config)
    return config


def _whole(world: World, case: Case) -> str | None:
    config = _config(case)
    cell = Seen(world, config, lambda event, detail: None)
    record = cell.outcome()
    if record["status"] != "ok":
        return str(record["reason"])
    site = Site(whole(*case.sizes), config.split, config.collect, world.size, world.rank)
    return _difference(cell.seen, site, case)


def _bare(world: World, alike: list[Case]) -> list[str | None]:
    world.data("gloo")
    try:
        return world.attempt("case", lambda: [_held(world, case) for case in alike])
    except CellFailed as error:
        return [str(error)] * len(alike)


def _held(world: World, case: Case) -> str | None:
    site = Site(whole(*case.sizes), case.split, case.collect, world.size, world.rank)
    config = _config(case)
    is_shared = case.path.value == "shared"
    unit = Unit(site, config, torch.device("cpu"))
    unit.allocate()
    unit.fill(1, lambda share: None)
    means = Means(world, "gloo", torch.device("cpu"), result(case.dtype), config)
    collect = unit.collect = TABLE[case.collect, case.path](site, means)
    try:
        collect.connect(world.gather_json(collect.offer()) if is_shared else [])
        unit.prepare(ENGINES[case.engine])
        unit.poison()
        assert unit.multiply is not None
        unit.multiply()
        collect.run()
        found = _difference(collect.held, site, case)
        if is_shared:
            world.barrier()  # nobody closes the mapping before all have opened it and looked
        return found
    finally:
        collect.close()


def _difference(held: torch.Tensor | None, site: Site, case: Case) -> str | None:
    """What is wrong with what this rank holds; None if nothing."""
    block = site.held
    if held is None or block is None:
        return None if (held is None) == (block is None) else f"holds {held}, and should hold {block}"
    if tuple(held.shape) != block.c_shape or held.dtype != result(case.dtype):
        return f"holds {tuple(held.shape)} {held.dtype}, and should hold {block.c_shape} {case.dtype}"
    expected = _product_of(site, case)
    found = wide(held).numpy()
    if case.fill is Fill.integer:
        bad = found != expected
    else:
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        bad = ~(np.abs(found - expected) <= TOLERANCE[case.dtype] * scale)
    if bad.any():
        return f"{int(bad.sum())} of {bad.size} entries differ, first at {np.argwhere(bad)[0].tolist()}"
    return None


def _product_of(site: Site, case: Case) -> np.ndarray[Any, Any]:
    """What this rank should hold, in float64 from (seed, index) alone: no shard, no fill, no collective."""
    block = site.held
    assert block is not None
    _, m, _, k = case.sizes
    terms, columns = _indices(block.k), _indices(block.n)
    parts = []
    for entry in _indices(block.batch):
        a = values_at(11, "a", entry * m + _indices(block.m), terms, case.dtype, case.fill)
        b = values_at(11, "b", entry * k + terms, columns, case.dtype, case.fill)
        parts.append(a @ b)
    return np.array(parts).reshape(block.c_shape)


def _indices(extent: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(extent.start, extent.stop, dtype=np.int64)


if __name__ == "__main__":
    main()
