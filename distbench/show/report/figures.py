"""What the plots share: a figure as plotly.js reads it, units of axes, colours, thinning.

All text that came from a record is escaped here: plotly reads a few HTML tags in the text that it is given.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from distbench.show.units import rate, seconds

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#555555")
"""Okabe and Ito's palette, told apart by colour-blind people too."""
PHASE_COLOURS = {
    "start": "#dddddd",
    "upload": "#e69f00",
    "GEMM": "#0072b2",
    "collect": "#d55e00",
    "rest": "#999999",
    "sample": "#0072b2",
}
PHASE_NAMES = {"h2d": "upload", "gemm": "GEMM", "collect": "collect"}
MOST_POINTS = 1500
"""More of them are thinned: a phone must open the page too."""


@dataclass
class Figure:
    """One plot: what stands over it, what stands under it, and plotly's data and layout."""

    title: str
    note: str
    data: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def text(value: object) -> str:
    """Text from a record, for plotly's labels and hovers."""
    return html.escape(str(value), quote=False).replace("{", "&#123;")  # %{…} is plotly's template


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": text(title)}, "automargin": True, **more}


def time_unit(longest_s: float) -> tuple[float, str]:
    """(factor, unit) in which times up to this one read best."""
    return next((pair for pair in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")) if longest_s * pair[0] >= 1), (1e9, "ns"))


def rate_unit(highest_tflops: float) -> tuple[float, str]:
    units = ((1.0, "TFLOP/s"), (1e3, "GFLOP/s"))
    return next((pair for pair in units if highest_tflops * pair[0] >= 1), (1e6, "MFLOP/s"))


def hover(label: str, tflops: float | None, time_s: float | None) -> str:
    """The lines of a point's hover."""
    return f"{text(label)}<br>{text(rate(tflops))}<br>span {text(seconds(time_s))}"


def thinned(values: Sequence[float], most: int = MOST_POINTS) -> list[int]:
    """Indices to draw: all, or of each stretch its lowest and highest, so that no peak is lost."""
    count = len(values)
    if count <= most:
        return list(range(count))
    stretches = most // 2
    kept: list[int] = []
    for number in range(stretches):
        part = range(number * count // stretches, (number + 1) * count // stretches)
        kept += sorted({min(part, key=values.__getitem__), max(part, key=values.__getitem__)})
    return kept
