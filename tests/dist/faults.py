"""Faults that a worker puts into distbench on one rank, chosen by the cell's workload.seed."""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fault:
    step: str
    """Where: a stage of the cell, or what is done to it."""
    rank: int
    stage: str
    """The stage that the record must name; '' for a wrong product."""
    run: int = 0
    """Which run of the timed path, from 1."""


FAULTS: dict[int, Fault] = {
    101: Fault("product", 1, "allocate"),
    103: Fault("fill", 0, "fill"),
    105: Fault("before collect", 2, "warm up", run=1),
    107: Fault("before collect", 1, "measure", run=2),
    109: Fault("before collect", 0, "measure", run=4),
    111: Fault("after collect", 2, "measure", run=3),
    113: Fault("expected", 2, "verify"),
    115: Fault("check", 0, "verify"),
    117: Fault("memory", 1, "allocate"),
    119: Fault("corrupt", 1, ""),
}
MESSAGE = "put here by the test"


class _State:
    fault: Fault | None = None
    runs = 0
    limit: tuple[int, int] | None = None


def install(rank: int) -> None:
    """Patch distbench in this process. Cells whose seed has no fault, or one of another rank, go on as they are."""
    import distbench.cell as module
    from distbench import unit, verify

    state = _State()

    def here(step: str) -> bool:
        return state.fault is not None and state.fault.step == step

    def guarded(step: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if here(step):
                raise RuntimeError(MESSAGE)
            return original(*arguments, **named)

        return call

    def begin(self: Any, world: Any, config: Any, *rest: Any) -> None:
        fault = FAULTS.get(config.workload.seed)
        state.fault = fault if fault is not None and fault.rank == rank else None
        state.runs = 0
        original_init(self, world, config, *rest)

    def run(self: Any) -> Any:
        if here("memory"):
            state.limit = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (_mapped_bytes() + (2 << 20), state.limit[1]))
        return original_run(self)

    def close(self: Any) -> None:
        if state.limit is not None:
            resource.setrlimit(resource.RLIMIT_AS, state.limit)
            state.limit = None
        original_close(self)

    def product(self: Any, engine: Any) -> Callable[[], object]:
        if here("product"):
            raise RuntimeError(MESSAGE)
        multiply, collect = original_product(self, engine), self.collect
        after = collect.run

        def wrapped() -> None:
            state.runs += 1
            if here("before collect") and state.fault is not None and state.runs == state.fault.run:
                raise RuntimeError(MESSAGE)
            multiply()
            if here("corrupt"):
                collect.shard.mul_(1.01)

        def collected() -> None:
            after()
            if here("after collect") and state.fault is not None and state.runs == state.fault.run:
                raise RuntimeError(MESSAGE)

        collect.run = collected
        return wrapped

    original_init, original_run, original_close = module.Cell.__init__, module.Cell.run, module.Cell.close
    original_product = unit.Unit._product
    module.Cell.__init__, module.Cell.run, module.Cell.close = begin, run, close
    unit.Unit._product = product
    unit.fill_block = guarded("fill", unit.fill_block)
    verify.expected_part = guarded("expected", verify.expected_part)
    verify.check = guarded("check", verify.check)


def _mapped_bytes() -> int:
    """This process's address space."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    raise RuntimeError("no /proc")
