"""The anatomy of a query as text: a row per phase, and what bounds it."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from distbench.show.units import rate, seconds, size, work

_HEAD = ("phase", "device", "host clock", "work", "rate", "limit", "of limit", "of span")


def anatomy_rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """A head, and a row per phase; [] where no limits were measured: the other tables then tell as much."""
    told = record.get("anatomy")
    if told is None or record.get("limits") is None:
        return []
    return [_HEAD, *(_row(phase) for phase in told["phases"])]


def anatomy_lines(record: dict[str, Any]) -> list[str]:
    """For a terminal."""
    rows = anatomy_rows(record)
    if not rows:
        return []
    lines = [""]
    for phase, device, host, done, speed, _, of_limit, of_span in rows:
        lines.append(f"  {phase:<8}{device:>10}{host:>11}{done:>13}{speed:>15}{of_limit:>10}{of_span:>9}")
    limits = dict.fromkeys(limit for _, _, _, _, _, limit, _, _ in rows[1:] if limit != "-")
    lines += [f"  limit: {limit}" for limit in limits]
    faults = record["anatomy"]["page_faults_per_run"]
    if faults is not None:
        lines.append(f"  {faults:.4g} page faults of rank 0's process a run")
    if record["limits"]["reason"]:
        lines.append(f"  limits not measured: {record['limits']['reason']}")
    return lines + wrap(record["anatomy"]["sentence"], 80, initial_indent="  ", subsequent_indent="    ")


def anatomy_markdown(records: list[dict[str, Any]], name: Any) -> list[str]:
    """A table over all cells whose limits were measured, and a line for each on what bounds it. name: of a record."""
    kept = [record for record in records if anatomy_rows(record)]
    if not kept:
        return []
    lines = ["", f"| cell | {' | '.join(_HEAD)} |", "|---" * (len(_HEAD) + 1) + "|"]
    lines += [f"| {name(record)} | {' | '.join(row)} |" for record in kept for row in anatomy_rows(record)[1:]]
    lines.append("")
    if any(record["samples"].get("phases_overlap") for record in kept):
        lines += ["Where a cell's phases overlap, the rates are over its whole span.", ""]
    for record in kept:
        faults = record["anatomy"]["page_faults_per_run"]
        also = "" if faults is None else f" ({faults:.4g} page faults of rank 0's process a run)"
        lines.append(f"- {name(record)}: {record['anatomy']['sentence']}{also}.")
    return lines


def _row(phase: dict[str, Any]) -> tuple[str, ...]:
    done = work(phase["flop"]) if phase["flop"] else size(phase["bytes"]) if phase["bytes"] else "-"
    return (
        phase["name"],
        seconds(phase["device_s"]),
        seconds(phase["host_s"]),
        done,
        _rate(phase, phase["rate"]),
        "-" if phase["limit"] is None else f"{_rate(phase, phase['limit'])} {phase['limit_name']}",
        _share(phase["limit_share"]),
        _share(phase["share"]),
    )


def _rate(phase: dict[str, Any], value: float | None) -> str:
    if value is None:
        return "-"
    return rate(value) if phase["unit"] == "TFLOP/s" else f"{value:.4g} GB/s"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
