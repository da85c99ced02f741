"""Records as a Markdown page, made from results.jsonl alone."""

from __future__ import annotations

from typing import Any

from distbench.show.anatomy import anatomy_markdown
from distbench.show.ceilings import ceilings_lines
from distbench.show.health import health_lines
from distbench.show.peaks import share_of_peak
from distbench.show.runs import Run
from distbench.show.tables import sweep_table
from distbench.show.units import rate, seconds


def markdown(runs: list[Run], title: str) -> str:
    """The page: a section per run."""
    return "\n\n".join([f"# {title}", *(_section(run) for run in runs)]) + "\n"


def _section(run: Run) -> str:
    records = run.records
    first = records[0]
    environment, world = first["environment"], first["world"]
    names = sorted({str(rank["device_name"] or environment["cpu"]) for rank in world["ranks"]})
    cuda = f" CUDA {environment['cuda']}," if environment["cuda"] else ""
    lines = [
        f"## {run.name}",
        "",
        f"{world['size']} rank{'s' * (world['size'] > 1)} ({world['launcher']}, {world['backend']}) on {', '.join(names)}; "
        f"torch {environment['torch']},{cuda} Python {environment['python']}, "
        f"distbench {environment['distbench']}.",
        "",
        f"    {environment['command']}",
        "",
        *[f"Note: {note}.\n" for note in world["notes"]],
        "| cell | dtype | split, collect, path | span | 95 % | total | GEMM alone | of peak | verified error / allowed |",
        "|---|---|---|---|---|---|---|---|---|",
        *[_row(item) for item in records],
    ]
    lines += anatomy_markdown(records, _name)
    healths = [line.plain for item in records for line in health_lines(item)]
    ceilings = [line for item in records for line in ceilings_lines(item)]
    for table in (sweep_table(records, run.path.parent), ceilings, healths):
        if table:
            lines += ["", *[f"    {line}".rstrip() for line in table]]
    return "\n".join(lines)


def _name(item: dict[str, Any]) -> str:
    """A cell in a few words, apart from the others of its sweep."""
    config = item["config"]
    words = [config["workload"]["name"], config["workload"]["dtype"], config["engine"], config["device"]]
    return " ".join([*words, f"drive={config['drive']}", f"collect={config['collect']}", f"path={config['path']}"])


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
