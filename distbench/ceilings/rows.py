"""One measured ceiling, and how it is sampled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from distbench.clock import now_ns
from distbench.stats import median
from distbench.world import World

MOST_REPEATS = 30
LEAST_REPEATS = 5


@dataclass
class Row:
    """value is the best (the ceiling), in `unit`; None with the reason where it could not be measured."""

    name: str
    unit: str
    value: float | None = None
    median: float | None = None
    samples: list[float] = field(default_factory=list)
    """Seconds of each repetition: of the slowest rank where ranks take part together."""
    dtype: str | None = None
    bytes: int | None = None
    ranks: int = 1
    engine: str | None = None
    threads: int | None = None
    n: int | None = None
    """Of an n × n × n product."""
    per: str = "device"
    """What the value is of: a device, a host, or the group of all ranks."""
    busbw: float | None = None
    """A collective's bus bandwidth, GB/s, of the best repetition."""
    verified: bool = False
    reason: str | None = None

    def rated(self, work: float, seconds: list[float]) -> Row:
        """With the rate of `work` in each of these repetitions: the best, and the median."""
        self.samples, self.value, self.median = seconds, work / min(seconds), work / median(seconds)
        return self


class Budget:
    """Time for a part of the ceilings; rank 0's clock decides for all."""

    def __init__(self, world: World, ends_s: float) -> None:
        self.world, self.ends_s = world, ends_s

    def left_s(self) -> float:
        """Seconds left, the same number on all ranks."""
        (left_ms,) = self.world.broadcast_ints([round(1e3 * (self.ends_s - time.monotonic()))])
        return left_ms / 1e3


def together(ranks: list[dict[str, Any]]) -> int:
    """How many ranks work at once on what a value is of: on rank 0's GPU, or on its host where they compute on the CPU."""
    shared = [rank["device_uuid"] or rank["host"] for rank in ranks]
    return shared.count(shared[0])


def repeated(world: World, work: Callable[[], object], longest_s: float, inner: int = 1) -> list[float]:
    """Seconds of one `work`, of the slowest rank, in each repetition of `inner` of them; at least five repetitions.

    work ends synchronised, or costs inner its own synchronisation. All ranks call this together; every repetition
    begins with a barrier. Raises CellFailed on all ranks if it fails on one.
    """
    seconds: list[float] = []
    began_ns = now_ns()

    def once() -> int:
        begin = now_ns()
        for _ in range(inner):
            work()
        return now_ns() - begin

    world.attempt("ceilings", once)  # warm
    while True:
        world.barrier()
        own_ns = world.attempt("ceilings", once)
        seconds.append(max(row[0] for row in world.gather_ints([own_ns])) / 1e9 / inner)
        enough = len(seconds) >= LEAST_REPEATS and (now_ns() - began_ns) / 1e9 > longest_s
        (stop,) = world.broadcast_ints([int(enough or len(seconds) >= MOST_REPEATS)])
        if stop:
            return seconds
