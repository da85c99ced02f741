"""What a machine can do, as a table, and a result's place under it in a line."""

from __future__ import annotations

from typing import Any

from distbench.show.units import rate, seconds, size


def ceilings_lines(record: dict[str, Any]) -> list[str]:
    """The measured ceilings of a record; [] where it measured none."""
    rows = record.get("ceilings")
    if not rows:
        return []
    lines = ["", "what this machine can do (the best, and the median, of some repetitions)"]
    lines.append(f"  {'':<26}{'':<30}{'best':>15}{'median':>15}  of a")
    for row in rows:
        what = f"  {row['name']:<26}{_detail(row):<30}"
        if row["value"] is None:
            lines.append(f"{what}  not measured: {row['reason']}")
            continue
        bus = f", bus {row['busbw']:.4g} GB/s" if row["busbw"] is not None else ""
        per = f"{row['per']} ({row['ranks']} ranks)" if row["ranks"] > 1 else row["per"]
        lines.append(f"{what}{_shown(row['value'], row):>15}{_shown(row['median'], row):>15}  {per}{bus}")
    return lines


def kept_lines(record: dict[str, Any]) -> list[str]:
    """Where the measured ceilings are kept: of use on that machine, at that time."""
    kept, lines = record.get("ceilings_kept"), []
    if kept and kept["reason"]:
        lines.append(f"  not kept in {kept['reason']}: set ceilings.folder to a folder that can be written")
    if kept and kept["files"]:
        lines.append(f"  kept as {kept['files'][0]}: later results here tell their share of it")
    return lines


def _detail(row: dict[str, Any]) -> str:
    words = [row["dtype"], row["engine"], row["n"] and f"n={row['n']}", row["bytes"] and size(row["bytes"])]
    words.append(row["threads"] and f"{row['threads']} thread{'s' * (row['threads'] > 1)}")
    return " ".join(word for word in words if word)


def _shown(value: float, row: dict[str, Any]) -> str:
    if row["unit"] == "s":
        return seconds(value)
    return rate(value) if row["unit"] == "TFLOP/s" else f"{value:.4g} {row['unit']}"


def ceiling_lines(record: dict[str, Any]) -> list[str]:
    """The GEMM's share of the measured ceiling, and of what the memory allows where that is less; [] where unknown."""
    ceiling = record.get("ceiling")
    if not ceiling or ceiling["share"] is None:
        return []
    by = f"{ceiling['gemm']['engine']}, n={ceiling['gemm']['n']}"
    lines = [f"the GEMM reaches {ceiling['share']:.1%} of the measured {rate(ceiling['gemm_tflops'])} ({by})"]
    if ceiling["roof_tflops"] < ceiling["gemm_tflops"]:
        roof = rate(ceiling["roof_tflops"])
        lines.append(f"and {ceiling['roof_share']:.1%} of the {roof} that a memory copy's rate allows")
    return lines
