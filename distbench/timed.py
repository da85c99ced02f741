"""The timed path of a cell: upload, product, collect, with a mark between them. Nothing is allocated inside."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

from distbench.clock import now_ns
from distbench.measure import Timed

if TYPE_CHECKING:
    import torch

Part = tuple[str, Callable[[], object]]


def timed_path(parts: list[Part], device: torch.device) -> Timed:
    """The parts in order as one callable, with each part's time: host clock on the CPU, events on a GPU's stream."""
    return _on_cuda(parts, device) if device.type == "cuda" else _on_cpu(parts)


def _on_cpu(parts: list[Part]) -> Timed:
    marks = [0] * (len(parts) + 1)
    calls = [(index, call) for index, (_, call) in enumerate(parts, 1)]

    def run() -> None:
        marks[0] = now_ns()
        for index, call in calls:
            call()
            marks[index] = now_ns()

    return Timed(
        tuple(name for name, _ in parts),
        run,
        lambda: [after - before for before, after in pairwise(marks)],
    )


def _on_cuda(parts: list[Part], device: torch.device) -> Timed:
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(parts) + 1)]
    calls = [(events[index], call) for index, (_, call) in enumerate(parts, 1)]

    def run() -> None:
        events[0].record()
        for event, call in calls:
            call()
            event.record()
        torch.cuda.synchronize(device)

    return Timed(
        tuple(name for name, _ in parts),
        run,
        lambda: [round(before.elapsed_time(after) * 1e6) for before, after in pairwise(events)],
    )
