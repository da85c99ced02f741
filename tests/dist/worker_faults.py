"""Run under torchrun: cells with a fault on one rank, a right one after each; every rank writes its records' status."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path as FilePath

from faults import FAULTS, install

from distbench.alive import Watch
from distbench.cell import Cell
from distbench.config import CollectName, Config, DType, Measure, Path, Split, Workload
from distbench.launch import detect
from distbench.rules import check
from distbench.world import World

PATHS = (
    (CollectName.all_gather, Path.collective),
    (CollectName.gather, Path.collective),
    (CollectName.gather, Path.p2p),
    (CollectName.all_gather, Path.shared),
)


def main() -> None:
    launch = detect(os.environ)
    install(launch.rank)
    watch = Watch(launch, 60, 600)
    watch.start()
    world = World(launch, watch)
    world.join()
    told = []
    gc.collect()
    gc.freeze()  # a collection over all that torch imported, once per cell, takes longer than the cells
    for seed, fault in FAULTS.items():
        for collect, path in PATHS if fault.step == "before collect" else PATHS[:1]:
            for used in (seed, 0):
                began = time.monotonic()
                record = Cell(world, _config(used, collect, path), lambda event, detail: None).outcome()
                kept = {key: record[key] for key in ("status", "reason", "result", "verification")}
                told.append({"seed": used, "after": seed, "path": f"{collect}-{path}", **kept})
                told[-1]["seconds"] = time.monotonic() - began
    FilePath(sys.argv[1], f"rank{world.rank}.json").write_text(json.dumps(told))
    world.leave()


def _config(seed: int, collect: CollectName, path: Path) -> Config:
    config = Config(split=Split.m, collect=collect, path=path)
    # For the fault "memory" a shard of A, which cannot come from what the heap has already: 100 MB.
    m = 150_000 if seed in FAULTS and FAULTS[seed].step == "memory" else 60
    config.workload = Workload(m=m, n=16, k=256, dtype=DType.float64, seed=seed)
    config.measure = Measure(warmup=1, min_samples=4, max_samples=4)
    check(config)
    return config


if __name__ == "__main__":
    main()
