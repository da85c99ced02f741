"""The links between ranks, measured in rotating pairs: every rank talks to one other at a time, to all of them in turn."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from distbench.clock import now_ns
from distbench.config import Backend, Config
from distbench.place import Place
from distbench.stats import median
from distbench.world import World

_REPEATS = 7


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Pairs of `count` ranks such that each meets every other once: the circle method of tournaments.

    One rank stands still and the others move on by one place each round; of an odd number one rests in each round.
    """
    seats = list(range(count)) + [-1] * (count % 2)
    half = len(seats) // 2
    told = []
    for _ in range(len(seats) - 1):
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        told.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return told


def some(told: list[list[tuple[int, int]]], most: int) -> list[list[tuple[int, int]]]:
    """At most `most` of the rounds, spread over all."""
    return told if len(told) <= most else [told[index * len(told) // most] for index in range(most)]


def measured(world: World, config: Config, place: Place) -> list[dict[str, Any]]:
    """Every pair's link over the data group, the pairs of a round at once; all ranks call it together.

    Per link: ranks, same_host, bytes, time_s (one way: half of the median round trip), gb_per_s, samples_s (round trips).
    Raises CellFailed where a link brings other numbers than were sent.
    """
    # gloo moves host memory: a copy through the device would be in every time.
    on_host = place.backend is Backend.gloo
    device = torch.device("cpu") if on_host or not place.own else place.own[0][1]
    count = max(1, round(config.health.link_mib * 2**20) // 4)
    own = torch.full((count,), float(world.rank + 1), device=device)
    arrived = torch.empty_like(own)
    told: list[dict[str, Any]] = []
    for pairs in some(rounds(world.size), config.health.rounds):
        times_ns = world.attempt("health", _Round(world, place, pairs, own, arrived).run)
        every = world.gather_json(times_ns)
        for first, second in pairs:
            samples_s = [time_ns / 1e9 for time_ns in every[first]]
            time_s = median(samples_s) / 2
            hosts = {place.ranks[rank]["host"] for rank in (first, second)}
            told.append(
                {
                    "ranks": [first, second],
                    "same_host": len(hosts) == 1,
                    "bytes": 4 * count,
                    "time_s": time_s,
                    "gb_per_s": 4 * count / time_s / 1e9,
                    "samples_s": samples_s,
                }
            )
    return told


class _Round:
    """This rank's part in one round."""

    def __init__(
        self, world: World, place: Place, pairs: list[tuple[int, int]], own: torch.Tensor, arrived: torch.Tensor
    ) -> None:
        self.world, self.backend, self.own, self.arrived = world, str(place.backend), own, arrived
        self.pair = next((pair for pair in pairs if world.rank in pair), None)

    def run(self) -> list[int]:
        """Nanoseconds of each round trip; [] for a rank that rests."""
        if self.pair is None:
            return []
        first, second = self.pair
        other = second if self.world.rank == first else first
        self.arrived.fill_(float("nan"))
        self._trip(first, second)  # warm: the first message of a pair makes the connection
        if not bool((self.arrived == other + 1).all()):
            raise ValueError(f"the link from rank {other} brings other numbers than were sent")
        times = []
        for _ in range(_REPEATS):
            begin = now_ns()
            self._trip(first, second)
            times.append(now_ns() - begin)
        return times

    def _trip(self, first: int, second: int) -> None:
        """To the second rank and back; ends when this rank's part has arrived."""
        group = self.world.data(self.backend)
        if self.world.rank == first:
            dist.send(self.own, second, group=group)
            dist.recv(self.arrived, second, group=group)
        else:
            dist.recv(self.arrived, first, group=group)
            dist.send(self.own, first, group=group)
        if self.own.is_cuda:
            torch.cuda.synchronize(self.own.device)
