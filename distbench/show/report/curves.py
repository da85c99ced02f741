"""Plots over the cells: rate against size, world and names, scaling, roofline, and where the time went."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from distbench.show.report.attribution import where_time_went
from distbench.show.report.ceilings import ceilings_of
from distbench.show.report.figures import (
    COLOURS,
    MOST_POINTS,
    PHASE_COLOURS,
    Figure,
    axis,
    hover,
    rate_unit,
    text,
    time_unit,
)
from distbench.show.runs import Record, Run, label_of, named, per_rank, settings_of, varying
from distbench.stats import median

_SIZES = ("workload.batch", "workload.m", "workload.n", "workload.k")
_MOST_GROUPS = 16
_MOST_BARS = 40
Cells = list[tuple[Run, Record]]


def overview(runs: list[Run]) -> list[Figure]:
    """The plots that these cells support, in the order of the page."""
    cells = [(run, item) for run in runs for item in run.records if item["status"] == "ok"]
    if not cells:
        return []
    items = [item for _, item in cells]
    keys = varying(items)
    drawn = [
        _rate_against_size(items, keys),
        *(_rate_against_name(items, keys, key) for key in ("workload.dtype", "engine", "collect", "path", "split")),
        _rate_against_world(items, keys),
        _efficiency(items, keys),
        _roofline(items, keys),
        _phases(cells),
    ]
    return [figure for figure in drawn if figure is not None]


def _tflops(item: Record) -> float:
    return float(item["result"]["tflops"])


def _size(item: Record) -> float:
    w = item["config"]["workload"]
    return float(math.prod(w[name] for name in ("batch", "m", "n", "k")) ** (1 / 3))


def _is_cube(item: Record) -> bool:
    w = item["config"]["workload"]
    return bool(w["batch"] == 1 and w["m"] == w["n"] == w["k"])


def _rate_against_size(items: list[Record], keys: list[str]) -> Figure | None:
    groups = _grouped(items, [key for key in keys if key not in _SIZES])
    groups = {label: group for label, group in groups.items() if len({_size(item) for item in group}) > 1}
    if not groups:
        return None
    groups = _short(groups, keys)
    items = [item for group in groups.values() for item in group]
    name = "n of an n × n × n product" if all(map(_is_cube, items)) else "size: (batch·m·n·k)^⅓"
    sizes = sorted({_size(item) for item in items})
    ticks = {"tickvals": sizes, "ticktext": [f"{size:.5g}" for size in sizes]} if len(sizes) <= 10 else {}
    layout = {"xaxis": axis(name, type="log", **ticks), "yaxis": _rate_axis(items, type="log")}
    note = "Total rate: work ÷ median span over all ranks; bars show the 95 % interval of the median."
    return Figure("Rate against size", note, _curves(groups, _size, items), layout)


def _rate_against_world(items: list[Record], keys: list[str]) -> Figure | None:
    if "world" not in keys:
        return None
    groups = _grouped(items, [key for key in keys if key != "world"])
    groups = {label: group for label, group in groups.items() if len({item["world"]["size"] for item in group}) > 1}
    if not groups:
        return None
    groups = _short(groups, keys)
    layout = {"xaxis": axis("ranks", type="log", tickvals=_worlds(items)), "yaxis": _rate_axis(items, type="log")}
    return Figure("Rate against ranks", "The same problem on more ranks.", _curves(groups, _world, items), layout)


def _world(item: Record) -> float:
    return float(item["world"]["size"])


def _worlds(items: list[Record]) -> list[int]:
    return sorted({item["world"]["size"] for item in items})


def _efficiency(items: list[Record], keys: list[str]) -> Figure | None:
    """Rate per rank against that of the smallest world of the same problem, or of the same work per rank."""
    if "world" not in keys:
        return None
    strong = _grouped(items, [key for key in keys if key != "world"])
    weak: dict[str, list[Record]] = defaultdict(list)
    others = [key for key in keys if key != "world" and key not in _SIZES]
    for item in items:
        per_rank_flop = item["work"]["flop"] / item["world"]["size"]
        weak[f"{label_of(item, others) if others else ''} {per_rank_flop:.3g} FLOP a rank".strip()].append(item)
    weak = {
        label: group
        for label, group in weak.items()
        if len({item["work"]["flop"] for item in group}) == len({item["world"]["size"] for item in group}) > 1
    }
    data: list[dict[str, Any]] = []
    strong = {label: group for label, group in strong.items() if len(_worlds(group)) > 1}
    for kind, groups in (("strong", _short(strong, keys)), ("weak", weak)):
        for label, group in groups.items():
            rates = {world: _median_rate(group, world) for world in _worlds(group)}
            if len(rates) < 2:
                continue
            first = min(rates)
            shares = [100 * rates[world] * first / (rates[first] * world) for world in rates]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": text(f"{kind}: {label}"),
                    "x": list(rates),
                    "y": shares,
                    "line": {"dash": "solid" if kind == "strong" else "dot", "color": _colour(len(data))},
                    "hovertemplate": "%{x} ranks<br>%{y:.1f} %<extra></extra>",
                }
            )
    if not data or len(data) > _MOST_GROUPS:
        return None
    layout = {
        "xaxis": axis("ranks", type="log", tickvals=_worlds(items)),
        "yaxis": axis("efficiency, %", rangemode="tozero"),
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 100, "y1": 100, "line": {"dash": "dot"}}],
    }
    note = (
        "Rate per rank ÷ rate per rank of the smallest world. Strong: the same problem; weak: the same work per rank."
    )
    return Figure("Scaling efficiency", note, data, layout)


def _median_rate(group: list[Record], world: int) -> float:
    return median([_tflops(item) for item in group if item["world"]["size"] == world])


def _rate_against_name(items: list[Record], keys: list[str], key: str) -> Figure | None:
    """Bars: one place per value of the key, a colour per what else differs."""
    if key not in keys or len(items) > 400:
        return None
    groups = _grouped(items, [other for other in keys if other != key])
    groups = {
        label: group for label, group in groups.items() if len({repr(settings_of(i).get(key)) for i in group}) > 1
    }
    if not groups or len(groups) > _MOST_GROUPS:
        return None
    groups = _short(groups, keys)
    factor, _ = rate_unit(max(map(_tflops, items)))
    data = []
    for number, (label, group) in enumerate(groups.items()):
        data.append(
            {
                "type": "bar",
                "name": text(label),
                "x": [text(settings_of(item).get(key)) for item in group],
                "y": [_tflops(item) * factor for item in group],
                "marker": {"color": _colour(number)},
                "hovertext": [hover(label, _tflops(item), item["result"]["time_s"]) for item in group],
                "hoverinfo": "text",
            }
        )
    name = key.rpartition(".")[2]
    layout = {"barmode": "group", "xaxis": axis(name, type="category"), "yaxis": _rate_axis(items)}
    return Figure(f"Rate against {name}", "Total rate: work ÷ median span.", data, layout)


def _roofline(items: list[Record], keys: list[str]) -> Figure | None:
    """The GEMM's rate over its arithmetic intensity, under what the memory and the arithmetic units allow."""
    placed = [item for item in items if item["result"].get("gemm_tflops") and item["work"]["bytes"]]
    if not placed:
        return None
    ceilings = ceilings_of(placed)
    if not ceilings:
        return None
    factor, unit = rate_unit(max(item["result"]["gemm_tflops"] for item in placed))
    ridges = [roof.tflops * 1e12 / roof.bytes_per_s for roof in ceilings if roof.bytes_per_s]  # where slope meets roof
    low, high = min(*map(_intensity, placed), *ridges, math.inf) / 3, max(map(_intensity, placed)) * 3
    data: list[dict[str, Any]] = []
    for number, roof in enumerate(ceilings):
        ridge = roof.tflops * 1e12 / roof.bytes_per_s if roof.bytes_per_s else low
        xs = sorted({low, min(max(ridge, low), high), high})
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": text(roof.name),
                "x": xs,
                "y": [factor * min(roof.tflops, x * (roof.bytes_per_s or math.inf) / 1e12) for x in xs],
                "line": {"color": _colour(number), "dash": "dash"},
                "hovertemplate": f"{text(roof.name)}<br>%{{y:.4g}} {unit}<extra></extra>",
            }
        )
    points = placed if len(placed) <= MOST_POINTS else _best_of_each(placed, _intensity)
    for number, dtype in enumerate(dict.fromkeys(str(item["config"]["workload"]["dtype"]) for item in points)):
        own = [item for item in points if item["config"]["workload"]["dtype"] == dtype]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": text(f"{dtype}, GEMM alone"),
                "x": [_intensity(item) for item in own],
                "y": [item["result"]["gemm_tflops"] * factor for item in own],
                "marker": {"color": _colour(number), "size": 8},
                "hovertext": [hover(label_of(i, keys), i["result"]["gemm_tflops"], i["result"]["time_s"]) for i in own],
                "hoverinfo": "text",
            }
        )
    layout = {"xaxis": axis("FLOP per byte of A, B and C", type="log"), "yaxis": axis(f"rate, {unit}", type="log")}
    note = (
        "Each cell's product against what the arithmetic units (flat) and the memory (slope) allow: as "
        "measured on this machine (workload=ceilings) and by the datasheet. Intensity counts each element of A, B and C once."
    )
    return Figure("Roofline", note, data, layout)


def _intensity(item: Record) -> float:
    return float(item["work"]["flop"] / item["work"]["bytes"])


def _best_of_each(items: list[Record], place: Callable[[Record], float]) -> list[Record]:
    """The fastest of each of 300 bins of the axis."""
    best: dict[int, Record] = {}
    logs = [math.log(place(item)) for item in items]
    low, width = min(logs), (max(logs) - min(logs)) / 300 or 1.0
    for at, item in zip(logs, items, strict=True):
        slot = int((at - low) / width)
        if slot not in best or _tflops(item) > _tflops(best[slot]):
            best[slot] = item
    return list(best.values())


def _phases(cells: Cells) -> Figure | None:
    """Stacked bars: each cell's span, divided."""
    shown = cells[:_MOST_BARS]
    parts = [where_time_went(per_rank(run, item)) for run, item in shown]
    told = [(cell, part) for cell, part in zip(shown, parts, strict=True) if part]
    if not told:
        return None
    names = {id(item): name for run in {id(run): run for run, _ in cells}.values() for item, name in named(run)}
    several = len({id(run) for run, _ in cells}) > 1
    labels = _distinct(
        [text(f"{run.name}: {names[id(item)]}" if several else names[id(item)]) for (run, item), _ in told]
    )
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
    more = f" The first {len(told)} of {len(cells)} cells." if len(cells) > len(told) else ""
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


def _grouped(items: list[Record], keys: list[str]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for item in items:
        groups[label_of(item, keys) if keys else "all cells"].append(item)
    return dict(groups)


def _short(groups: dict[str, list[Record]], keys: list[str]) -> dict[str, list[Record]]:
    """The groups by what tells them from each other, where that is less than what tells all records apart."""
    firsts = [group[0] for group in groups.values()]
    apart = [key for key in varying(firsts) if key in keys]
    short = {label_of(first, apart): group for first, group in zip(firsts, groups.values(), strict=True)}
    return short if apart and len(short) == len(groups) else groups


def _rate_axis(items: list[Record], **more: Any) -> dict[str, Any]:
    return axis(f"rate, {rate_unit(max(map(_tflops, items)))[1]}", **more)


def _curves(
    groups: dict[str, list[Record]], x_of: Callable[[Record], float], items: list[Record]
) -> list[dict[str, Any]]:
    """A line per group; where there are too many to tell apart, the best, the median and the lowest at each x."""
    factor, _ = rate_unit(max(map(_tflops, items)))
    if len(groups) > _MOST_GROUPS:
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
                "y": [_tflops(item) * factor for item in ordered],
                "error_y": _interval(ordered, factor),
                "line": {"color": _colour(number)},
                "hovertext": [hover(_where(label, item), _tflops(item), item["result"]["time_s"]) for item in ordered],
                "hoverinfo": "text",
            }
        )
    return data


def _where(label: str, item: Record) -> str:
    return f"{label}: {label_of(item, list(_SIZES))}, {item['world']['size']} ranks"


def _interval(items: list[Record], factor: float) -> dict[str, Any]:
    """The 95 % interval of the median span, turned into one of the rate."""
    up, down = [], []
    for item in items:
        interval, flop, middle = item["result"]["time_ci_s"], item["work"]["flop"] / 1e12, _tflops(item)
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
        bins[slot].append(_tflops(item) * factor)
    places = sorted(bins)
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": text(name),
            "x": [math.exp(at) for at in places],
            "y": [pick(bins[at]) for at in places],
            "line": {"color": _colour(first + number)},
        }
        for number, (name, pick) in enumerate(lines)
    ]


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
