"""Each dtype's rate of one product: what distbench reports for one rank against a bare loop of the library's call.

In one process, on the same tensors. A pair is a block of distbench's own samples, each followed by one turn of the bare
call with a synchronize (`span`), and on a GPU a row of as many bare calls between two device events (`GEMM`, against the
device time that distbench reports). A ratio above 1: distbench reports the higher rate. A dtype that the device lacks is
skipped with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from _pairs import exactly, join, parser, ratios, ready_cell, show_machine, tell


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
        met += compare(cell, dtype, arguments.pairs, arguments.turns)
        cell.close()
    world.leave()
    return 0 if all(met) else 1


def compare(cell: Any, dtype: Any, pairs: int, turns: int) -> list[bool]:
    """One dtype's lines; whether each goal is met."""
    from distbench.stats import median

    call = bare_call(cell.a, cell.b, cell.c)
    on_gpu = cell.c.is_cuda
    spans, bare, gemms, rows = [], [], [], []
    for _ in range(pairs + 1):
        times: list[float] = []
        samples = cell.measure(between=lambda times=times: times.append(synchronised_s(call, on_gpu)))
        spans.append(median(samples.span_s))
        bare.append(median(times))
        if on_gpu:
            rows.append(row_s(call, turns))
            gemms.append(median(samples.phases_s["gemm"][0]))
    rate = cell.plan.flop / 1e12
    print(f"{dtype}: span {rate / median(spans[1:]):.4g} TFLOP/s, bare with synchronize {rate / median(bare[1:]):.4g}")
    met = [tell(f"  {dtype} span rate ÷ bare rate", ratios(bare[1:], spans[1:]), 0.99, 1.01)]
    if on_gpu:
        print(f"  GEMM {rate / median(gemms[1:]):.4g} TFLOP/s, bare calls in a row {rate / median(rows[1:]):.4g}")
        met.append(tell(f"  {dtype} GEMM rate ÷ bare rate in a row", ratios(rows[1:], gemms[1:]), 0.99))
    return met


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


def row_s(call: Callable[[], object], count: int) -> float:
    """Seconds of one of `count` calls in a row, between device events."""
    import torch

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(count):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / count


if __name__ == "__main__":
    sys.exit(main())
