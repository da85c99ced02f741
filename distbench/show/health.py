"""The verdicts of experiment=health as a table."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.text import Text

from distbench.health.facts import BAD, OK, UNKNOWN
from distbench.show.units import seconds

_MOST_WELL = 16
_STYLES = {OK: "", UNKNOWN: "yellow"}


def health_lines(record: dict[str, Any]) -> list[Text]:
    """A line per rank and one per reason, the bad ranks first where there are many; [] where health was not judged."""
    verdicts = record.get("health")
    if not verdicts:
        return []
    counts = Counter("bad" if item["verdict"] in BAD else item["verdict"] for item in verdicts)
    told = ", ".join(f"{counts[name]} {name}" for name in (OK, "bad", UNKNOWN) if counts[name])
    lines = [Text(""), Text(f"health of {len(verdicts)} rank{'s' * (len(verdicts) > 1)}: {told}", style="bold")]
    lines.append(
        Text(f"  rank  {'host':<14}{'device':<9}{'bus id':<14}{'GEMM':>10}{'to median':>11}{'link':>11}  verdict")
    )
    shown = verdicts
    if len(verdicts) > _MOST_WELL:
        bad = [item for item in verdicts if item["verdict"] != OK]
        shown = bad + [item for item in verdicts if item["verdict"] == OK][: max(0, _MOST_WELL - len(bad))]
    for item in shown:
        lines.append(Text(_row(item), style=_STYLES.get(item["verdict"], "red")))
        lines += [Text(f"        {text}", style=_STYLES.get(item["verdict"], "red")) for text in _reasons(item)]
    if len(shown) < len(verdicts):
        lines.append(Text(f"  and {len(verdicts) - len(shown)} more that are ok"))
    return lines


def _row(item: dict[str, Any]) -> str:
    numbers = item["numbers"]
    gemm, ratio = numbers.get("gemm_s"), numbers.get("gemm_ratio")
    link = numbers.get("host_link_gb_per_s") or numbers.get("link_gb_per_s")
    return (
        f"  {item['rank']:>4}  {item['host'][:13]:<14}{item['device']:<9}{item['pci'] or '-':<14}"
        f"{'-' if gemm is None else seconds(gemm):>10}{'-' if ratio is None else f'{ratio:.3f}':>11}"
        f"{'-' if link is None else f'{link:.3g} GB/s':>11}  {item['verdict']}"
    )


def _reasons(item: dict[str, Any]) -> list[str]:
    texts = [f"{reason['name']}: {reason['text']}" for reason in item["reasons"]]
    return ([item["device_uuid"]] if texts and item["device_uuid"] else []) + texts
