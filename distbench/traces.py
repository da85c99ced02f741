"""What a profiler's trace tells: pure functions on its events (Chrome's trace format, times in microseconds)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from distbench.stats import median

Event = dict[str, Any]
Span = tuple[float, float]
"""(start, end), microseconds."""

ANCHOR = "anchor"
_COPIES = ("gpu_memcpy", "gpu_memset")
NO_KERNELS = "no kernels in the trace: the products ran on the CPU, and their named ranges were used"


def shift_us(events: list[Event], anchors: list[tuple[int, int]]) -> tuple[float, float]:
    """(µs to add to the events' times to get CLOCK_MONOTONIC, the error of that).

    anchors: for each range named `anchor`, in order, the clock in ns just before and just after it. The one that took
    the shortest counts. Raises ValueError where the trace lacks them.
    """
    ranges = sorted(_spans(e for e in events if e.get("name") == ANCHOR and e.get("cat") == "user_annotation"))
    if not ranges or len(ranges) != len(anchors):
        raise ValueError(f"the trace has {len(ranges)} of {len(anchors)} anchors")
    took, index = min((after - before, index) for index, (before, after) in enumerate(anchors))
    middle = sum(anchors[index]) / 2e3
    return middle - sum(ranges[index]) / 2, took / 2e3


def merge(traces: list[tuple[int, list[Event], float]]) -> dict[str, Any]:
    """One trace of several ranks, each (rank, events, µs to add): the process of an event is its rank.

    A track is named by the rank's own process and thread, since a rank's devices are processes of its own trace.
    """
    merged: list[Event] = []
    for rank, events, shift in traces:
        merged.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}})
        merged.append({"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}})
        for event in events:
            if str(event.get("name", "")).startswith("process_"):
                continue
            moved = event | {"pid": rank}
            if event.get("cat") in ("kernel", *_COPIES, "gpu_user_annotation"):
                moved["tid"] = f"device {event.get('pid')} stream {event.get('tid')}"
            if "ts" in event:
                moved["ts"] = event["ts"] + shift
            if "id" in event:  # flows: ids are only unique within a rank
                moved["id"] = f"{rank}.{event['id']}"
            merged.append(moved)
    return {"displayTimeUnit": "ms", "traceEvents": merged}


def facts(events: list[Event]) -> dict[str, Any]:
    """What a merged trace tells about kernels, gaps, overlap and launches; times in seconds, summed over devices.

    Gaps are looked for per device and within each range named `sample …`, so that the time between samples is none;
    copies overlap with the kernels of their own device only. On the CPU a rank is a device.
    """
    own = [e for e in events if e.get("cat") == "user_annotation" and e.get("ph") == "X"]
    kernels = [e for e in events if e.get("cat") == "kernel" and e.get("ph") == "X"]
    if kernels:
        work, moves = _by_device(kernels), _by_device([e for e in events if e.get("cat") == "gpu_memcpy"])
    else:
        products = [e for e in own if _is(e, "shard")] or [e for e in own if _is(e, "gemm")]
        work = _by_device(products)
        moves = _by_device([e for e in own if _is(e, "collect") or _is(e, "h2d")])
    windows = _by_device([e for e in own if _is(e, "sample")])
    gap = busy = moved = both = 0.0
    for device, spans in work.items():
        idle, ran = gaps(spans, windows.get((device[0], 0), []))
        gap, busy = gap + idle, busy + ran
    for device, spans in moves.items():
        moved += sum(end - start for start, end in union(spans))
        both += common(spans, work.get(device, []))
    told: dict[str, Any] = {
        "of": "kernels" if kernels else "ranges",
        "gap_s": gap / 1e6 if work else None,
        "gap_share": gap / (gap + busy) if gap + busy else None,
        "overlap_share": both / moved if moved else None,
        "kernels_per_stream": None,
        "launch_delay_s": None,
        "reason": None if kernels else NO_KERNELS,
    }
    if kernels:
        names = (f"rank {e['pid']} device {e['args']['device']} stream {e['args']['stream']}" for e in kernels)
        told["kernels_per_stream"] = dict(sorted(Counter(names).items()))
        told["launch_delay_s"] = launch_delay(events, kernels)
    return told


def launch_delay(events: list[Event], kernels: list[Event]) -> dict[str, float] | None:
    """Median and largest time in seconds from the start of a launch call to the start of its kernel."""
    calls = {
        (e["pid"], e["args"]["correlation"]): e["ts"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    keys = [((e["pid"], e["args"].get("correlation")), e["ts"]) for e in kernels]
    delays = [(start - calls[key]) / 1e6 for key, start in keys if key in calls]
    return {"median": median(delays), "max": max(delays)} if delays else None


def union(spans: list[Span]) -> list[Span]:
    """The time that any of the spans covers, as spans that do not touch, in order."""
    covered: list[Span] = []
    for start, end in sorted(spans):
        if covered and start <= covered[-1][1]:
            covered[-1] = (covered[-1][0], max(end, covered[-1][1]))
        else:
            covered.append((start, end))
    return covered


def gaps(work: list[Span], windows: list[Span]) -> tuple[float, float]:
    """(time without work between the first and the last of it, time with it), summed over the windows it starts in."""
    gap = busy = 0.0
    for begin, end in windows or [(float("-inf"), float("inf"))]:
        covered = union([span for span in work if begin <= span[0] < end])
        if covered:
            length = sum(stop - start for start, stop in covered)
            busy += length
            gap += covered[-1][1] - covered[0][0] - length
    return gap, busy


def common(some: list[Span], others: list[Span]) -> float:
    """The time that both cover."""
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in union(some) for b in union(others))


def _is(event: Event, name: str) -> bool:
    return str(event["name"]).split(" ")[0] == name


def _spans(events: Any) -> list[Span]:
    return [(e["ts"], e["ts"] + e.get("dur", 0)) for e in events if e.get("ph") == "X"]


def _by_device(events: list[Event]) -> dict[tuple[Any, int], list[Span]]:
    """Spans by (rank, number of the device; 0 for ranges of the host)."""
    spans: dict[tuple[Any, int], list[Span]] = {}
    for event in events:
        device = event.get("args", {}).get("device", 0)
        spans.setdefault((event["pid"], device), []).extend(_spans([event]))
    return spans
