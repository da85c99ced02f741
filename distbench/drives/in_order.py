"""One thread: each phase of a sample is given to one device after the other. With one unit: drive=process."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from distbench.clock import now_ns
from distbench.collects.base import Collect
from distbench.timed import Timed
from distbench.unit import Unit


def in_order(units: list[Unit], collects: bool) -> Timed:
    """The phases in order, and within each the devices in order; ends when all devices are done."""
    phases = [unit.parts(collects) for unit in units]
    if units[0].device.type == "cuda":
        return _on_cuda(units, collects)
    names = tuple(name for name, _ in phases[0])
    calls = [(index, [parts[index - 1][1] for parts in phases]) for index in range(1, len(names) + 1)]
    marks = [0] * (len(names) + 1)

    def run() -> None:
        marks[0] = now_ns()
        for index, row in calls:
            for call in row:
                call()
            marks[index] = now_ns()

    before = before_sample(units)
    return Timed(
        names,
        run,
        lambda: [after - earlier for earlier, after in pairwise(marks)],
        before=before or nothing,
        prepares=before is not None,
    )


def before_sample(units: list[Unit]) -> Callable[[], None] | None:
    """What the units' collects do before each sample, outside its window; None where they do nothing."""
    calls = [unit.collect.before for unit in units if unit.collect and type(unit.collect).before is not Collect.before]

    def all_units() -> None:
        for call in calls:
            call()

    return all_units if calls else None


def nothing() -> None:
    """The `before` of a path that needs none."""


def _on_cuda(units: list[Unit], collects: bool) -> Timed:
    """Events on each device's stream tell the phases; a phase lasts as long as on the device where it lasts longest."""
    import torch

    phases = [unit.parts(collects) for unit in units]
    names = tuple(name for name, _ in phases[0])
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(len(names) + 1)] for _ in units]
    steps = [
        (unit, events[number][index + 1], phases[number][index][1])
        for index in range(len(names))
        for number, unit in enumerate(units)
    ]
    alone = len(units) == 1 and not units[0].streams

    def run_alone() -> None:
        events[0][0].record()
        for _, event, call in steps:
            call()
            event.record()
        torch.cuda.synchronize(units[0].device)

    def run() -> None:
        for unit, marks in zip(units, events, strict=True):
            with unit.context():
                marks[0].record()
        for unit, event, call in steps:
            with unit.context():
                call()
                event.record()
        for unit in units:
            torch.cuda.synchronize(unit.device)

    def phases_ns() -> list[int]:
        return [
            max(round(marks[index].elapsed_time(marks[index + 1]) * 1e6) for marks in events)
            for index in range(len(names))
        ]

    before = before_sample(units)
    return Timed(names, run_alone if alone else run, phases_ns, before=before or nothing, prepares=before is not None)
