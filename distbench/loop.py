"""A plain loop over a cell's work after its samples, as a notebook would time it: none of it is part of the result."""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distbench.timed import Timed
    from distbench.unit import Unit


LOOPS, REPEATS = 5, 4
"""Of %%timeit: 20 samples are read as -n 5 -r 4."""


def looped(timed: Timed, units: list[Unit], count: int) -> dict[str, Any]:
    """Seconds of this rank, by the host's clock.

    cumulative_s: [count], since the loop began, after each run; every run ends synchronised.
    unsynchronised_s: [count], each product's call alone. The CPU returns when it is done; a GPU has only been told.
    page_faults_per_run: minor faults of this process over the first loop ÷ count.
    copy_s: A and B from pageable host memory to the devices, once; None where they are in host memory.
    """
    cumulative: list[float] = []
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    begin = time.perf_counter()
    for _ in range(count):
        timed.before()
        timed.run()
        cumulative.append(time.perf_counter() - begin)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    called: list[float] = []
    for _ in range(count):
        begin = time.perf_counter()
        for unit in units:
            assert unit.multiply is not None
            with unit.context():
                unit.multiply()
        called.append(time.perf_counter() - begin)
        _settle(units)  # or a full launch queue would make a later call wait
    told = {"cumulative_s": cumulative, "unsynchronised_s": called, "copy_s": _copy_s(units)}
    return told | {"page_faults_per_run": faults / count}


def _copy_s(units: list[Unit]) -> float | None:
    if not units or units[0].device.type != "cuda":
        return None
    pairs = [(operand, operand.cpu()) for unit in units for operand in (unit.a, unit.b)]
    _settle(units)
    begin = time.perf_counter()
    for operand, source in pairs:
        operand.copy_(source)
    _settle(units)
    return time.perf_counter() - begin


def _settle(units: list[Unit]) -> None:
    for unit in units:
        unit.settle()
