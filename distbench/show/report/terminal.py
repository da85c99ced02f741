"""The report in a terminal: the table, and the chief plots as bars. Also watches a run that goes on."""

from __future__ import annotations

import io
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import rich.console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from distbench import record
from distbench.show.health import health_lines
from distbench.show.peak import peak_table
from distbench.show.report.attribution import where_time_went
from distbench.show.runs import (
    Record,
    Run,
    Unusable,
    label_of,
    load,
    per_rank,
    shape_of,
    varying,
    workload_of,
)
from distbench.show.units import rate, seconds
from distbench.stats import median, quantile

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 40
_POLL_S = 0.5


def screen(runs: list[Run]) -> str:
    """The report as text, with colours where stdout is a terminal."""
    live = sys.stdout.isatty()
    width = max(60, shutil.get_terminal_size().columns) if live else 100
    console = rich.console.Console(file=io.StringIO(), force_terminal=live, width=width, highlight=False)
    for run in runs:
        for part in parts(run, width):
            console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def parts(run: Run, width: int) -> list[Text | Table]:
    """What is printed for a run, in order."""
    ok = [item for item in run.records if item["status"] == "ok"]
    keys = varying(ok)
    shown: list[Text | Table] = [Text(run.name, style="bold"), Text(_about(run)), table(run.records)]
    shown += _reasons(run.records)
    if len(ok) > 1:
        shown.append(_bars("rate", ok, keys, width))
    if ok:
        item = ok[-1]
        shown += _of_one(run, item, keys, width)
    for item in run.records:
        shown += health_lines(item)
    shown += [Text(line) for line in peak_table(run.records, run.path.parent)]
    shown.append(Text(""))
    return shown


def table(items: Sequence[Record]) -> Table:
    """A row per cell."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("cell", "dtype", "how"):
        drawn.add_column(name, overflow="fold")
    for name in ("ranks", "span", "± 95 %", "total", "GEMM"):
        drawn.add_column(name, justify="right", no_wrap=True)
    for item in items:
        config, result = item["config"], item["result"]
        how = f"{config.get('split')} {config.get('collect')} {config.get('path')}"
        head = [_short(item), str(config["workload"].get("dtype")), how, str(item["world"]["size"])]
        if result is None:
            drawn.add_row(*(Text(word, style="red") for word in [*head, item["status"], "-", "-", "-"]))
            continue
        interval = result["time_ci_s"]
        spread = "?" if interval is None else f"{(interval[1] - interval[0]) / 2 / result['time_s']:.1%}"
        figures = [seconds(result["time_s"]), spread, rate(result["tflops"]), rate(result.get("gemm_tflops"))]
        drawn.add_row(*(Text(word) for word in [*head, *figures]))
    return drawn


def _short(item: Record) -> str:
    """`square 8192³` where the three sizes are one."""
    w = workload_of(item)
    is_cube = w.get("batch") == 1 and w.get("m") == w.get("n") == w.get("k")
    return f"{w.get('name')} {w['n']}³" if is_cube else shape_of(item)


def _reasons(items: Sequence[Record]) -> list[Text]:
    """Why cells have no result."""
    bad = [item for item in items if item["result"] is None]
    return [Text(f"{_short(item)}: {item['status']}: {item['reason']}", style="red") for item in bad[:_MOST_BARS]]


def _about(run: Run) -> str:
    first = next((item for item in run.records if item["world"].get("ranks")), run.records[0])
    environment = first["environment"]
    names = {str(rank.get("device_name") or environment.get("cpu")) for rank in first["world"].get("ranks") or []}
    return f"{', '.join(sorted(names)) or '?'}; torch {environment.get('torch')}; {environment.get('command', '')}"


def _bars(title: str, items: list[Record], keys: list[str], width: int) -> Text:
    """The rate of each cell, as bars on one scale."""
    shown = items[:_MOST_BARS]
    labels = [label_of(item, keys) for item in shown]
    left = min(max(map(len, labels)), width // 2)
    room = max(10, width - left - 20)
    highest = max(item["result"]["tflops"] for item in shown)
    text = Text(f"{title}\n", style="bold")
    for label, item in zip(labels, shown, strict=True):
        tflops = item["result"]["tflops"]
        text.append(f"  {label[:left]:<{left}} ", style="not bold")
        text.append(bar(tflops / highest, room).ljust(room), style="not bold green")
        text.append(f" {rate(tflops):>15}\n", style="not bold")
    if len(items) > len(shown):
        text.append(f"  the first {len(shown)} of {len(items)} cells\n", style="not bold dim")
    return text


def _of_one(run: Run, item: Record, keys: list[str], width: int) -> list[Text | Table]:
    """The samples, ranks and phases of one cell."""
    samples = per_rank(run, item)
    spans = samples["span_s"]
    room = width - 34
    name = f"{label_of(item, keys)}: " if keys else ""
    shown: list[Text | Table] = [
        Text.assemble(
            (f"{name}spans over time\n", "bold"),
            f"  {spark(spans, room)}  {seconds(min(spans))} … {seconds(max(spans))}",
        )
    ]
    parted = where_time_went(samples)
    if parted:
        total = sum(parted.values())
        shown.append(
            _scaled("where the time went", [(part, s) for part, s in parted.items() if s / total > 0.001], room)
        )
    rank_s = samples.get("rank_s")
    if rank_s and len(rank_s) > 1:
        medians = [(f"rank {rank}", median(times)) for rank, times in enumerate(rank_s)]
        if len(medians) > 16:
            medians = sorted(medians, key=lambda pair: -pair[1])[:8]
            shown.append(_scaled("slowest ranks, median", medians, room))
        else:
            shown.append(_scaled("ranks, median", medians, room))
    return shown


def _scaled(title: str, values: list[tuple[str, float]], room: int) -> Text:
    highest = max(value for _, value in values)
    text = Text(f"{title}\n", style="bold")
    lines = [
        f"  {name:<10} {bar(v / highest if highest else 0, room).ljust(room)} {seconds(v):>10}" for name, v in values
    ]
    return text.append("\n".join(lines), style="not bold")


def bar(share: float, width: int) -> str:
    """A bar of so much of the width, to an eighth of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return (_EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def spark(values: Sequence[float], width: int) -> str:
    """Values over time as a line of columns, the highest of each stretch; the scale ends at the 98th percentile."""
    stretches = min(width, len(values))
    tops = [
        max(values[n * len(values) // stretches : (n + 1) * len(values) // stretches] or [0.0])
        for n in range(stretches)
    ]
    low, high = min(values), quantile(values, 0.98)
    return "".join(_HEIGHTS[_step(top, low, high)] for top in tops)


def _step(value: float, low: float, high: float) -> int:
    return 0 if high <= low else min(7, max(0, int((value - low) / (high - low) * 8)))


# --- watching --------------------------------------------------------------------------------------------------------


def follow(path: Path, still: Callable[[], bool] = lambda: True) -> int:
    """Show the run's records as they come, until Ctrl-C (or `still` says no); exit status 0.

    In a terminal the screen is drawn anew; else each record is a line when it comes. Raises Unusable for a path that is
    not there; one without records is waited for.
    """
    if not path.exists():
        load([path])  # says what is wrong
    live = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if live else 100
    console = rich.console.Console(force_terminal=live, width=max(width, 60), highlight=False)
    try:
        if live:
            _redraw(path, console, still)
        else:
            _lines(path, console, still)
    except KeyboardInterrupt:
        pass
    return 0


def _redraw(path: Path, console: rich.console.Console, still: Callable[[], bool]) -> None:
    seen: object = None
    with Live(Text(f"waiting for records in {path} …"), console=console, auto_refresh=False) as drawn:
        while still():
            runs, now = _now(path)
            if now != seen and runs:
                seen = now
                drawn.update(_fitted(runs[0], console), refresh=True)
            time.sleep(_POLL_S)


def _fitted(run: Run, console: rich.console.Console) -> rich.console.Group:
    """The last rows that the screen has room for, and the plots of the last cell."""
    rows = max(3, console.height - 24)
    ok = [item for item in run.records if item["status"] == "ok"]
    head = f"{run.name}: {len(run.records)} cells, {len(ok)} ok; Ctrl-C ends watching, the run goes on"
    keys = varying(ok)
    plots = _of_one(run, ok[-1], keys, console.width) if ok else []
    return rich.console.Group(
        Text(head, style="bold"), table(run.records[-rows:]), *_reasons(run.records[-rows:]), *plots
    )


def _lines(path: Path, console: rich.console.Console, still: Callable[[], bool]) -> None:
    told = 0
    while still():
        runs, _ = _now(path)
        items = runs[0].records if runs else []
        for item in items[told:]:
            config, result = item["config"], item["result"]
            how = f"{config.get('split')} {config.get('collect')} {config.get('path')}"
            label = f"{_short(item)} {config['workload'].get('dtype')}, {how}, {item['world']['size']} ranks"
            figures = item["reason"] if result is None else f"{rate(result['tflops'])}, {seconds(result['time_s'])}"
            console.print(Text(f"{item['status']:<8}{label}: {figures}"), soft_wrap=True)
        told = max(told, len(items))
        time.sleep(_POLL_S)


def _now(path: Path) -> tuple[list[Run], object]:
    """The runs as they are on disk, and what tells this state from the last; none while there are no records."""
    file = path / record.RESULTS if path.is_dir() else path
    try:
        state = file.stat()
        return load([file]), (state.st_mtime_ns, state.st_size)
    except (OSError, Unusable):
        return [], None
