"""Ranks that are not alike."""

from __future__ import annotations

from collections.abc import Iterator

from distbench.guards.case import Case, Unknown, Warned


def unequal_threads(case: Case) -> Iterator[Warned]:
    threads = [rank["threads"] for rank in case.ranks]
    if min(threads) != max(threads):
        text = f"the ranks compute with {min(threads)} to {max(threads)} threads: the slowest decides the span"
        yield Warned("unequal_threads", float(min(threads)), float(max(threads)), text)


def unequal_devices(case: Case) -> Iterator[Warned]:
    names = {rank["device_name"] for rank in case.ranks if rank["device_name"]}
    if not names:
        names = {told["cpu"]["model"] for told in case.telemetry or []}
    if len(names) > 1:
        text = f"the ranks compute on different models: {', '.join(sorted(names))}"
        yield Warned("unequal_devices", float(len(names)), 1.0, text)


def unequal_clocks(case: Case) -> Iterator[Warned]:
    if len(case.ranks) < 2:
        return
    clocks = {}
    for rank, told in enumerate(case.told()):
        if not case.devices_of(rank):
            continue
        clock = told["gpu"] and told["gpu"]["sm_clock_mhz"] if case.on_gpu else told["cpu"]["clock_mhz"]
        if not clock or not clock["median"]:
            raise Unknown(f"the clock of rank {rank}'s device is unknown")
        clocks[rank] = clock["median"]
    slowest = min(clocks, key=lambda rank: clocks[rank])
    behind = 1 - clocks[slowest] / max(clocks.values())
    if behind > case.limits.clock_spread:
        text = f"rank {slowest}'s clock is {clocks[slowest]:.0f} MHz, {behind:.1%} below the fastest rank's"
        yield Warned("unequal_clocks", behind, case.limits.clock_spread, text)
