"""Each dtype's rate of one product: what distbench reports for one rank against a bare loop of the library's call.

In one process, on the same tensors, in two ways. One product at a time: a block of distbench's samples, each followed by one
turn of the bare call and a synchronize; the spans are compared. Products in a row: a sample of as many products
(measure.inner) and a bare row of as many calls take turns; compared by device events on a GPU, by the clock on a CPU. A ratio
above 1: distbench reports the higher rate. A dtype that the device lacks is skipped with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from _pairs import exactly, join, parser, ratios, ready_cell, show_machine, take_turns, tell


def main() -> int:
    options = parser(__doc__)
    options.set_defaults(pairs=10)
    options.add_argument("--n", type=int, default=8192, help="rows and columns (default 8192)")
    options.add_argument(
        "--batched", action="store_true", help="a batch of 20 (1000 x 200 by 200 x 1000), not a square"
    )
    options.add_argument("--turns", type=int, default=20, help="samples in a block (default 20)")
    options.add_argument("--dtypes", default="", help="comma-separated (default all)")
    arguments = options.parse_args()
    from distbench.config import Config, DType, Workload
    from distbench.supports import Unsupported

    world = join()
    show_machine()
    met = []
    for dtype in [DType(name) for name in arguments.dtypes.split(",") if name] or list(DType):
        if arguments.batched:
            workload = Workload(name="batched", batch=20, m=1000, n=1000, k=200, dtype=dtype)
        else:
            workload = Workload(name="square", m=arguments.n, n=arguments.n, k=arguments.n, dtype=dtype)
        try:
            cell = ready_cell(world, Config(workload=workload, measure=exactly(arguments.turns)))
        except Unsupported as error:
            print(f"{dtype}: skipped: {error}")
            continue
        in_a_row = replace(exactly(1), inner=arguments.turns)
        row = ready_cell(world, Config(workload=workload, measure=in_a_row), like=cell)
        call = bare_call(cell.a, cell.b, cell.c)
        rate = cell.plan.flop / 1e12
        met += [one_by_one(cell, call, f"{dtype}", rate, arguments.pairs)]
        met += [rows(row, call, f"{dtype}", rate, arguments.pairs, arguments.turns)]
        cell.close()
        row.close()
    world.leave()
    return 0 if all(met) else 1


def one_by_one(cell: Any, call: Callable[[], object], dtype: str, rate: float, pairs: int) -> bool:
    """Spans against the bare call with a synchronize; whether the goal is met. rate: TFLOP of a product."""
    from distbench.stats import median

    spans, bare = [], []
    for _ in range(pairs + 1):
        times: list[float] = []
        samples = cell.measure(between=lambda times=times: times.append(synchronised_s(call, cell.c.is_cuda)))
        spans.append(median(samples.span_s))
        bare.append(median(times))
    print(f"{dtype}: span {rate / median(spans[1:]):.4g} TFLOP/s, bare with synchronize {rate / median(bare[1:]):.4g}")
    return tell(f"  {dtype} span rate ÷ bare rate", ratios(bare[1:], spans[1:]), 0.99, 1.01)


def rows(cell: Any, call: Callable[[], object], dtype: str, rate: float, pairs: int, turns: int) -> bool:
    """Products in a row against bare calls in a row; whether the goal is met."""
    from distbench.stats import median

    sides: dict[str, Callable[[], float]] = {
        "ours": lambda: cell.measure().phases_s["gemm"][0][0],
        "bare": lambda: row_s(call, turns, cell.c.is_cuda),
    }
    taken = take_turns(sides, pairs)
    ours, bare = (rate / median(taken[side]) for side in ("ours", "bare"))
    print(f"  GEMM, {turns} in a row {ours:.4g} TFLOP/s, bare {bare:.4g}")
    return tell(f"  {dtype} GEMM rate ÷ bare rate in a row", ratios(taken["bare"], taken["ours"]), 0.99)


def bare_call(a: Any, b: Any, c: Any) -> Callable[[], object]:
    """The library's call, as one would write it without distbench. A [batch, m, k], B [batch, k, n], C [batch, m, n]."""
    import torch

    if len(a) > 1:
        return partial(torch.matmul, a, b, out=c)
    if a.dtype == torch.int8:
        return partial(torch._int_mm, a[0], b[0], out=c[0])
    if a.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        one = torch.ones((), device=a.device)
        return partial(torch._scaled_mm, a[0], b[0], scale_a=one, scale_b=one, out_dtype=c.dtype, out=c[0])
    return partial(torch.mm, a[0], b[0], out=c[0])


def synchronised_s(call: Callable[[], object], on_gpu: bool) -> float:
    import torch

    begin = perf_counter()
    call()
    if on_gpu:
        torch.cuda.synchronize()
    return perf_counter() - begin


def row_s(call: Callable[[], object], count: int, on_gpu: bool) -> float:
    """Seconds of one of `count` calls in a row: between device events on a GPU."""
    import torch

    if not on_gpu:
        begin = perf_counter()
        for _ in range(count):
            call()
        return (perf_counter() - begin) / count
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(count):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / count


if __name__ == "__main__":
    sys.exit(main())
