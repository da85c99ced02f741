"""A real fault in one rank at one stage: patched into distbench by worker.py, which the tests start in its place.

The fault comes in the cell whose workload.n is N, so that a cell before it and a cell after it can be looked at.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

N = 64
MESSAGE = "put here by the test"
STRUCK_AT = "struck-at"
"""A file in the working folder: when the fault came (time.time())."""
SLOW_S = 7.0
MEASURED_FIRST = 3  # the fault in stage measure comes after so many samples


class Fault:
    """Strikes once."""

    def __init__(self, kind: str, stage: str) -> None:
        self.kind, self.stage = kind, stage
        self.armed = stage == "join"
        self.calls = 0
        self.limit: tuple[int, int] | None = None

    def here(self, stage: str) -> bool:
        if not self.armed or stage != self.stage:
            return False
        self.calls += 1
        if stage == "measure" and self.calls <= MEASURED_FIRST:
            return False
        self.armed = False
        return True

    def strike(self) -> None:
        Path(STRUCK_AT).write_text(str(time.time()))
        match self.kind:
            case "exception":
                raise RuntimeError(MESSAGE)
            case "out of memory":
                allocate_beyond_the_limit()
            case "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            case "SIGSTOP":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "exit 0":
                os._exit(0)
            case "slow":
                time.sleep(SLOW_S)
            case "stuck":
                time.sleep(600)
            case "launcher SIGKILL":
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(600)
            case _:
                raise AssertionError(self.kind)


def allocate_beyond_the_limit() -> None:
    """The address space ends here, and the stage asks for a tensor more: torch's own out-of-memory."""
    import torch

    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (2 << 20), before[1]))
    try:
        torch.empty(1 << 28, dtype=torch.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def install(kind: str, stage: str) -> None:
    """Patch distbench in this process: `kind` happens when `stage` is entered."""
    import distbench.world
    from distbench.alive import Watch
    from distbench.cell import Cell

    fault = Fault(kind, stage)
    open_store, guarded = distbench.world.open_store, distbench.world.World.guarded
    run, enter = Cell.run, Watch.enter

    def opened(*arguments: Any) -> Any:
        store = open_store(*arguments)
        if fault.here("join"):
            fault.strike()
        return store

    def guarded_struck(self: Any, stage: str, step: Callable[[], Any]) -> Any:
        def struck() -> Any:
            fault.strike()
            return step()

        return guarded(self, stage, struck if fault.here(stage) else step)

    def armed_run(self: Any) -> Any:
        fault.armed = self.config.workload.n == N
        return run(self)

    def entered(self: Any, stage: str) -> None:
        enter(self, stage)
        if stage == "record" and fault.here(stage):
            fault.strike()

    distbench.world.open_store = opened
    distbench.world.World.guarded = guarded_struck  # type: ignore[method-assign]
    Cell.run = armed_run  # type: ignore[method-assign]
    Watch.enter = entered  # type: ignore[method-assign]
