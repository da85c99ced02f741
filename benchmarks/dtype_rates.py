"""Each dtype's rate of one product: what distbench reports for one rank against a bare loop of the library's call.

In one process, on the same tensors, in two ways. Products in a row: a sample of as many products (measure.inner) and a bare
row of as many calls take turns, compared by the span (the clock, synchronize included) and on a GPU by device events. One
product at a time: a block of distbench's samples, each followed by one turn of the bare call and a synchronize. That is shown
for comparison: a GPU rests between two samples and wakes up in the second, some 20 to 70 µs, and the call right after it finds
it awake. A ratio above 1: distbench reports the higher rate. A dtype that the device lacks is skipped with the reason.
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
        met += rows(row, call, dtype, arguments.pairs, arguments.turns)
        one_by_one(cell, call, dtype, arguments.pairs)
        cell.close()
        row.close()
    world.leave()
    return 0 if all(met) else 1


def rows(cell: Any, call: Callable[[], object], dtype: str, pairs: int, turns: int) -> list[bool]:
    """Products in a row against bare calls in a row; whether each goal is met."""
    from distbench.stats import median

    def ours() -> tuple[float, float]:
        samples = cell.measure()
        return samples.span_s[0], samples.phases_s["gemm"][0][0]

    sides = {"ours": ours, "bare": lambda: row_s(call, turns, cell.c.is_cuda)}
    taken = take_turns(sides, pairs)
    met = []
    for name, place in (("span", 0), ("device time", 1)) if cell.c.is_cuda else (("span", 0),):
        times = {side: [pair[place] for pair in pairs_taken] for side, pairs_taken in taken.items()}
        rate = {side: told_rate(cell, median(values)) for side, values in times.items()}
        print(f"{dtype}: {turns} in a row by {name} {rate['ours']}, bare {rate['bare']}")
        met.append(tell(f"  {dtype} rate ÷ bare rate, {name}", ratios(times["bare"], times["ours"]), 0.99))
    return met


def one_by_one(cell: Any, call: Callable[[], object], dtype: str, pairs: int) -> None:
    """Spans of one product against the bare call with a synchronize right after each."""
    from distbench.stats import median

    spans, bare = [], []
    for _ in range(pairs + 1):
        times: list[float] = []
        samples = cell.measure(between=lambda times=times: times.append(row_s(call, 1, cell.c.is_cuda)[0]))
        spans.append(median(samples.span_s))
        bare.append(median(times))
    print(f"{dtype}: one product {told_rate(cell, median(spans[1:]))}, bare {told_rate(cell, median(bare[1:]))}")
    tell(f"  {dtype} one product's rate ÷ bare", ratios(bare[1:], spans[1:]))


def told_rate(cell: Any, product_s: float) -> str:
    from distbench.show import units

    return units.rate(cell.plan.flop / product_s / 1e12)


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


def row_s(call: Callable[[], object], count: int, on_gpu: bool) -> tuple[float, float]:
    """Seconds of one of `count` calls in a row, by the clock with a synchronize and between device events (a CPU: 0)."""
    import torch

    if on_gpu:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin = perf_counter()
    if on_gpu:
        first.record()
    for _ in range(count):
        call()
    if on_gpu:
        last.record()
        torch.cuda.synchronize()
    span_s = (perf_counter() - begin) / count
    return span_s, float(first.elapsed_time(last)) / 1e3 / count if on_gpu else 0.0


if __name__ == "__main__":
    sys.exit(main())
