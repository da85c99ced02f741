"""Plots over the cells: rate against size, world and names, and scaling."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from distbench.show.report.attribution import phases
from distbench.show.report.figures import Figure, axis, hover, rate_unit, text
from distbench.show.report.roofline import roofline
from distbench.show.report.series import MOST_GROUPS, SIZES, colour, curves, grouped, rate_axis, short, tflops_of
from distbench.show.runs import Record, Run, label_of, settings_of, varying
from distbench.stats import median


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
        roofline(items, keys),
        phases(cells),
    ]
    return [figure for figure in drawn if figure is not None]


def _size(item: Record) -> float:
    w = item["config"]["workload"]
    return float(math.prod(w[name] for name in ("batch", "m", "n", "k")) ** (1 / 3))


def _is_cube(item: Record) -> bool:
    w = item["config"]["workload"]
    return bool(w["batch"] == 1 and w["m"] == w["n"] == w["k"])


def _rate_against_size(items: list[Record], keys: list[str]) -> Figure | None:
    others = [key for key in keys if key not in SIZES]
    groups = grouped(items, others)
    groups = {label: group for label, group in groups.items() if len({_size(item) for item in group}) > 1}
    if not groups:
        return None
    groups = short(groups, others)
    items = [item for group in groups.values() for item in group]
    name = "n of an n × n × n product" if all(map(_is_cube, items)) else "size: (batch·m·n·k)^⅓"
    sizes = sorted({_size(item) for item in items})
    ticks = {"tickvals": sizes, "ticktext": [f"{size:.5g}" for size in sizes]} if len(sizes) <= 10 else {}
    layout = {"xaxis": axis(name, type="log", **ticks), "yaxis": rate_axis(items, type="log")}
    note = "Total rate: work ÷ median span over all ranks; bars show the 95 % interval of the median."
    return Figure("Rate against size", note, curves(groups, _size, items), layout)


def _rate_against_world(items: list[Record], keys: list[str]) -> Figure | None:
    if "world" not in keys:
        return None
    others = [key for key in keys if key != "world"]
    groups = grouped(items, others)
    groups = {label: group for label, group in groups.items() if len({item["world"]["size"] for item in group}) > 1}
    if not groups:
        return None
    groups = short(groups, others)
    layout = {"xaxis": axis("ranks", type="log", tickvals=_worlds(items)), "yaxis": rate_axis(items, type="log")}
    return Figure("Rate against ranks", "The same problem on more ranks.", curves(groups, _world, items), layout)


def _world(item: Record) -> float:
    return float(item["world"]["size"])


def _worlds(items: list[Record]) -> list[int]:
    return sorted({item["world"]["size"] for item in items})


def _efficiency(items: list[Record], keys: list[str]) -> Figure | None:
    """Rate per rank against that of the smallest world of the same problem, or of the same work per rank."""
    if "world" not in keys:
        return None
    same_problem = [key for key in keys if key != "world"]
    strong = grouped(items, same_problem)
    weak: dict[str, list[Record]] = defaultdict(list)
    others = [key for key in keys if key != "world" and key not in SIZES]
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
    for kind, groups in (("strong", short(strong, same_problem)), ("weak", weak)):
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
                    "line": {"dash": "solid" if kind == "strong" else "dot", "color": colour(len(data))},
                    "hovertemplate": "%{x} ranks<br>%{y:.1f} %<extra></extra>",
                }
            )
    if not data or len(data) > MOST_GROUPS:
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
    return median([tflops_of(item) for item in group if item["world"]["size"] == world])


def _rate_against_name(items: list[Record], keys: list[str], key: str) -> Figure | None:
    """Bars: one place per value of the key, a colour per what else differs."""
    if key not in keys or len(items) > 400:
        return None
    others = [other for other in keys if other != key]
    groups = grouped(items, others)
    groups = {
        label: group for label, group in groups.items() if len({repr(settings_of(i).get(key)) for i in group}) > 1
    }
    if not groups:
        return None
    count = len(groups)
    if count > MOST_GROUPS:  # those of which there is most to see
        groups = dict(sorted(groups.items(), key=lambda pair: -len(pair[1]))[:MOST_GROUPS])
    groups = short(groups, others)
    factor, _ = rate_unit(max(map(tflops_of, items)))
    data = []
    for number, (label, group) in enumerate(groups.items()):
        data.append(
            {
                "type": "bar",
                "name": text(label),
                "x": [text(settings_of(item).get(key)) for item in group],
                "y": [tflops_of(item) * factor for item in group],
                "marker": {"color": colour(number)},
                "hovertext": [hover(label, tflops_of(item), item["result"]["time_s"]) for item in group],
                "hoverinfo": "text",
            }
        )
    name = key.rpartition(".")[2]
    layout = {"barmode": "group", "xaxis": axis(name, type="category"), "yaxis": rate_axis(items)}
    few = f" The {MOST_GROUPS} of {count} kinds of cells with the most values." if count > MOST_GROUPS else ""
    return Figure(f"Rate against {name}", f"Total rate: work ÷ median span.{few}", data, layout)
