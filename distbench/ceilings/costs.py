"""What measuring itself costs: a barrier, and a look at the clock."""

from __future__ import annotations

from collections.abc import Iterator

from distbench.ceilings.rows import Budget, Row
from distbench.clock import now_ns
from distbench.config import Config
from distbench.measure import barrier_cost_s
from distbench.place import Place
from distbench.stats import median
from distbench.world import World

_LOOKS = 10_000


def costs(world: World, config: Config, place: Place, budget: Budget) -> Iterator[Row]:
    """Seconds: the best and the median of some rounds."""
    rounds = []
    for _ in range(11):
        begin = now_ns()
        for _ in range(_LOOKS):
            now_ns()
        rounds.append((now_ns() - begin) / 1e9 / _LOOKS)
    yield Row("clock", "s", min(rounds), median(rounds), rounds, per="look")
    if world.size > 1:
        times = [max(told) for told in zip(*world.gather_json([barrier_cost_s(world) for _ in range(5)]), strict=True)]
        yield Row("barrier", "s", min(times), median(times), times, ranks=world.size, per="group")
