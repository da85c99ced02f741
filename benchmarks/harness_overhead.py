"""What measuring costs: the rate that distbench reports for one rank against a bare timed loop over the same call.

In one process, on the same tensors and threads, every sample of distbench's own measuring (window start, stop rule,
liveness and all) is followed by one turn of the bare loop, `perf_counter, call, perf_counter`. A pair is a block of such
turns: the rate that distbench reports for it (of the median) against the bare one (of the median too). A ratio above 1:
distbench reports the higher rate. The ratio of the blocks' means is shown beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from statistics import fmean
from time import perf_counter
from typing import Any

from _pairs import exactly, join, parser, ratios, ready_cell, show_machine, tell

CELLS = (("float32", 1024, 24), ("float64", 2048, 6))
"""(dtype, n, turns in a block)."""


def main() -> int:
    arguments = parser(__doc__).parse_args()
    import numpy as np
    import torch

    from distbench.config import Config, DType, EngineName, Workload
    from distbench.stats import median

    calls = {
        EngineName.torch: lambda a, b, c: partial(torch.mm, a, b, out=c),
        EngineName.numpy: lambda a, b, c: partial(np.matmul, a.numpy(), b.numpy(), out=c.numpy()),
    }
    world = join()
    show_machine()
    met = []
    for engine, call_of in calls.items():
        for dtype, n, count in CELLS:
            workload = Workload(name="square", m=n, n=n, k=n, dtype=DType(dtype))
            cell = ready_cell(world, Config(workload=workload, engine=engine, measure=exactly(count)))
            bare = call_of(cell.a[0], cell.b[0], cell.c[0])
            blocks = [block(cell, bare) for _ in range(arguments.pairs + 1)][1:]
            rate = cell.plan.flop / median([median(times) for _, times in blocks]) / 1e9
            print(f"{engine} {dtype} n={n}, {cell.place.threads} threads, {count} turns: bare {rate:.1f} GFLOP/s")
            for name, statistic, low, high in (("reported", median, 0.99, 1.01), ("mean", fmean, None, None)):
                ours, theirs = ([statistic(times) for times in side] for side in zip(*blocks, strict=True))
                met.append(tell(f"  {name} rate ÷ bare rate", ratios(theirs, ours), low, high))
            cell.close()
    world.leave()
    return 0 if all(met) else 1


def block(cell: Any, call: Callable[[], object]) -> tuple[list[float], list[float]]:
    """(spans by distbench, times of the bare loop) of one block, taken in turns; seconds."""
    times: list[float] = []

    def turn() -> None:
        begin = perf_counter()
        call()
        times.append(perf_counter() - begin)

    return cell.measure(between=turn).span_s, times


if __name__ == "__main__":
    sys.exit(main())
