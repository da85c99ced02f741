"""The report as one HTML file that needs nothing else: no network, plotly.js inlined from its own package.

Everything from a record is escaped: `escape` for HTML, `_json` for scripts, `figures.text` for plotly's labels. The
page's policy forbids it to load anything, whatever a record holds.
"""

from __future__ import annotations

import json
import time
from html import escape
from importlib.resources import files
from typing import Any

from distbench import __version__
from distbench.record import finite
from distbench.show.peaks import share_of_peak
from distbench.show.report.curves import overview
from distbench.show.report.details import details
from distbench.show.report.sections import states, tables, warned
from distbench.show.runs import Record, Run, Unusable, label_of, shape_of, varying
from distbench.show.units import rate, seconds

_MOST_DETAILS = 60
_MOST_ROWS = 500
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_COLUMNS = (
    ("cell", ""),
    ("dtype", ""),
    ("ranks", "number"),
    ("split, collect, path", ""),
    ("span", "number"),
    ("95 %", ""),
    ("total", "number"),
    ("GEMM alone", "number"),
    ("of peak", "number"),
    ("samples", "number"),
    ("error / allowed", ""),
)


def page(runs: list[Run], title: str) -> str:
    """The whole page. Raises Unusable where plotly is missing."""
    chosen = _chosen(runs)
    ok = [item for run in runs for item in run.records if item["status"] == "ok"]
    keys = varying(ok)
    plots = [[figure.as_json() for figure in details(run, item)] for run, item in chosen]
    options = "".join(
        f'<option value="{number}">{escape(_name(run, item, keys, len(runs) > 1))}</option>'
        for number, (run, item) in enumerate(chosen)
    )
    picker = f'<p><select id="cell" aria-label="cell">{options}</select></p>' if chosen else ""
    few = f'<p class="note">The {len(chosen)} cells whose samples spread most of {len(ok)}.</p>'
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>",
            f"<h1>{escape(title)}</h1>",
            _counts(runs),
            *(_about(run) for run in runs[:20]),
            f"<p>and {len(runs) - 20} more runs</p>" if len(runs) > 20 else "",
            "<h2>Cells</h2>",
            _table(runs),
            *tables(runs),
            *warned(runs),
            '<h2>Rates</h2>\n<div id="overview"></div>' if ok else "",
            f"<h2>One cell</h2>\n{few if len(chosen) < len(ok) else ''}{picker}" if ok else "",
            '<div id="detail"></div>' if ok else "",
            *states(runs),
            f"<footer>distbench {__version__}, {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}. Rates are work ÷ "
            "median span; span is latest end − earliest start over all ranks.</footer>",
            f'<script type="application/json" id="figures">{_json([f.as_json() for f in overview(runs)])}</script>',
            f'<script type="application/json" id="details">{_json(plots)}</script>',
            f"<script>{_plotly()}</script>\n<script>\n{_asset('page.js')}</script>" if ok else "",
            "</body>\n</html>\n",
        ]
    )


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise Unusable(
            "a page needs plotly: pip install 'distbench[report]', or use --format md, csv or terminal"
        ) from None
    return str(get_plotlyjs())


def _asset(name: str) -> str:
    return (files("distbench.show.report") / name).read_text("utf-8")


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(finite(value), allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _chosen(runs: list[Run]) -> list[tuple[Run, Record]]:
    """The ok cells to show one by one: all, or of very many those whose samples spread most, in the runs' order."""
    cells = [(run, item) for run in runs for item in run.records if item["status"] == "ok"]
    if len(cells) <= _MOST_DETAILS:
        return cells

    def spread(number: int) -> float:
        result = cells[number][1]["result"]
        return float((result["p95_s"] - result["p5_s"]) / result["time_s"])

    return [cells[number] for number in sorted(sorted(range(len(cells)), key=spread)[-_MOST_DETAILS:])]


def _name(run: Run, item: Record, keys: list[str], with_run: bool) -> str:
    """What the picker calls a cell."""
    told = f"{shape_of(item)}: {label_of(item, keys)}" if keys else shape_of(item)
    repeat = f", repeat {item['repeat']}" if item.get("repeat") is not None else ""
    return f"{f'{run.name}: ' if with_run else ''}{told}{repeat}, {rate(item['result']['tflops'])}"


def _counts(runs: list[Run]) -> str:
    statuses: dict[str, int] = {}
    for run in runs:
        for item in run.records:
            statuses[item["status"]] = statuses.get(item["status"], 0) + 1
    told = ", ".join(f"{count} {escape(str(status))}" for status, count in statuses.items())
    return f"<p{'' if set(statuses) <= {'ok'} else ' class=bad'}>{told}</p>"


def _about(run: Run) -> str:
    """What was run, and on what."""
    first = next((item for item in run.records if item["world"].get("ranks")), run.records[0])
    environment, world = first["environment"], first["world"]
    ranks = world.get("ranks") or []
    devices: dict[str, int] = {}
    for rank in ranks:
        name = str(rank.get("device_name") or environment.get("cpu"))
        devices[name] = devices.get(name, 0) + 1
    hosts = sorted({str(rank.get("host")) for rank in ranks})
    shown = ", ".join(hosts[:6]) + (f" and {len(hosts) - 6} more" if len(hosts) > 6 else "")
    versions = [f"{name} {environment[name]}" for name in ("torch", "cuda", "nccl", "python") if environment.get(name)]
    sizes = sorted({item["world"]["size"] for item in run.records})
    lines = [
        f"{' and '.join(map(str, sizes))} rank{'s' * (sizes != [1])} ({world.get('launcher')}, {world.get('backend')}) on "
        f"{len(hosts) or '?'} host{'s' * (len(hosts) != 1)}: {shown or '?'}",
        "; ".join(f"{count} × {name}" for name, count in devices.items()),
        f"distbench {environment.get('distbench')}, {', '.join(versions)}; {first.get('time', '')}",
    ]
    notes = {str(note) for item in run.records for note in item["world"].get("notes") or []}
    return "\n".join(
        [
            f"<h3>{escape(run.name)}</h3>",
            *(f"<p>{escape(line)}</p>" for line in lines if line),
            *(f"<p><strong>Note:</strong> {escape(note)}.</p>" for note in sorted(notes)),
            f"<pre>{escape(str(environment.get('command', '')))}</pre>",
        ]
    )


def _table(runs: list[Run]) -> str:
    heads = "".join(f'<th class="{kind}">{name}</th>' for name, kind in _COLUMNS)
    items = [item for run in runs for item in run.records]
    if len(items) > _MOST_ROWS:  # the bad ones first: they must not hide among those that wait
        items.sort(key=lambda item: item["status"] == "ok")
    rows = [_row(item) for item in items]
    table = (
        f'<table id="cells"><thead><tr>{heads}</tr></thead><tbody>\n{chr(10).join(rows[:_MOST_ROWS])}\n</tbody></table>'
    )
    if len(rows) <= _MOST_ROWS:
        return f'<div class="wide">{table}</div>'
    return (
        f'<div class="wide">{table}</div>\n<template id="more">{chr(10).join(rows[_MOST_ROWS:])}</template>\n'
        f'<p class="note">{_MOST_ROWS} of {len(rows)} cells. <button id="all">Show all</button></p>'
    )


def _row(item: Record) -> str:
    config, result = item["config"], item["result"]
    how = f"{config.get('split')}, {config.get('collect')}, {config.get('path')}"
    head = [
        _cell(shape_of(item)),
        _cell(config["workload"].get("dtype")),
        _cell(item["world"]["size"], True),
        _cell(how),
    ]
    if result is None:
        reason = f"{item['status']}: {item['reason']}"
        blanks = "<td></td>" * (len(_COLUMNS) - len(head) - 2)
        return f'<tr class="bad">{"".join(head)}<td></td><td class="text">{escape(reason)}</td>{blanks}</tr>'
    interval, checked, share = result["time_ci_s"], item["verification"] or {}, share_of_peak(item)
    between = "needs 6 samples" if interval is None else f"{seconds(interval[0])} … {seconds(interval[1])}"
    error, allowed = checked.get("max_error"), checked.get("tolerance")
    cells = [
        *head,
        _cell(seconds(result["time_s"]), True, result["time_s"]),
        _cell(between),
        _cell(rate(result["tflops"]), True, result["tflops"]),
        _cell(rate(result.get("gemm_tflops")), True, result.get("gemm_tflops")),
        _cell("-" if share is None else f"{share:.1%}", True, share),
        _cell(result.get("samples"), True),
        _cell("-" if error is None or allowed is None else f"{error:.1e} / {allowed:.1e}", False, error),
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _cell(shown: object, is_number: bool = False, value: object = None) -> str:
    """A table cell; `value` is what it is sorted by."""
    by = "" if value is None else f' data-value="{escape(str(value))}"'
    return f"<td{' class=number' if is_number else ''}{by}>{escape(str(shown))}</td>"
