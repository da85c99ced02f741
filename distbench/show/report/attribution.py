"""Whose time a span was: the rank that ended last, part by part."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from distbench.show.report.figures import PHASE_COLOURS, PHASE_NAMES, Figure, axis, text, time_unit
from distbench.show.runs import Record, Run, named_together, per_rank

_MOST_BARS = 40
Cells = list[tuple[Run, Record]]


def where_time_went(samples: dict[str, Any]) -> dict[str, float]:
    """Seconds by part (start, upload, GEMM, collect, rest) that sum to the mean span of the middle half of the samples.

    Of each sample the rank that ends last is followed: it started so much after the first rank, spent its phases, and
    the rest in launching and synchronising. Empty where the record keeps nothing per rank, and where phases overlap.
    """
    if not samples.get("rank_s") or not samples.get("phases_s") or samples.get("phases_overlap"):
        return {}
    spans = np.asarray(samples["span_s"], dtype=float)
    rank_s = np.asarray(samples["rank_s"], dtype=float)
    start_s = samples.get("start_s")
    # Without starts (older records) the rank that took longest stands for the one that ended last.
    last = np.argmax(rank_s if not start_s else rank_s + np.asarray(start_s, dtype=float), axis=0)
    middle = np.argsort(spans)[len(spans) // 4 : max(len(spans) // 4 + 1, len(spans) - len(spans) // 4)]
    at = (last[middle], middle)
    own = rank_s[at]
    parts = {"start": np.maximum(spans[middle] - own, 0.0)}
    for name, values in samples["phases_s"].items():
        parts[PHASE_NAMES.get(name, name)] = np.asarray(values, dtype=float)[at]
    parts["rest"] = np.maximum(own - sum(parts[name] for name in parts if name != "start"), 0.0)
    return {name: float(np.mean(values)) for name, values in parts.items()}


def middle_sample(samples: dict[str, Any]) -> int:
    """The index of the sample whose span is nearest the median."""
    spans = np.asarray(samples["span_s"], dtype=float)
    return int(np.argmin(np.abs(spans - np.median(spans))))


def phases(cells: Cells) -> Figure | None:
    """Stacked bars: each cell's span, divided."""
    shown = cells[:_MOST_BARS]
    parts = [where_time_went(per_rank(run, item)) for run, item in shown]
    told = [(cell, part) for cell, part in zip(shown, parts, strict=True) if part]
    if not told:
        return None
    runs = list({id(run): run for run, _ in cells}.values())
    names = {id(item): name for _, item, name in named_together(runs)}
    labels = _distinct([text(names[id(item)]) for (_, item), _ in told])
    data = []
    for name, colour in PHASE_COLOURS.items():
        seconds_of = [part.get(name, 0.0) for _, part in told]
        if not any(seconds_of):
            continue
        totals = [sum(part.values()) for _, part in told]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": labels,
                "x": [100 * value / total for value, total in zip(seconds_of, totals, strict=True)],
                "marker": {"color": colour},
                "hovertext": [
                    f"{label}<br>{name} {_time(value)}" for label, value in zip(labels, seconds_of, strict=True)
                ],
                "hoverinfo": "text",
            }
        )
    layout = {
        "barmode": "stack",
        "yaxis": axis("", type="category", autorange="reversed"),
        "xaxis": axis("share of the span, %", range=[0, 100]),
        "height": 140 + 26 * len(told),
    }
    more = f" The first {_MOST_BARS} of {len(cells)} cells." if len(cells) > _MOST_BARS else ""
    if without := len(shown) - len(told):
        more += f" {without} cell{'s' * (without > 1)} without it: phases that overlap have no shares."
    note = (
        "Of the rank that ends last, averaged over the middle half of the samples: start is its start after the first "
        f"rank's, rest is launching and synchronising.{more}"
    )
    return Figure("Where the time went", note, data, layout)


def _time(value_s: float) -> str:
    factor, unit = time_unit(value_s)
    return f"{value_s * factor:.4g} {unit}"


def _distinct(labels: list[str]) -> list[str]:
    """Equal labels (repeats of a cell) told apart by a number: plotly would stack them."""
    seen: dict[str, int] = defaultdict(int)
    for label in labels:
        seen[label] += 1
    counts: dict[str, int] = defaultdict(int)
    told = []
    for label in labels:
        counts[label] += 1
        told.append(f"{label} ({counts[label]})" if seen[label] > 1 else label)
    return told
