"""Clocks: which ranks share one, and how far apart those are that do not."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distbench.world import World

_ROUNDS = 40


def now_ns() -> int:
    """CLOCK_MONOTONIC in nanoseconds: one clock for all processes of a host (boot and time namespace)."""
    return time.monotonic_ns()


def domain() -> str:
    """Names the clock that this process reads: equal names, equal clocks."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = f"pid {os.getpid()}"  # unknown: share with nobody
    try:
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:
        namespace = "time:[only]"
    return f"{boot} {namespace}"


def offsets_to_rank0(world: World, domains: list[str]) -> tuple[list[int], list[int]]:
    """Per rank: nanoseconds to add to its clock to get rank 0's, and the largest error of that.

    Ranks that share rank 0's clock have 0 and 0. The others exchange messages with rank 0: the round trip that took
    the shortest bounds the error by half of it (Cristian, 1989). All ranks call this together.
    """
    offsets, errors = [0] * world.size, [0] * world.size
    for rank in range(1, world.size):
        if domains[rank] == domains[0]:
            continue
        first = domains.index(domains[rank])
        if first < rank:  # another rank with the same clock was measured already
            offsets[rank], errors[rank] = offsets[first], errors[first]
            continue
        best = _ping_pong(world, rank)
        offsets[rank], errors[rank] = world.broadcast_ints(list(best), source=rank)
    return offsets, errors


def _ping_pong(world: World, peer: int) -> tuple[int, int]:
    """(offset, error) in nanoseconds, known on `peer`; rank 0 answers, the others do nothing."""
    best = (0, 2**62)
    if world.rank == peer:
        for _ in range(_ROUNDS):
            sent = now_ns()
            world.send_int(0, 0)
            answer = world.receive_int(0)
            received = now_ns()
            error = (received - sent) // 2 + 1
            if error < best[1]:
                best = (answer - (sent + received) // 2, error)
    elif world.rank == 0:
        for _ in range(_ROUNDS):
            world.receive_int(peer)
            world.send_int(now_ns(), peer)
    return best
