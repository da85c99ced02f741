"""In what state a cell is measured: settled or not, cold or hot caches, a CUDA graph, several products per sample.

All of it is done outside the timed windows, or replaces what is called in them; the loop in measure.py knows nothing of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distbench import cores
from distbench.clock import now_ns
from distbench.config import Cache, ConfigError, Device, Measure, Mode
from distbench.measure import Samples
from distbench.stats import median
from distbench.telemetry.nvml import Missing, Nvml, load
from distbench.timed import Timed
from distbench.world import World

if TYPE_CHECKING:
    import torch

_SHORTEST_WINDOW_S = 5e-3  # a window holds 20 to 50 µs that are not the products': starts, a launch, a synchronise
_MOST_INNER = 10_000
_CHUNK_S = 0.5
_CHUNKS = 3
_SETTLED = 0.01
_REST_S = 2.0
_UNKNOWN_LLC = 64 << 20
_CPU_CACHES = Path("/sys/devices/system/cpu")


@dataclass
class Told:
    """The record's `samples.mode`."""

    mode: str
    cache: str
    graph: bool
    inner: int = 1
    """Products in each window. The samples' times are of one product: the window's over this number."""
    flush_bytes: int | None = None
    """Written before each window where caches are cold."""
    rest_s: float = 0.0
    settle: dict[str, Any] | None = field(default=None)
    """seconds, rounds, settled; per chunk of rounds the median span and the lowest SM clock of any rank (None: unknown)."""


def told_of(settings: Measure) -> Told:
    return Told(str(settings.mode), str(settings.cache), settings.graph)


def refuse_graph(settings: Measure, device: Device) -> None:
    """A CUDA graph without a GPU. Raises ConfigError."""
    if settings.graph and device is not Device.cuda:
        raise ConfigError("measure.graph", "true", "a CUDA graph needs a GPU, and this cell runs on the CPU: false")


def window_s(world: World, timed: Timed) -> float:
    """Seconds of the timed path's shortest of five runs, of the rank that took longest. All ranks call it together."""
    own_ns = []
    for _ in range(5):
        begin = now_ns()
        world.attempt("warm up", timed.run)
        own_ns.append(now_ns() - begin)
    return float(min(max(row) for row in zip(*world.gather_ints(own_ns), strict=True))) / 1e9


def inner_for(inner: int, row_s: float) -> int:
    """How many products to try next, where `inner` of them filled a window of row_s seconds; `inner` if it is long enough.

    A window costs something of its own (a launch and a synchronise are longer than a small product), so the number that the
    proportion gives is too small at first: ask again after each try.
    """
    if row_s >= 0.9 * _SHORTEST_WINDOW_S:
        return inner
    wanted = math.ceil(inner * _SHORTEST_WINDOW_S / max(row_s, 1e-9))
    return min(_MOST_INNER, 10 * inner, wanted)


def repeated(call: Callable[[], object], count: int) -> Callable[[], object]:
    """`count` calls, one after the other."""
    if count == 1:
        return call

    def run() -> None:
        for _ in range(count):
            call()

    return run


def captured(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The call's kernels as one CUDA graph: what runs it again. The call must have run before, and take no host's part."""
    import torch

    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        call()  # on this stream too: cuBLAS makes its workspace per stream, which a capture may not
    torch.cuda.current_stream(device).wait_stream(side)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        call()
    return graph.replay


def cold(world: World, timed: Timed, devices: list[torch.device], told: Told) -> Timed:
    """The timed path with every device's last-level cache written over before each window."""
    import torch

    if not devices:  # a rank that stands aside waits with the others
        return replace(timed, prepares=True)
    told.flush_bytes = 2 * max(last_level_bytes(device) for device in devices)
    flush_bytes = told.flush_bytes
    buffers = [torch.zeros(flush_bytes // 8, dtype=torch.int64, device=device) for device in devices]

    def before() -> None:
        timed.before()
        for buffer in buffers:
            buffer.add_(1)  # reads and writes every line
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    return replace(timed, before=before, prepares=True)


def last_level_bytes(device: torch.device, caches: Path = _CPU_CACHES) -> int:
    """Bytes of the largest cache of a device; for a CPU that of a core that this process may use."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    folder = caches / f"cpu{cores.affinity()[0]}" / "cache"
    texts = [cores.read(path) or "" for path in folder.glob("index*/size")]
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return max((int(text[:-1]) * units[text[-1]] for text in texts if text[-1:] in units), default=_UNKNOWN_LLC)


def rest_or_settle(world: World, settings: Measure, timed: Timed, uuid: str | None, told: Told) -> None:
    """burst: let the devices rest. settle: run the timed path until its span and the clock stand still, or time is up."""
    if settings.mode is Mode.burst:
        told.rest_s = _REST_S
        time.sleep(_REST_S)
        world.barrier()
    if not settings.settle:
        return
    clock_mhz = _clock_of(uuid)
    began, rounds = time.monotonic(), 0
    spans: list[float] = []
    clocks: list[float | None] = []
    while True:
        chunk = _chunk(world, timed)
        rounds += len(chunk)
        spans.append(median(chunk))
        seen = world.gather_json(clock_mhz())
        clocks.append(None if any(value is None for value in seen) else min(seen))
        done = stands_still(spans, clocks)
        over = time.monotonic() - began >= settings.settle_max_s
        (stop,) = world.broadcast_ints([int(done or over)])
        if stop:
            break
    told.settle = {
        "seconds": time.monotonic() - began,
        "rounds": rounds,
        "settled": done,
        "span_s": spans,
        "sm_clock_mhz": clocks,
    }


def stands_still(spans: list[float], clocks: list[float | None]) -> bool:
    """The last three chunks' spans are within 1 %, and so are their clocks where they are known."""
    last = spans[-_CHUNKS:]
    known = [clock for clock in clocks[-_CHUNKS:] if clock]
    if len(last) < _CHUNKS or max(last) > min(last) * (1 + _SETTLED):
        return False
    return not known or max(known) <= min(known) * (1 + _SETTLED)


def per_product(samples: Samples, inner: int) -> None:
    """Times of windows of `inner` products become those of one, in place; how the ranks started stays as it was."""
    if inner == 1:
        return
    samples.span_s = [value / inner for value in samples.span_s]
    samples.dropped_span_s = [value / inner for value in samples.dropped_span_s]
    samples.rank_s = [[value / inner for value in row] for row in samples.rank_s]
    samples.phases_s = {
        name: [[value / inner for value in row] for row in per_rank] for name, per_rank in samples.phases_s.items()
    }


def _chunk(world: World, timed: Timed) -> list[float]:
    """Seconds of the slowest rank in each of the rounds of half a second."""
    spans, ends = [], time.monotonic() + _CHUNK_S
    while True:
        timed.before()
        world.barrier()
        begin = now_ns()
        world.attempt("settle", timed.run)
        own_ns = 0 if timed.idle else now_ns() - begin
        spans.append(max(row[0] for row in world.gather_ints([own_ns])) / 1e9)
        (more,) = world.broadcast_ints([int(time.monotonic() < ends)])
        if not more:
            return spans


def _clock_of(uuid: str | None) -> Callable[[], float | None]:
    """What reads the SM clock of a rank's GPU; None where there is none or NVML is missing."""
    if uuid is None:
        return lambda: None
    try:
        card = Nvml(load(), uuid)
    except Missing:
        return lambda: None
    return lambda: card.moment()["sm_clock_mhz"]


def is_plain(settings: Measure) -> bool:
    """Nothing here is asked for."""
    return settings.inner == 1 and not settings.graph and settings.cache is Cache.hot
