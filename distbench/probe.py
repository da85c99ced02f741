"""The limits that a query may run into, measured beside it: copies, the cell's own GEMM alone, and its collective.

measure.limits=true; outside of the samples, after them. Every rate is that of all ranks at work at once: ranks of one
host share its memory, and some share a link or a device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from distbench import cores
from distbench.ceilings.collectives import FACTORS, collective_row
from distbench.ceilings.copies import CPU_BYTES, GPU_BYTES, LINK_BYTES, empty, pattern, same
from distbench.ceilings.rows import Row, repeated
from distbench.config import Config, Device, Drive
from distbench.drives import DRIVES
from distbench.pagelock import PageLock
from distbench.place import Place
from distbench.plan import Plan
from distbench.stats import median
from distbench.unit import Unit
from distbench.world import CellFailed, World

GEMM_ALONE = "GEMM alone"
_LONGEST_S = 0.2
"""Of a row's repetitions, beyond the least number of them."""
_REPEATS = 5
_COPIES_ON_GPU = 10  # within a device's memory, before each synchronise, which takes as long as some percent of one


def limits(world: World, config: Config, place: Place, units: list[Unit], plan: Plan, inner: int) -> dict[str, Any]:
    """rows: see ceilings.rows.Row; phases_host_s: each phase on a GPU by the host's clock, the device awaited after it.

    inner: products that a sample repeats. All ranks call it together and get the same.
    A probe that fails is no failure of the cell: the rows so far, and the reason.
    """
    rows: list[Row] = []
    told: dict[str, Any] = {"phases_host_s": None, "reason": None}
    try:
        for row in _rows(world, config, place, units, plan, inner):
            rows.append(row)
        if place.device is Device.cuda:
            told["phases_host_s"] = _host_phases(world, units)
    except CellFailed as error:  # raised on all ranks alike
        told["reason"] = str(error)
    return {"rows": [vars(row) for row in rows], **told}


def _rows(world: World, config: Config, place: Place, units: list[Unit], plan: Plan, inner: int) -> Iterator[Row]:
    yield _gemm_alone(world, config, units, inner * plan.flop)
    devices = list(dict.fromkeys(device for _, device in place.own))
    yield _memory_copy(world, place, devices)
    if place.device is Device.cuda:
        yield from _links(world, devices)
    name = str(config.collect)
    if name in FACTORS and config.drive is Drive.process and world.size > 1:
        most = LINK_BYTES if place.device is Device.cuda else LINK_BYTES // 4
        yield collective_row(world, str(place.backend), devices[0], name, min(plan.c_bytes, most), _LONGEST_S)


def _gemm_alone(world: World, config: Config, units: list[Unit], flop: int) -> Row:
    """The cell's products with nothing beside them: no copy of what is done, no search in it."""
    whole = [unit.multiply for unit in units]
    for unit in units:
        if unit.collect is not None and unit.collect.pieces() and unit.calls:
            unit.multiply = partial(_in_turn, unit.calls)
    timed = DRIVES[config.drive](units, False) if units else None
    seconds: list[float] = []
    began_s = time.monotonic()

    def once() -> int:
        if timed is None:
            return 0
        timed.run()
        return timed.phases_ns()[timed.names.index("gemm")]

    try:
        while True:
            world.barrier()
            own_ns = world.attempt("limits", once)
            seconds.append(max(row[0] for row in world.gather_ints([own_ns])) / 1e9)
            enough = len(seconds) > _REPEATS or (len(seconds) > 1 and time.monotonic() - began_s > 1)
            (stop,) = world.broadcast_ints([int(enough)])
            if stop:
                break
    finally:
        if timed is not None:
            timed.close()
        for unit, multiply in zip(units, whole, strict=True):
            unit.multiply = multiply
    row = Row(GEMM_ALONE, "TFLOP/s", dtype=str(config.workload.dtype), engine=str(config.engine), ranks=world.size)
    row.per, row.verified = "group", True  # the very calls that have been verified
    return row.rated(flop / 1e12, seconds[1:])  # the first is warm-up


def _in_turn(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _memory_copy(world: World, place: Place, devices: list[torch.device]) -> Row:
    """Bytes read and bytes written both count."""
    on_gpu = place.device is Device.cuda
    count, several = (GPU_BYTES, _COPIES_ON_GPU) if on_gpu else (CPU_BYTES, 1)
    pairs = world.attempt("limits", lambda: [(empty(count, device), pattern(count, device)) for device in devices])
    threads = min(place.threads * max(1, len(place.own)), len(cores.affinity()))

    def work() -> None:
        for _ in range(several):
            _copy_all(pairs)
        _settle(devices)

    cores.set_threads(threads)  # one process with several shares of the cores has them all
    try:
        seconds = [value / several for value in repeated(world, work, _LONGEST_S)]
    finally:
        cores.set_threads(place.threads)
    return _copied(world, "memory copy", 2 * count, pairs, seconds)


def _links(world: World, devices: list[torch.device]) -> Iterator[Row]:
    """Between host and devices, in pageable and in page-locked memory, each direction alone."""
    host = torch.device("cpu")
    for kind in ("pageable", "pinned"):
        locks: list[PageLock] = []
        to: list[tuple[torch.Tensor, torch.Tensor]] = []
        back: list[tuple[torch.Tensor, torch.Tensor]] = []

        def make(kind: str = kind, locks: list[PageLock] = locks, to: Any = to, back: Any = back) -> None:
            for device in devices:
                source, target = empty(LINK_BYTES, host), empty(LINK_BYTES, host)
                if kind == "pinned":
                    locks += [PageLock(source), PageLock(target)]
                source.copy_(pattern(LINK_BYTES, host))  # after locking, which writes every page
                to.append((empty(LINK_BYTES, device), source))
                back.append((target, pattern(LINK_BYTES, device)))

        try:
            world.attempt("limits", make)
            for name, pairs in ((f"host to device, {kind}", to), (f"device to host, {kind}", back)):
                seconds = repeated(world, partial(_copy_and_settle, pairs, devices), _LONGEST_S)
                yield _copied(world, name, LINK_BYTES, pairs, seconds)
        finally:
            for lock in locks:
                lock.release()


def _copied(
    world: World, name: str, counted: int, pairs: list[tuple[torch.Tensor, torch.Tensor]], seconds: list[float]
) -> Row:
    """The row of copies whose target and source are now compared. counted: bytes of one of them."""

    def compare() -> None:
        for target, source in pairs:
            same(source, target)

    world.attempt("limits", compare)
    copies = sum(told[0] for told in world.gather_ints([len(pairs)]))
    row = Row(name, "GB/s", bytes=copies * counted, ranks=world.size, per="group", verified=True)
    return row.rated(copies * counted / 1e9, seconds)


def _copy_and_settle(pairs: list[tuple[torch.Tensor, torch.Tensor]], devices: list[torch.device]) -> None:
    _copy_all(pairs)
    _settle(devices)


def _copy_all(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for target, source in pairs:
        target.copy_(source, non_blocking=True)


def _settle(devices: list[torch.device]) -> None:
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _host_phases(world: World, units: list[Unit]) -> dict[str, float]:
    """Seconds of each phase of the slowest rank, the median of some rounds."""
    phases = [unit.parts(bool(unit.collect)) for unit in units]
    names = [name for name, _ in phases[0]] if units else []

    def once() -> list[float]:
        told = []
        for index in range(len(names)):
            begin = time.perf_counter()
            for unit, parts in zip(units, phases, strict=True):
                with unit.context():
                    parts[index][1]()
            for unit in units:
                unit.settle()
            told.append(time.perf_counter() - begin)
        return told

    rounds = []
    for _ in range(_REPEATS):
        for unit in units:
            assert unit.collect is not None
            unit.collect.before()
        world.barrier()
        own = world.attempt("limits", once)
        rounds.append([times for times in world.gather_json(own) if times])
    slowest = [[max(times) for times in zip(*told, strict=True)] for told in rounds]
    return {name: median([told[index] for told in slowest]) for index, name in enumerate(names)}
