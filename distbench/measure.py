"""The timed loop: samples over all ranks, started together, stopped by one rule that rank 0 applies for all."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field

from distbench.clock import now_ns
from distbench.config import Measure, Start
from distbench.stats import median, median_interval
from distbench.timed import Timed
from distbench.world import World

_LATE_NS = 20_000
_LATE_SHARE = 0.01
_FIRST_LEAD_NS = 500_000
_LONGEST_LEAD_NS = 50_000_000
_TRIAL = 8  # samples after which window starts that are late more often than not give way to the barrier
_GO, _STOP, _BARRIER, _LOOK = 1, 0, 2, 3
_LOOK_GAP_NS = 50_000_000
_LOOK_COST = 300  # and at least so many times what the last look took: a third of a percent of the time


@dataclass
class Samples:
    """What was measured. Times are seconds on rank 0's clock; ranks in rank order."""

    span_s: list[float] = field(default_factory=list)
    """Latest end − earliest start over ranks, per kept sample."""
    rank_s: list[list[float]] = field(default_factory=list)
    """Per rank: end − start of each kept sample."""
    start_s: list[list[float]] = field(default_factory=list)
    """Per rank: its start after the earliest rank's, in each kept sample."""
    start_skew_s: list[float] = field(default_factory=list)
    """Latest − earliest start over ranks, per kept sample."""
    phases_s: dict[str, list[list[float]]] = field(default_factory=dict)
    """Per phase, per rank: its time in each kept sample."""
    dropped_span_s: list[float] = field(default_factory=list)
    """Spans of the samples that a late start spoiled."""
    late_starts: list[int] = field(default_factory=list)
    """Per rank: in how many of those its own start was late."""
    start: str = ""
    """How samples were started: window or barrier."""
    start_reason: str | None = None
    converged: bool = False
    stopped_by: str = ""
    clock_error_s: float = 0.0


def measure(
    world: World,
    timed: Timed,
    settings: Measure,
    start: Start,
    reason: str | None,
    clocks: tuple[list[int], list[int]],
    between: Callable[[], None] = lambda: None,
) -> Samples:
    """Take samples until the stop rule says so. All ranks call it together; all return the same samples.

    start: window or barrier, already decided; `reason` says why. clocks: per rank the offset to rank 0's clock and its
    error, ns. between: called now and then on all ranks at once, while none of them is in a window; must not raise.
    Raises CellFailed on all ranks if the work fails on one.
    """
    offsets, errors = clocks
    samples = Samples(
        rank_s=[[] for _ in range(world.size)],
        start_s=[[] for _ in range(world.size)],
        late_starts=[0] * world.size,
        phases_s={name: [[] for _ in range(world.size)] for name in timed.names},
        start=str(start),
        start_reason=reason,
        clock_error_s=max(errors) / 1e9,
    )
    lead_ns = _FIRST_LEAD_NS
    began_ns = look_ns = now_ns()
    gc.collect()
    gc.disable()
    try:
        while True:
            if timed.prepares:
                if _announce(world, samples, settings, began_ns, lead_ns, look_ns)[0] == _STOP:
                    return samples
                timed.before()
                world.barrier()
            action, at_ns = _announce(world, samples, settings, began_ns, lead_ns, look_ns)
            if action == _STOP:
                return samples
            if action == _LOOK:
                looked_ns = now_ns()
                between()
                world.barrier()  # a rank that looks for longer must not be late for the next window
                look_ns = now_ns() + max(_LOOK_GAP_NS, _LOOK_COST * (now_ns() - looked_ns))
                continue
            if action == _BARRIER and samples.start == "window":
                samples.start, samples.start_reason = "barrier", "more than half of the window starts were late"
            row, failure = _one_sample(world, timed, action, at_ns - offsets[world.rank])
            rows = world.gather_ints(row)
            if not all(told[0] for told in rows):
                world.agree(failure)
            if not _keep(samples, timed.names, rows, offsets, at_ns if action == _GO else None):
                lead_ns = min(2 * lead_ns, _LONGEST_LEAD_NS)
            else:
                lead_ns = max(lead_ns * 15 // 16, _FIRST_LEAD_NS)  # one disturbance must not slow all that follows
    finally:
        gc.enable()


def barrier_cost_s(world: World, rounds: int = 11) -> float:
    """Median time of a barrier on the control group, on this rank: what a barrier start costs."""
    times = []
    for _ in range(rounds):
        begin = now_ns()
        world.barrier()
        times.append((now_ns() - begin) / 1e9)
    return median(times)


def _announce(
    world: World, samples: Samples, settings: Measure, began_ns: int, lead_ns: int, look_ns: int = 2**63
) -> tuple[int, int]:
    """Rank 0 decides what comes next and when; everyone learns it. Returns (action, start on rank 0's clock).

    look_ns: when the next look between samples is due.
    """
    action, at_ns = _GO, 0
    if world.is_root:
        samples.stopped_by = _stopped_by(samples, settings, (now_ns() - began_ns) / 1e9)
        late, taken = len(samples.dropped_span_s), len(samples.dropped_span_s) + len(samples.span_s)
        if samples.stopped_by:
            action = _STOP
        elif taken and now_ns() >= look_ns:
            action = _LOOK
        elif samples.start == "barrier" or (taken >= _TRIAL and 2 * late > taken):
            action = _BARRIER
        at_ns = now_ns() + lead_ns
    action, at_ns = world.broadcast_ints([action, at_ns])
    return action, at_ns


def _stopped_by(samples: Samples, settings: Measure, elapsed_s: float) -> str:
    """The stop rule: '' to go on, else what stopped it. The time budget counts dropped samples too."""
    spans = samples.span_s
    samples.converged = _converged(spans, settings.target_rel_ci)
    if elapsed_s < settings.min_time_s:
        return ""
    if len(spans) >= min(settings.min_samples, settings.max_samples) and samples.converged:
        return "target_rel_ci"
    if len(spans) >= settings.max_samples:
        return "max_samples"
    if spans and elapsed_s >= settings.max_time_s:
        return "max_time_s"
    return ""


def _converged(spans: list[float], target: float) -> bool:
    interval = median_interval(spans)
    return interval is not None and (interval[1] - interval[0]) / 2 <= target * median(spans)


def _one_sample(world: World, timed: Timed, action: int, at_ns: int) -> tuple[list[int], dict[str, object] | None]:
    """One window on this rank. Returns ([ok, start, end, phases…] in ns, failure)."""
    times = [0, 0]

    def window() -> None:
        if timed.idle:
            return
        while now_ns() < at_ns:
            pass
        times[0] = now_ns()
        timed.run()
        times[1] = now_ns()

    if action == _BARRIER:
        world.barrier()
        at_ns = 0
    world.watch.open_window()
    _, failure = world.guarded("measure", window)
    world.watch.close_window()
    phases = timed.phases_ns() if failure is None else [0] * len(timed.names)
    return [0 if failure else 1, *times, *phases], failure


def _keep(
    samples: Samples, names: tuple[str, ...], rows: list[list[int]], offsets: list[int], announced_ns: int | None
) -> bool:
    """Add one sample's rows, or set it aside if a start was late. Returns whether it was kept."""
    worked = [(row, offset) for row, offset in zip(rows, offsets, strict=True) if row[2]]  # the others stand aside
    starts = [row[1] + offset for row, offset in worked]
    ends = [row[2] + offset for row, offset in worked]
    span_s = (max(ends) - min(starts)) / 1e9
    if announced_ns is not None and len(rows) > 1:
        typical_s = median(samples.span_s or samples.dropped_span_s or [span_s])
        latest_ns = announced_ns + max(_LATE_NS, _LATE_SHARE * typical_s * 1e9)
        if max(starts) > latest_ns:
            samples.dropped_span_s.append(span_s)
            for rank, (row, offset) in enumerate(zip(rows, offsets, strict=True)):
                samples.late_starts[rank] += row[2] > 0 and row[1] + offset > latest_ns
            return False
    samples.span_s.append(span_s)
    samples.start_skew_s.append((max(starts) - min(starts)) / 1e9)
    for rank, row in enumerate(rows):
        samples.rank_s[rank].append((row[2] - row[1]) / 1e9)
        began_ns = row[1] + offsets[rank] if row[2] else min(starts)  # a rank that stands aside starts nothing
        samples.start_s[rank].append((began_ns - min(starts)) / 1e9)
        for index, name in enumerate(names):
            samples.phases_s[name][rank].append(row[3 + index] / 1e9)
    return True
