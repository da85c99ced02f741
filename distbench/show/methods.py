"""Ways to answer a gallery query side by side, from records alone: the table of experiment=gallery_methods."""

from __future__ import annotations

from typing import Any

from distbench.show.units import seconds

_METHODS: dict[tuple[str, str, str, str], str] = {
    ("torch", "loop", "host", "fresh"): "torch loop",
    ("torch", "threads", "host", "fresh"): "torch threads",
    ("cupy", "loop", "host", "fresh"): "CuPy loop",
    ("cupy", "threads", "host", "fresh"): "CuPy threads",
    ("torch", "process", "host", "fresh"): "process",
    ("torch", "process", "host", "pinned"): "pinned",
    ("torch", "process", "host", "pipelined"): "pipelined",
    ("torch", "process", "host", "shared"): "shared",
    ("torch", "process", "topk", "collective"): "top-k",
    ("torch", "process", "topk", "auto"): "top-k",
}
"""(engine, drive, collect, path) → what the table calls it."""

BASE = "torch loop"
PUBLISHED: dict[str, tuple[float, float]] = {
    "torch loop": (41.74, 2.94),
    "torch threads": (42.86, 3.15),
    "CuPy loop": (24.69, 4.01),
    "CuPy threads": (23.27, 3.92),
}
"""Seconds of initialisation and of a query that the comparison of the four ways was published with (README of "Snippets
for Multi-GPU GEMM with PyTorch & Cupy"): float64, 3,000,000 x 512 by 512 x 256 on three GeForce GTX 1080 Ti."""
_SIZES = ("batch", "m", "n", "k", "dtype", "fill", "upload")
_PUBLISHED_SIZES = {"batch": 1, "m": 3_000_000, "n": 256, "k": 512, "dtype": "float64"}


def method_of(record: dict[str, Any]) -> str | None:
    """The table's name for a record's way; None for one that is not in it."""
    config = record["config"]
    if config["split"] != "m" or config["workload"].get("upload") != "b":
        return None
    return _METHODS.get((config["engine"], config["drive"], config["collect"], config["path"]))


def methods_table(records: list[dict[str, Any]]) -> list[str]:
    """Lines of text; none where the records are no comparison: two ways or more of one problem, torch's loop among them.

    Of several records of one method the last counts.
    """
    named = {name: record for record in records if (name := method_of(record)) is not None}
    if len(named) < 2 or BASE not in named or len({_problem(record) for record in named.values()}) > 1:
        return []
    base = named[BASE]["result"]
    base_s = None if base is None else float(base["time_s"])
    w = named[BASE]["config"]["workload"]
    head = f"a query of {w['n']} to a gallery of {w['m']} x {w['k']}, {w['dtype']}; published: 3 x GTX 1080 Ti"
    if any(w[key] != value for key, value in _PUBLISHED_SIZES.items()):
        head += ", 3000000 x 512 and 256, float64: another size than here"
    titles = f"{'method':<14}{'init, host':>11}{'init, ours':>11}{'query':>10}{'speed-up':>9}  verified  published init, query"
    lines = [head, titles]
    for name in dict.fromkeys(_METHODS.values()):
        if name in named:
            lines.append(_line(name, named[name], base_s))
    if "top-k" in named:
        lines.append("top-k leaves the best rows of each column and not C: another workload than the others")
    if base_s is None:
        lines.append(f"no speed-ups: {BASE} has no result")
    return lines


def _line(name: str, record: dict[str, Any], base_s: float | None) -> str:
    result = record["result"]
    published = "{:.2f} s, {:.2f} s".format(*PUBLISHED[name]) if name in PUBLISHED else ""
    if result is None:
        return f"{name:<14}{record['status']}: {record['reason']}" + (f"; published {published}" if published else "")
    speed_up = "-" if base_s is None else f"{base_s / result['time_s']:.4g} x"
    verified = "yes" if record["verification"]["ok"] else "no"
    return (
        f"{name:<14}{seconds(result.get('init_host_s')):>11}{seconds(result.get('fill_s')):>11}"
        f"{seconds(result['time_s']):>10}{speed_up:>9}  {verified:<10}{published}"
    ).rstrip()


def _problem(record: dict[str, Any]) -> tuple[Any, ...]:
    """What must be the same for times to be compared."""
    workload = record["config"]["workload"]
    return (*(workload[key] for key in _SIZES), record["world"]["size"])
