"""profile=torch: a few samples more, of the same work, under torch's profiler. None of them is a reported one."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distbench import traces
from distbench.clock import now_ns

if TYPE_CHECKING:
    from distbench.timed import Timed
    from distbench.world import World

SAMPLES = 3
_ANCHORS = 5


@contextmanager
def named(name: str, cuda: bool) -> Iterator[None]:
    """A range in torch's trace and, on a GPU, in that of Nsight Systems."""
    import torch

    with torch.profiler.record_function(name):
        if cuda:
            torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            if cuda:
                torch.cuda.nvtx.range_pop()


def ranged(name: str, call: Callable[[], object], cuda: bool) -> Callable[[], object]:
    """`call` within a range."""

    def within() -> object:
        with named(name, cuda):
            return call()

    return within


class RangedEngine:
    """An engine whose prepared products are ranges, numbered in the order in which they were prepared."""

    def __init__(self, engine: Any, part: int, cuda: bool) -> None:
        self.engine, self.part, self.cuda, self.count = engine, part, cuda, 0

    def prepare(self, *operands: Any) -> Callable[[], object]:
        return self._named(self.engine.prepare(*operands))

    def prepare_scaled(self, *operands: Any) -> Callable[[], object]:
        return self._named(self.engine.prepare_scaled(*operands))

    def _named(self, call: Callable[[], object]) -> Callable[[], object]:
        self.count += 1
        return ranged(f"shard {self.part}.{self.count - 1}", call, self.cuda)


def profiled(world: World, timed: Timed, cell: str, folder: Path, offset_ns: int, cuda: bool) -> dict[str, Any]:
    """Take the samples, write each rank's trace and rank 0's merged one; the record's `trace`. All ranks together.

    timed: the path with ranges in it. offset_ns: what makes this rank's clock rank 0's.
    Raises CellFailed on all ranks if a sample fails on one.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    timed.before()
    world.attempt("profile", timed.run)  # what is prepared anew is set up outside the trace
    wanted = Path(world.broadcast_json(str(folder.resolve()) if world.is_root else None))
    place = wanted if wanted.is_dir() else Path(tempfile.mkdtemp(prefix="distbench-trace-"))
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    anchors = []
    profiler = profile(activities=activities, experimental_config=_all_threads())
    with _quiet():
        profiler.start()
    try:
        for _ in range(_ANCHORS):
            before = now_ns()
            with torch.profiler.record_function(traces.ANCHOR):
                pass
            anchors.append((before, now_ns()))
        for index in range(SAMPLES):
            timed.before()
            world.barrier()
            world.attempt("profile", partial(_sample, timed, index, cuda))
    finally:
        with _quiet():
            profiler.stop()
    path = place / f"trace-{cell}-rank{world.rank}.json"

    def written() -> float:
        profiler.export_chrome_trace(str(path))
        shift, error = traces.shift_us(_events(path), anchors)
        own.append((shift + offset_ns / 1e3, error))
        return error

    own: list[tuple[float, float]] = []
    world.attempt("profile", written)
    told = world.gather_json([str(path), socket.gethostname(), *own[0]])
    return _merged(told, wanted / f"trace-{cell}.json") if world.is_root else {}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the notes that the profiler writes to stderr on starting and stopping (torch 2.13) from the user's eyes."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            for line in file:
                if not line.startswith(b"USDT:"):
                    os.write(2, line)


def _sample(timed: Timed, index: int, cuda: bool) -> None:
    if timed.idle:
        return
    with named(f"sample {index}", cuda):
        timed.run()


def _merged(told: list[list[Any]], target: Path) -> dict[str, Any]:
    """Rank 0: the traces that it can read as one file, and what they tell."""
    readable, elsewhere = [], []
    for rank, (path, host, shift, _) in enumerate(told):
        if Path(path).is_file() and Path(path).parent == target.parent:
            readable.append((rank, _events(Path(path)), shift))
        else:
            elsewhere.append(f"{host}:{path}")
    merged = traces.merge(readable)
    target.write_text(json.dumps(merged))
    files = [target.name, *(Path(told[rank][0]).name for rank, _, _ in readable)]
    facts = traces.facts(merged["traceEvents"])
    error_s = max(row[3] for row in told) / 1e6
    return {"samples": SAMPLES, "files": files, "elsewhere": elsewhere, "clock_error_s": error_s} | facts


def _events(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def _all_threads() -> Any:
    """drive=threads gives its samples from other threads, which the profiler leaves out unless it is told."""
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(profile_all_threads=True)
    except TypeError:  # an older torch: those threads are missing
        return None
