"""The command line of `distbench compare`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rich.console
from rich.table import Table
from rich.text import Text

from distbench.record import finite
from distbench.show.compare.pairing import Launch, Pair, Pairing, name_of, pair
from distbench.show.compare.verdict import Estimate, estimate, holm, loss, verdict
from distbench.show.runs import Run, Unusable, load, refusing, varying
from distbench.show.units import rate, seconds
from distbench.stats import median

_RULE = "Over {count} cells Holm's rule keeps the chance of one false FASTER or SLOWER at 5 %."
_STYLES = {"SLOWER": "red", "FAILED": "red", "FASTER": "green", "SAME": "", "UNSURE": "yellow"}
_MISSING = "comparing needs scipy: pip install 'distbench[report]'"


@dataclass(frozen=True)
class Metric:
    """What of a sample is compared."""

    values: Callable[[Launch], list[float]]
    """One per sample; empty where the record does not keep it."""
    higher_is_better: bool
    show: Callable[[float], str]


def _slowest(phase: str) -> Callable[[Launch], list[float]]:
    def values(launch: Launch) -> list[float]:
        per_rank = (launch.samples.get("phases_s") or {}).get(phase)
        return [max(times) for times in zip(*per_rank, strict=True)] if per_rank else []

    return values


def _rates(launch: Launch) -> list[float]:
    return [launch.item["work"]["flop"] / span_s / 1e12 for span_s in launch.samples["span_s"]]


METRICS = {
    "span": Metric(lambda launch: list(launch.samples["span_s"]), False, seconds),
    "best": Metric(lambda launch: [min(launch.samples["span_s"])], False, seconds),
    "rate": Metric(_rates, True, rate),
    "gemm": Metric(_slowest("gemm"), False, seconds),
    "collect": Metric(_slowest("collect"), False, seconds),
}


@dataclass(frozen=True)
class Compared:
    """One cell, compared."""

    cell: str
    verdict: str
    base: float | None
    new: float | None
    told: Estimate | None
    loss: float | None
    """How much slower, as a share of BASE's time."""
    reason: str | None = None


def main(arguments: list[str]) -> int:
    """`distbench compare BASE NEW`; exit status 1 on SLOWER beyond the threshold or FAILED, 2 on unusable input."""
    parser = argparse.ArgumentParser(
        prog="distbench compare",
        description="Is NEW slower than BASE? Each is a run's folder, a results file, or a folder of several launches.",
        epilog="Launches differ by more than their samples tell: make five of each and give the folders that hold them.",
    )
    parser.add_argument("base", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--threshold", type=_share, default=0.03, help="how much slower is too slow: 3%% (default) or 0.03"
    )
    parser.add_argument(
        "--metric",
        choices=tuple(METRICS),
        default="span",
        help="default: span; best: the fastest sample of each launch, steadier on a busy machine, needs several launches",
    )
    parser.add_argument("--allow", action="append", default=[], metavar="KEY", help="a key that may differ, as engine")
    parser.add_argument("--force", action="store_true", help="compare cells that are not the same measurement, too")
    parser.add_argument(
        "--launch-spread",
        type=_share,
        default=0.02,
        metavar="SHARE",
        help="how much launches differ, assumed where each side has one (default 2%%)",
    )
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal")
    options = parser.parse_args(arguments)
    return refusing(lambda: _compare(options))


def _share(text: str) -> float:
    """`3%` or `0.03`."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text}: a share more than 0 and less than 1, as 0.03 or 3%")
    return value


def _compare(options: argparse.Namespace) -> int:
    base, new = load([options.base]), load([options.new])
    allowed = {word for text in options.allow for word in text.split(",")}
    found = pair(base, new, allowed, options.force)
    if not found.pairs and not found.refused:
        raise Unusable(f"{options.base} and {options.new} have no cell in common")
    compared = compare(found, METRICS[options.metric], options.threshold, options.launch_spread)
    status = exit_status(compared, found, options.threshold)
    (_print_json if options.format == "json" else _print)(compared, found, (base, new), options, status)
    return status


def compare(found: Pairing, metric: Metric, threshold: float, launch_spread: float) -> list[Compared]:
    """Each pair's verdict. Raises Unusable where scipy is missing."""
    keys = varying([launch.item for each in found.pairs for launch in (*each.base, *each.new)])
    told = [_estimated(each, metric, launch_spread) for each in found.pairs]
    adjusted = iter(holm([item.p for item in told if isinstance(item, Estimate)]))
    compared = []
    for each, item in zip(found.pairs, told, strict=True):
        name = name_of(each.new[0], keys)
        if not isinstance(item, Estimate):
            compared.append(Compared(name, item[0], None, None, None, None, item[1]))
            continue
        word = verdict(item, next(adjusted), threshold, metric.higher_is_better)
        base, new = (_middle(side, metric) for side in (each.base, each.new))
        slower = loss(item.ratio, metric.higher_is_better)
        compared.append(Compared(name, word, base, new, item, slower, "; ".join(each.differences) or None))
    return compared


def _middle(side: list[Launch], metric: Metric) -> float:
    return median([median(metric.values(launch)) for launch in side if _is_ok(launch)])


def _is_ok(launch: Launch) -> bool:
    return bool(launch.item["status"] == "ok")


def _estimated(each: Pair, metric: Metric, launch_spread: float) -> Estimate | tuple[str, str]:
    """The estimate, or the verdict and the reason where there is nothing to estimate from."""
    for side, name, word in ((each.base, "BASE", "UNSURE"), (each.new, "NEW", "FAILED")):
        bad = [launch for launch in side if not _is_ok(launch)]
        if len(bad) == len(side) or (bad and name == "NEW"):  # a launch that fails now and then is a change too
            return word, f"{name} is {bad[0].item['status']}: {bad[0].item['reason']}"
    if (
        metric in (METRICS["span"], METRICS["best"])
        and len({one.item["work"]["flop"] for one in (*each.base, *each.new)}) > 1
    ):
        return "UNSURE", "the work differs, so times say nothing: use --metric rate"
    series = [[metric.values(launch) for launch in side if _is_ok(launch)] for side in (each.base, each.new)]
    if not all(values and min(values) > 0 for side in series for values in side):
        return "UNSURE", "the records do not keep this metric, or it is zero"
    try:
        return estimate(series[0], series[1], launch_spread)
    except ImportError:
        raise Unusable(_MISSING) from None


def exit_status(compared: list[Compared], found: Pairing, threshold: float) -> int:
    """1: slower beyond the threshold, or failed. 2: a pair was refused, so this is not the comparison asked for."""
    if any(item.verdict == "FAILED" or _is_too_slow(item, threshold) for item in compared):
        return 1
    return 2 if found.refused or not compared else 0


def _is_too_slow(item: Compared, threshold: float) -> bool:
    return item.verdict == "SLOWER" and item.loss is not None and item.loss > threshold


def whole(compared: list[Compared], threshold: float) -> str:
    """One verdict for all cells: the worst that is established, else the least certain."""
    words = {item.verdict for item in compared}
    if "FAILED" in words:
        return "FAILED"
    if any(_is_too_slow(item, threshold) for item in compared):
        return "SLOWER"
    for word in ("UNSURE", "SLOWER", "FASTER"):
        if word in words:
            return word
    return "SAME" if words else "UNSURE"


# --- showing ---------------------------------------------------------------------------------------------------------

_Sides = tuple[list[Run], list[Run]]


def _print(compared: list[Compared], found: Pairing, sides: _Sides, options: argparse.Namespace, status: int) -> None:
    metric = METRICS[options.metric]
    live = sys.stdout.isatty()
    console = rich.console.Console(highlight=False, width=None if live else 120)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"cell ({options.metric})", overflow="fold")
    for name in ("BASE", "NEW", "NEW ÷ BASE", "95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for item in compared:
        figures = ["-", "-", "-", "-"]
        if item.told is not None and item.base is not None and item.new is not None:
            told = item.told
            between = "-" if math.isinf(told.high) else f"{told.low:.3f} … {told.high:.3f}"
            figures = [metric.show(item.base), metric.show(item.new), f"{told.ratio:.4f}", between]
        table.add_row(Text(item.cell), *figures, Text(item.verdict, style=_STYLES[item.verdict]))
    console.print(table)
    for item in compared:
        if item.reason:
            console.print(Text(f"{item.cell}: {item.reason}", style="yellow"))
    for line in _notes(compared, found, sides):
        console.print(Text(line, style="dim"))
    for each in found.refused:
        console.print(Text(f"not comparable: {name_of(each.base[0], [])}: {'; '.join(each.differences)}", style="red"))
    if found.refused:
        names = sorted({text.partition(":")[0] for each in found.refused for text in each.differences})
        console.print(f"--allow {','.join(names)} compares them all the same", markup=False)
    if compared:
        word = whole(compared, options.threshold)
        style = f"bold {_STYLES[word]}".strip()
        console.print(
            Text(f"{word} ({_counted(compared)}; threshold {options.threshold:.3g}; exit {status})", style=style)
        )


def _counted(compared: list[Compared]) -> str:
    words = [item.verdict for item in compared]
    return ", ".join(f"{words.count(word)} {word}" for word in _STYLES if word in words)


def _notes(compared: list[Compared], found: Pairing, sides: _Sides) -> list[str]:
    lines = sorted({item.told.how for item in compared if item.told is not None})
    if len(compared) > 1:
        lines.append(_RULE.format(count=len(compared)))
    ratios = [item.told.ratio for item in compared if item.told is not None]
    if len(ratios) > 1:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(f"geometric mean of NEW ÷ BASE over the cells: {mean:.4f}")
    lines += _changed(sides)
    for name, launches in (("BASE", found.only_base), ("NEW", found.only_new)):
        if launches:
            some = ", ".join(name_of(launch, []) for launch in launches[:3])
            lines.append(f"only in {name}: {len(launches)} ({some}{', …' if len(launches) > 3 else ''})")
    if any(item.verdict == "UNSURE" and item.told is not None for item in compared):
        lines.append("UNSURE: more launches of each side (five, say, in a folder each) narrow the interval")
    return lines


def _changed(sides: _Sides) -> list[str]:
    """What else differs between the sides: the likely reasons for a change."""
    lines = []
    for key in ("distbench", "torch", "numpy", "cuda", "nccl", "python", "kernel", "cpu", "host", "variables"):
        old, now = (sorted({_told(item, key) for run in side for item in run.records}) for side in sides)
        if old != now:
            lines.append(f"{key} differs: {', '.join(old)} against {', '.join(now)}")
    return lines


def _told(item: dict[str, Any], key: str) -> str:
    value = item["environment"].get(key)
    return " ".join(f"{name}={text}" for name, text in value.items()) if isinstance(value, dict) else str(value)


def _print_json(
    compared: list[Compared], found: Pairing, sides: _Sides, options: argparse.Namespace, status: int
) -> None:
    told = {
        "verdict": whole(compared, options.threshold),
        "exit_status": status,
        "metric": options.metric,
        "threshold": options.threshold,
        "cells": [asdict(item) for item in compared],
        "refused": [list(each.differences) for each in found.refused],
        "only_base": len(found.only_base),
        "only_new": len(found.only_new),
        "notes": _notes(compared, found, sides),
    }
    print(json.dumps(finite(told), indent=2, ensure_ascii=False))
