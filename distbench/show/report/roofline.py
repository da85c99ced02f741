"""Rate against arithmetic intensity, under the roofs that were measured and the datasheet's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from distbench.show.report.ceilings import ceilings_of
from distbench.show.report.figures import MOST_POINTS, Figure, axis, hover, rate_unit, text
from distbench.show.report.series import colour, tflops_of
from distbench.show.runs import Record, label_of


def roofline(items: list[Record], keys: list[str]) -> Figure | None:
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
                "line": {"color": colour(number), "dash": "dash"},
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
                "marker": {"color": colour(number), "size": 8},
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
        if slot not in best or tflops_of(item) > tflops_of(best[slot]):
            best[slot] = item
    return list(best.values())
