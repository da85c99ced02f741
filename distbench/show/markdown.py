"""distbench report: records as a Markdown page, made from results.jsonl alone."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from distbench import record
from distbench.show.methods import methods_table
from distbench.show.peaks import share_of_peak
from distbench.show.units import rate, seconds


def main(arguments: list[str]) -> int:
    """`distbench report RUN…`: print the page; exit status 2 where a RUN holds no records."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `distbench report … | head` ends quietly
    parser = argparse.ArgumentParser(prog="distbench report", description="Print the records of runs as Markdown.")
    parser.add_argument("run", nargs="+", type=Path, help="a run's folder, or a results file")
    parser.add_argument("--title", default="Results")
    options = parser.parse_args(arguments)
    sections = []
    for run in options.run:
        path = run / record.RESULTS if run.is_dir() else run
        try:
            sections.append(_section(path, record.read(path)))
        except OSError as error:
            print(f"distbench: {run}: {error.strerror}; name a run's folder or its results file", file=sys.stderr)
            return 2
    print("\n\n".join([f"# {options.title}", *sections]))
    return 0


def _section(path: Path, records: list[dict[str, Any]]) -> str:
    if not records:
        return f"## {path.name}\n\nNo records."
    first = records[0]
    environment, world = first["environment"], first["world"]
    names = sorted({str(rank["device_name"] or environment["cpu"]) for rank in world["ranks"]})
    lines = [
        f"## {path.stem}",
        "",
        f"{world['size']} ranks ({world['launcher']}, {world['backend']}) on {', '.join(names)}; torch "
        f"{environment['torch']}, CUDA {environment['cuda']}, Python {environment['python']}, "
        f"distbench {environment['distbench']}.",
        "",
        f"    {environment['command']}",
        "",
        *[f"Note: {note}.\n" for note in world["notes"]],
        "| cell | dtype | split, collect, path | span | 95 % | total | GEMM alone | of peak | verified error / allowed |",
        "|---|---|---|---|---|---|---|---|---|",
        *[_row(item) for item in records],
    ]
    if table := methods_table(records):
        lines += ["", *[f"    {line}".rstrip() for line in table]]
    return "\n".join(lines)


def _row(item: dict[str, Any]) -> str:
    config, result = item["config"], item["result"]
    workload = config["workload"]
    shape = f"{workload['name']} {workload['m']} x {workload['n']} x {workload['k']}"
    how = f"{config['split']}, {config['collect']}, {config['path']}"
    if result is None:
        cells = [shape, workload["dtype"], how, item["status"], item["reason"]]
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " | | | | |"
    share = share_of_peak(item)
    interval, checked = result["time_ci_s"], item["verification"]
    between = "-" if interval is None else f"{seconds(interval[0])} … {seconds(interval[1])}"
    cells = [
        shape,
        workload["dtype"],
        how,
        seconds(result["time_s"]),
        between,
        rate(result["tflops"]),
        rate(result["gemm_tflops"]),
        "-" if share is None else f"{share:.1%}",
        f"{checked['max_error']:.1e} / {checked['tolerance']:.1e}",
    ]
    return "| " + " | ".join(cells) + " |"
