"""What two ranks reach together: square n=2048 float32, split m, collect none, 2 ranks of 1 thread.

In the same two processes, every sample of distbench's own measuring is followed by a bare one on the same shards (a
barrier, then torch.mm; span = latest end − earliest start, as distbench's) and by one of a single process on the whole
problem with two threads, rank 1 waiting (the last two in either order). A pair is a block of such turns, each side by its
median. The script starts its ranks through torchrun itself.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

from _pairs import as_ranks, exactly, join, parser, ratios, ready_cell, show_machine, tell

N, TURNS = 2048, 6


def main() -> None:
    arguments = parser(__doc__).parse_args()
    as_ranks(2)
    import torch

    from distbench.config import Config, DType, Split, Workload
    from distbench.stats import median

    world = join()
    if world.is_root:
        show_machine()
    workload = Workload(name="square", m=N, n=N, k=N, dtype=DType.float32)
    cell = ready_cell(world, Config(workload=workload, split=Split.m, threads=1, measure=exactly(TURNS)))
    a, b, c = cell.a[0], cell.b[0], cell.c[0]
    whole = (torch.randn(N, N), torch.randn(N, N), torch.empty(N, N)) if world.is_root else None
    blocks: dict[str, list[float]] = {side: [] for side in ("distbench", "bare", "one process")}
    slower: dict[str, list[float]] = {side: [] for side in ("distbench", "bare")}
    late = taken = 0
    for number in range(arguments.pairs + 1):
        bare: list[tuple[int, int]] = []
        single: list[int] = []

        def turn(bare: list[tuple[int, int]] = bare, single: list[int] = single) -> None:
            if len(bare) % 2:  # so that each side follows each other as often
                single.append(whole_turn(world, whole))
                bare.append(bare_turn(world, a, b, c))
            else:
                bare.append(bare_turn(world, a, b, c))
                single.append(whole_turn(world, whole))

        samples = cell.measure(between=turn)
        if number:  # the first block warms up
            late, taken = late + len(samples.dropped_span_s), taken + len(bare)
            blocks["distbench"].append(median(samples.span_s))
            spans, times = spans_of(bare)
            blocks["bare"].append(median(spans))
            slower["distbench"].append(median([max(rank) for rank in zip(*samples.rank_s, strict=True)]))
            slower["bare"].append(median(times))
            blocks["one process"].append(median(single) / 1e9)
    if world.is_root:
        rates = {side: cell.plan.flop / median(times) / 1e9 for side, times in blocks.items()}
        print(", ".join(f"{side} {rate:.1f} GFLOP/s" for side, rate in rates.items()))
        print(f"{late} of {taken} samples dropped for a late start, the last blocks by {samples.start}")
        tell("2 ranks by distbench ÷ 2 bare processes, rate", ratios(blocks["bare"], blocks["distbench"]), low=0.99)
        tell("  the same by the slower rank's time, without starts", ratios(slower["bare"], slower["distbench"]))
        tell("2 ranks by distbench ÷ 1 process × 2 threads, rate", ratios(blocks["one process"], blocks["distbench"]))
        tell("2 bare processes ÷ 1 process × 2 threads, rate", ratios(blocks["one process"], blocks["bare"]))
    world.leave()


def bare_turn(world: Any, a: Any, b: Any, c: Any) -> tuple[int, int]:
    """(start, end) in ns of this rank's product, started by a barrier."""
    import torch

    world.barrier()
    begin = monotonic_ns()
    torch.mm(a, b, out=c)
    return begin, monotonic_ns()


def spans_of(own: list[tuple[int, int]]) -> tuple[list[float], list[float]]:
    """Of each turn: latest end − earliest start over the ranks, and the slower rank's end − start; s. For all ranks."""
    import torch
    import torch.distributed as dist

    times = torch.tensor(own, dtype=torch.int64)
    ranks = [torch.empty_like(times) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, times)
    starts, ends = torch.stack(ranks).unbind(-1)
    return ((ends.amax(0) - starts.amin(0)) / 1e9).tolist(), ((ends - starts).amax(0) / 1e9).tolist()


def whole_turn(world: Any, whole: Any) -> int:
    """Time in ns of the whole product by rank 0 with two threads; the other rank waits without computing."""
    import torch

    from distbench.cores import set_threads

    taken = 0
    if whole is not None:
        set_threads(2)
        begin = monotonic_ns()
        torch.mm(whole[0], whole[1], out=whole[2])
        taken = monotonic_ns() - begin
        set_threads(1)
    world.barrier()
    return taken


if __name__ == "__main__":
    main()
