"""Plots of one cell: its samples over time, its ranks, and a timeline of one sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from distbench.show.report.attribution import middle_sample
from distbench.show.report.figures import (
    COLOURS,
    PHASE_COLOURS,
    PHASE_NAMES,
    Figure,
    axis,
    text,
    thinned,
    time_unit,
)
from distbench.show.runs import Record, Run, per_rank
from distbench.show.units import seconds
from distbench.stats import median

_MOST_BOXES = 32
_MOST_LANES = 48


def details(run: Run, item: Record) -> list[Figure]:
    """The plots that an ok cell's samples support."""
    samples = per_rank(run, item)
    drawn = [_over_time(item, samples), _ranks(item, samples), _timeline(item, samples)]
    return [figure for figure in drawn if figure is not None]


def _over_time(item: Record, samples: dict[str, Any]) -> Figure:
    spans = samples["span_s"]
    factor, unit = time_unit(max(spans))
    shown = thinned(spans)
    middle = item["result"]["time_s"] * factor
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "span",
            "x": shown,
            "y": [spans[index] * factor for index in shown],
            "marker": {"color": COLOURS[0], "size": 6},
            "hovertemplate": f"sample %{{x}}<br>span %{{y:.5g}} {unit}<extra></extra>",
        },
        _running_median(spans, factor),
    ]
    shapes = [_line(middle, "solid")]
    interval = item["result"]["time_ci_s"]
    if interval:
        low, high = (value * factor for value in interval)
        band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": low, "y1": high}
        shapes.append(band | {"fillcolor": COLOURS[0], "opacity": 0.15, "line": {"width": 0}})
    notes = [
        f"{len(spans)} samples in order; line: median {seconds(item['result']['time_s'])}, band: its 95 % interval"
    ]
    if len(shown) < len(spans):
        notes.append(f"{len(shown)} of them are drawn, the lowest and highest of each stretch")
    if samples.get("dropped_late"):
        notes.append(f"{samples['dropped_late']} more started late and were dropped")
    layout = {"xaxis": axis("sample"), "yaxis": axis(f"span, {unit}"), "shapes": shapes, "showlegend": True}
    return Figure("Spans over time", "; ".join(notes) + ".", [trace for trace in data if trace["x"]], layout)


def _running_median(spans: list[float], factor: float) -> dict[str, Any]:
    """Medians of stretches of the samples: drift shows. Empty for a few samples."""
    stretches = min(40, len(spans) // 10)
    parts = np.array_split(np.asarray(spans), stretches) if stretches > 2 else []
    ends = np.cumsum([len(part) for part in parts])
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "median of a stretch",
        "x": [float(end - len(part) / 2) for end, part in zip(ends, parts, strict=True)],
        "y": [float(np.median(part)) * factor for part in parts],
        "line": {"color": COLOURS[1]},
        "hoverinfo": "skip",
    }


def _line(y: float, dash: str) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"color": "#0072b2", "dash": dash},
    }


def _ranks(item: Record, samples: dict[str, Any]) -> Figure | None:
    """A box per rank, or for many ranks their quantiles along the ranks."""
    rank_s = samples.get("rank_s")
    working = _working(rank_s or [])
    if not rank_s or len(working) < 2:
        return None
    medians = [median(times) for times in rank_s]
    slowest = max(working, key=medians.__getitem__)
    host = text(item["world"]["ranks"][slowest].get("host", "?"))
    factor, unit = time_unit(max(medians))
    note = (
        f"Slowest: rank {slowest} on {host}, median {seconds(medians[slowest])}, where the ranks' median is "
        f"{seconds(median([medians[rank] for rank in working]))} and the fastest's "
        f"{seconds(min(medians[rank] for rank in working))}."
    )
    layout = {"xaxis": axis("rank"), "yaxis": axis(f"time of a rank, {unit}")}
    if len(rank_s) > _MOST_BOXES:
        return Figure("Ranks", note, _quantiles(rank_s, medians, slowest, factor, unit), layout)
    data = []
    for rank in working:
        times, told = rank_s[rank], item["world"]["ranks"][rank]
        name = f"rank {rank} ({told.get('host')}, {told.get('device')})"
        data.append(
            {
                "type": "box",
                "name": str(rank),
                "y": [times[index] * factor for index in thinned(times, 400)],
                "marker": {"color": COLOURS[1] if rank == slowest else COLOURS[0], "size": 3},
                "boxpoints": "outliers",
                "hovertemplate": f"{text(name)}<br>%{{y:.5g}} {unit}<extra></extra>",
            }
        )
    return Figure("Ranks", note, data, layout | {"showlegend": False, "xaxis": axis("rank", type="category")})


def _working(rank_s: list[list[float]]) -> list[int]:
    """The ranks that drive a device: the others stand aside, and their times are 0."""
    return [rank for rank, times in enumerate(rank_s) if any(times)]


def _quantiles(
    rank_s: list[list[float]], medians: list[float], slowest: int, factor: float, unit: str
) -> list[dict[str, Any]]:
    low, high = (np.quantile(np.asarray(rank_s), share, axis=1) * factor for share in (0.05, 0.95))
    lines = [("p95", high.tolist()), ("median", [value * factor for value in medians]), ("p5", low.tolist())]
    data: list[dict[str, Any]] = []
    for number, (name, values) in enumerate(lines):
        shown = thinned(values)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": shown,
                "y": [values[index] for index in shown],
                "line": {"color": COLOURS[number], "width": 1},
                "hovertemplate": f"rank %{{x}}<br>{name} %{{y:.5g}} {unit}<extra></extra>",
            }
        )
    mark = {"type": "scatter", "mode": "markers", "name": "slowest", "x": [slowest], "y": [medians[slowest] * factor]}
    return [
        *data,
        mark | {"marker": {"color": "#000000", "size": 9}, "hovertemplate": f"rank {slowest}<extra></extra>"},
    ]


def _timeline(item: Record, samples: dict[str, Any]) -> Figure | None:
    """One sample, the one nearest the median: when each rank began, and its phases one after the other."""
    rank_s, phases_s, start_s = samples.get("rank_s"), samples.get("phases_s"), samples.get("start_s")
    if not rank_s or not phases_s or (not start_s and len(rank_s) > 1):
        return None  # records older than starts
    index = middle_sample(samples)
    starts = [times[index] for times in start_s] if start_s else [0.0]
    lengths, many = [times[index] for times in rank_s], ""
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    lanes = sorted(_working(rank_s), key=ends.__getitem__)
    if len(lanes) > _MOST_LANES:
        many = f" The {_MOST_LANES // 2} ranks that ended first and the {_MOST_LANES // 2} that ended last."
        lanes = [*lanes[: _MOST_LANES // 2], *lanes[-_MOST_LANES // 2 :]]
    lanes.sort()
    factor, unit = time_unit(max(ends))
    names = [f"rank {rank}" for rank in lanes]
    at = {rank: starts[rank] for rank in lanes}
    overlap = samples.get("phases_overlap", False)
    if overlap:  # one after the other they would be longer than the sample
        parts = [("sample", [lengths[rank] for rank in lanes])]
    else:
        parts = [
            (PHASE_NAMES.get(name, name), [values[rank][index] for rank in lanes]) for name, values in phases_s.items()
        ]
        spent = [sum(values[rank][index] for values in phases_s.values()) for rank in lanes]
        parts.append(("rest", [max(0.0, lengths[rank] - told) for rank, told in zip(lanes, spent, strict=True)]))
    data = []
    for name, values in parts:
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": names,
                "base": [at[rank] * factor for rank in lanes],
                "x": [value * factor for value in values],
                "marker": {"color": PHASE_COLOURS[name]},
                "hovertext": [_lane(item, rank, name, v, at[rank]) for rank, v in zip(lanes, values, strict=True)],
                "hoverinfo": "text",
            }
        )
        for rank, value in zip(lanes, values, strict=True):
            at[rank] += value
    layout = {
        "barmode": "overlay",
        "xaxis": axis(f"after the first rank's start, {unit}", rangemode="tozero"),
        "yaxis": axis("", type="category", autorange="reversed"),
        "height": max(220, 130 + 22 * len(lanes)),
        "bargap": 0.25,
    }
    error = samples.get("clock_error_s") or 0.0
    clock = f" The hosts' clocks are known to ± {seconds(error)}." if error else ""
    drawn = (
        "its phases overlap and are not drawn apart"
        if overlap
        else "phases one after the other from each rank's start; rest is launching and synchronising"
    )
    note = f"Sample {index}, the one nearest the median, on rank 0's clock; {drawn}."
    note += many + clock
    return Figure("Timeline of one sample", note, data, layout)


def _lane(item: Record, rank: int, phase: str, length_s: float, begin_s: float) -> str:
    host = text(item["world"]["ranks"][rank].get("host", "?"))
    return f"rank {rank} ({host})<br>{phase} {seconds(length_s)}<br>from {seconds(begin_s)}"
