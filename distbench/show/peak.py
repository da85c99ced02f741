"""How far ordinary shapes fall below the fastest: the table of experiment=peak, from records and the search's summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from distbench.show.units import rate

SUMMARY = "peak.json"
"""The file beside the records in which a search says why it ended; see peak.sweeper."""
_KINDS = {
    "powers of two": ("peak_square",),
    "multiples of 64, off by one": ("peak_odd",),
    "one above a tile's edge": ("peak_tile",),
    "whole waves of tiles": ("peak_whole_waves",),
    "one row of tiles above that": ("peak_wave",),
    "skinny, 32 wide": ("peak_skinny",),
}
_MOST_SHAPES = 3


def peak_table(records: list[dict[str, Any]], folder: Path | None = None) -> list[str]:
    """Lines of text: per dtype the best shape, and each kind's share of its rate; none where there was no search.

    folder: of the records, for why each search ended.
    """
    searched = [item for item in records if (item["config"].get("peak") or {}).get("search")]
    ends = _ends(folder)
    lines: list[str] = []
    for dtype in dict.fromkeys(item["config"]["workload"]["dtype"] for item in searched):
        own = [item for item in searched if item["config"]["workload"]["dtype"] == dtype]
        lines += _of_dtype(dtype, own, [end for end in ends if end["dtype"] == dtype])
    return lines


def label(item: dict[str, Any]) -> str:
    """1024³, or m x n x k."""
    m, n, k = sizes(item)
    return f"{m}³" if m == n == k else f"{m} x {n} x {k}"


def sizes(item: dict[str, Any]) -> tuple[int, int, int]:
    """m, n, k of a record."""
    w = item["config"]["workload"]
    return w["m"], w["n"], w["k"]


def _of_dtype(dtype: str, own: list[dict[str, Any]], ends: list[dict[str, Any]]) -> list[str]:
    measured = [item for item in own if item["status"] == "ok"]
    stops = "".join(f"; the search ended after {end['seconds']:.0f} s: {end['stopped_by']}" for end in ends[:1])
    if not measured:
        return [f"{dtype}: no shape has a rate ({own[0]['status']}: {own[0]['reason']})"]
    best = max(measured, key=_tflops)
    lines = [f"{dtype}: best {label(best)} (m x n x k), {rate(_tflops(best))}, of {len(measured)} shapes{stops}"]
    for name, kinds in _KINDS.items():
        of_kind = [item for item in measured if item["config"]["workload"]["name"] in kinds]
        if name == "powers of two":
            of_kind = [item for item in of_kind if sizes(item)[0] & (sizes(item)[0] - 1) == 0]
        if of_kind:
            shares = [_tflops(item) / _tflops(best) for item in of_kind]
            between = f"{min(shares):.0%}" if len(shares) == 1 else f"{min(shares):.0%} … {max(shares):.0%}"
            lines.append(f"  {name:<29}{between:>12} of it: {_shapes(of_kind, shares)}")
    return lines


def _shapes(items: list[dict[str, Any]], shares: list[float]) -> str:
    """The shapes with their shares, the slowest first."""
    ordered = sorted(zip(shares, map(label, items), strict=True))
    shown = ordered if len(ordered) <= _MOST_SHAPES else [*ordered[: _MOST_SHAPES - 1], ordered[-1]]
    texts = [f"{name} {share:.0%}" for share, name in shown]
    if len(ordered) > len(shown):
        texts.insert(-1, "…")
    return ", ".join(texts)


def _tflops(item: dict[str, Any]) -> float:
    return float(item["result"]["tflops"])


def _ends(folder: Path | None) -> list[dict[str, Any]]:
    try:
        return [] if folder is None else list(json.loads((folder / SUMMARY).read_text("utf-8")))
    except (OSError, ValueError):  # a run that was cut short has none
        return []
