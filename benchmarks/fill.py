"""How fast A and B are filled: elements/s per dtype and threads, against torch.randn into the same tensor.

The fill is a function of each element's place in the whole problem, bit-identical in every world; torch.randn is what a
script without that duty would call. A ratio above 1: distbench's fill is the faster. Both take turns in one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

from _pairs import parser, ratios, show_machine, take_turns, tell

ROWS, COLUMNS = 32768, 512


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--fill", default="normal", help="distbench's fill (default normal)")
    options.add_argument("--threads", default="", help="thread counts (default 1 and the cores of this process)")
    arguments = options.parse_args()
    cores = len(os.sched_getaffinity(0))
    counts = [int(count) for count in arguments.threads.split(",") if count] or sorted({1, cores})
    from distbench.config import DType

    show_machine()
    for threads in counts:
        for dtype in (DType.float64, DType.float32, DType.bfloat16, DType.float16):  # what torch.randn makes
            compare(dtype, threads, arguments.fill, arguments.pairs)


def compare(dtype: Any, threads: int, fill: str, pairs: int) -> None:
    """One dtype and number of threads."""
    import torch

    from distbench.config import Fill
    from distbench.cores import set_threads
    from distbench.data import fill_block
    from distbench.layout import Extent
    from distbench.stats import median

    set_threads(threads)
    target = torch.empty(1, ROWS, COLUMNS, dtype=getattr(torch, dtype.value))
    extent = (Extent(0, 1), Extent(0, ROWS), Extent(0, COLUMNS))

    def ours() -> float:
        return _timed(lambda: fill_block(target, 0, "a", ROWS, extent, dtype, Fill(fill), threads))

    def theirs() -> float:
        return _timed(lambda: torch.randn(target.shape, dtype=target.dtype, out=target))

    taken = take_turns({"fill": ours, "torch.randn": theirs}, pairs)
    rates = ", ".join(f"{side} {target.numel() / median(times) / 1e6:.0f} M/s" for side, times in taken.items())
    name = f"{dtype} {threads} thread{'s' * (threads > 1)}: {rates}"
    tell(name, ratios(taken["torch.randn"], taken["fill"]))


def _timed(call: Callable[[], object]) -> float:
    begin = perf_counter()
    call()
    return perf_counter() - begin


if __name__ == "__main__":
    main()
