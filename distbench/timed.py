"""The timed path of a cell, as the measuring loop sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Part = tuple[str, Callable[[], object]]
"""(phase, what it calls)."""


@dataclass(frozen=True)
class Timed:
    """The work inside the window: `run` does it all and ends synchronised; `phases_ns` then tells each phase's time."""

    names: tuple[str, ...]
    run: Callable[[], None]
    phases_ns: Callable[[], list[int]]
    close: Callable[[], None] = lambda: None
    before: Callable[[], None] = lambda: None
    """Called before each sample, outside its window."""
    prepares: bool = False
    """`before` takes time: the ranks wait for each other after it."""
    idle: bool = False
    """This process drives no device: it takes part in the votes, and its times do not count."""


def standing_aside(names: tuple[str, ...], prepares: bool) -> Timed:
    """The timed path of a rank without devices (drive=loop and threads leave them to rank 0)."""
    return Timed(names, lambda: None, lambda: [0] * len(names), prepares=prepares, idle=True)
