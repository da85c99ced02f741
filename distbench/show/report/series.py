"""Cells as named series of points: groups, labels, intervals and colours that the plots over the cells share."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from distbench.show.report.figures import COLOURS, MOST_POINTS, axis, hover, rate_unit, text
from distbench.show.runs import Record, label_of, settings_of
from distbench.stats import median

SIZES = ("workload.batch", "workload.m", "workload.n", "workload.k")
MOST_GROUPS = 16


def tflops_of(item: Record) -> float:
    return float(item["result"]["tflops"])


def grouped(items: list[Record], keys: list[str]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for item in items:
        groups[label_of(item, keys) if keys else "all cells"].append(item)
    return dict(groups)


def short(groups: dict[str, list[Record]], keys: list[str]) -> dict[str, list[Record]]:
    """The groups by what tells them from each other, where that is less than the keys that they were grouped by."""
    firsts = [group[0] for group in groups.values()]
    apart = [key for key in keys if len({repr(settings_of(first).get(key)) for first in firsts}) > 1]
    short = {label_of(first, apart): group for first, group in zip(firsts, groups.values(), strict=True)}
    return short if apart and len(short) == len(groups) else groups


def rate_axis(items: list[Record], **more: Any) -> dict[str, Any]:
    return axis(f"rate, {rate_unit(max(map(tflops_of, items)))[1]}", **more)


def curves(
    groups: dict[str, list[Record]], x_of: Callable[[Record], float], items: list[Record]
) -> list[dict[str, Any]]:
    """A line per group; where there are too many to tell apart, the best, the median and the lowest at each x."""
    factor, _ = rate_unit(max(map(tflops_of, items)))
    if len(groups) > MOST_GROUPS:
        lines: _Lines = (("best of the cells", max), ("median of the cells", median), ("lowest of the cells", min))
        return _binned(items, x_of, factor, lines)
    data: list[dict[str, Any]] = []
    if len(items) > MOST_POINTS:
        for label, group in groups.items():
            data += _binned(group, x_of, factor, ((f"{label}, median", median),), len(data))
        return data
    for number, (label, group) in enumerate(groups.items()):
        ordered = sorted(group, key=x_of)
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": text(label),
                "x": [x_of(item) for item in ordered],
                "y": [tflops_of(item) * factor for item in ordered],
                "error_y": _interval(ordered, factor),
                "line": {"color": colour(number)},
                "hovertext": [
                    hover(_where(label, item), tflops_of(item), item["result"]["time_s"]) for item in ordered
                ],
                "hoverinfo": "text",
            }
        )
    return data


def _where(label: str, item: Record) -> str:
    return f"{label}: {label_of(item, list(SIZES))}, {item['world']['size']} ranks"


def _interval(items: list[Record], factor: float) -> dict[str, Any]:
    """The 95 % interval of the median span, turned into one of the rate."""
    up, down = [], []
    for item in items:
        interval, flop, middle = item["result"]["time_ci_s"], item["work"]["flop"] / 1e12, tflops_of(item)
        low_s, high_s = interval or (item["result"]["time_s"],) * 2
        up.append(max(0.0, flop / low_s - middle) * factor if low_s else 0.0)
        down.append(max(0.0, middle - flop / high_s) * factor if high_s else 0.0)
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1}


_Lines = Sequence[tuple[str, Callable[[list[float]], float]]]


def _binned(
    items: list[Record], x_of: Callable[[Record], float], factor: float, lines: _Lines, first: int = 0
) -> list[dict[str, Any]]:
    """Lines over at most 200 bins of the axis, each with what it picks of a bin's rates."""
    xs = [math.log(x_of(item)) for item in items]
    distinct = sorted(set(xs))
    width = (distinct[-1] - distinct[0]) / 200 if len(distinct) > 200 else 0.0
    bins: dict[float, list[float]] = defaultdict(list)
    for at, item in zip(xs, items, strict=True):
        slot = at if not width else distinct[0] + width * (int((at - distinct[0]) / width) + 0.5)
        bins[slot].append(tflops_of(item) * factor)
    places = sorted(bins)
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": text(name),
            "x": [math.exp(at) for at in places],
            "y": [pick(bins[at]) for at in places],
            "line": {"color": colour(first + number)},
        }
        for number, (name, pick) in enumerate(lines)
    ]


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
