"""The page's parts that are text: the sweep's own table, what bounds each cell, health, warnings, state of the devices."""

from __future__ import annotations

from html import escape
from typing import Any

from distbench.show.anatomy import anatomy_lines
from distbench.show.ceilings import ceilings_lines
from distbench.show.health import health_lines
from distbench.show.runs import Run, named_together
from distbench.show.tables import sweep_table
from distbench.telemetry import held_down

_MOST_TOLD = 40
"""Cells whose anatomy or health is written out."""
_MOST_STATES = 300
_STATE = ("cell", "rank", "host, device", "clock, MHz", "power, W", "°C", "held down", "others' cores", "stolen")


def warned(runs: list[Run]) -> list[str]:
    """Each warning once, with its cells; nothing where there is none."""
    found: dict[str, dict[int, list[str]]] = {}
    for _, item, name in named_together(runs):
        for warning in item.get("warnings") or []:
            limit = f" (limit {warning['threshold']:.3g})" if warning["threshold"] else ""
            text = f"{name}: {warning['text']}{limit}"
            found.setdefault(warning["name"], {}).setdefault(id(item), []).append(text)
    if not found:
        return []
    lines = ["<h2>Warnings</h2>"]
    for warning_name, cells in sorted(found.items(), key=lambda pair: -len(pair[1])):
        texts = [text for of_cell in cells.values() for text in of_cell]
        shown = "".join(f"<li>{escape(text)}</li>" for text in texts[:_MOST_TOLD])
        more = f"<li>and {len(texts) - _MOST_TOLD} more</li>" if len(texts) > _MOST_TOLD else ""
        count = f"{len(cells)} cell{'s' * (len(cells) > 1)}"
        lines.append(
            f"<details><summary><strong>{escape(warning_name)}</strong>, {count}</summary><ul>{shown}{more}</ul></details>"
        )
    return lines


def tables(runs: list[Run]) -> list[str]:
    """The tables of experiments, ceilings, verdicts on ranks and what bounds the cells, as on the terminal."""
    shown = [_block(run.name, lines) for run in runs if (lines := sweep_table(run.records, run.path.parent))]
    named = [(name, item) for _, item, name in named_together(runs)]
    found = [(name, [*ceilings_lines(item), *(line.plain for line in health_lines(item))]) for name, item in named]
    shown += [_block(name, lines) for name, lines in found if lines][:_MOST_TOLD]
    bounds = [(name, item, lines) for name, item in named if (lines := anatomy_lines(item))]
    if bounds:
        shown.append("<h2>What bounds each cell</h2>")
    for name, item, lines in bounds[:_MOST_TOLD]:
        head = f"<summary><strong>{escape(name)}</strong>: {escape(item['anatomy']['sentence'])}</summary>"
        shown.append(f"<details>{head}{_pre(lines)}</details>")
    if len(bounds) > _MOST_TOLD:
        shown.append(f'<p class="note">The first {_MOST_TOLD} of {len(bounds)}.</p>')
    return shown


def _block(name: str, lines: list[str]) -> str:
    return f"<h3>{escape(name)}</h3>\n{_pre(lines)}"


def _pre(lines: list[str]) -> str:
    text = "\n".join(lines).strip("\n")
    return f'<pre class="table">{escape(text)}</pre>'


def states(runs: list[Run]) -> list[str]:
    """A row per rank and cell: clock, power, temperature, what held it down, and others' work, while it was measured."""
    rows = [
        _state(name, rank, item["world"]["ranks"][rank], seen)
        for _, item, name in named_together(runs)
        for rank, seen in enumerate(item.get("telemetry") or [])
    ]
    if not rows:
        return []
    kinds = ["", "number", "", "number", "number", "number", "", "number", "number"]
    heads = "".join(f'<th class="{kind}">{escape(head)}</th>' for head, kind in zip(_STATE, kinds, strict=True))
    body = "\n".join(
        "<tr>" + "".join(_cell(cell, kind) for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows[:_MOST_STATES]
    )
    few = f'<p class="note">The first {_MOST_STATES} of {len(rows)}.</p>' if len(rows) > _MOST_STATES else ""
    return [
        "<h2>Devices while they were measured</h2>",
        '<p class="note">Medians; -: unknown here, and the record says why.</p>',
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>{few}',
    ]


def _state(name: str, rank: int, place: dict[str, Any], seen: dict[str, Any]) -> list[str]:
    cpu, gpu = seen["cpu"], seen["gpu"]
    clock = (cpu.get("clock_mhz") if gpu is None else gpu.get("sm_clock_mhz")) or {}
    held = {"quota": cpu.get("throttled_share")} if gpu is None else held_down(gpu)
    is_known = (cpu.get("throttled_share") if gpu is None else gpu["held_down_share"]) is not None
    told = [f"{key.replace('_', ' ')} {share:.0%}" for key, share in held.items() if share]
    return [
        name,
        str(rank),
        f"{place.get('host')}, {place.get('device')}",
        _number(clock.get("median"), "{:.0f}"),
        _number(((gpu or {}).get("power_w") or {}).get("median"), "{:.0f}"),
        _number(((gpu or {}).get("temperature_c") or {}).get("median"), "{:.0f}"),
        ", ".join(told) or ("none" if is_known else "-"),
        _number(cpu.get("others_cores"), "{:.2f}"),
        _number(cpu.get("steal_share"), "{:.1%}"),
    ]


def _cell(told: str, kind: str) -> str:
    order = told.rstrip("%") if kind and told != "-" else ""
    value = f' data-value="{escape(order)}"' if kind else ""
    return f'<td class="{kind}"{value}>{escape(told)}</td>'


def _number(value: float | None, shape: str) -> str:
    return "-" if value is None else shape.format(value)
