"""Records as a Markdown page, made from results.jsonl alone."""

from __future__ import annotations

from distbench.show.anatomy import anatomy_markdown
from distbench.show.ceilings import ceilings_lines
from distbench.show.health import health_lines
from distbench.show.peaks import share_of_peak
from distbench.show.runs import Record, Run, label_of, named, shape_of, varying
from distbench.show.tables import sweep_table
from distbench.show.units import rate, seconds

_COLUMNS = {f"workload.{key}" for key in ("name", "batch", "m", "n", "k", "dtype")} | {"split", "collect", "path"}


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
        *[_row(item, name) for item, name in zip(records, _cells(records), strict=True)],
    ]
    told = {id(item): name.replace("|", "\\|") for item, name in named(run)}
    lines += anatomy_markdown(records, lambda item: told[id(item)])
    healths = [line.plain for item in records for line in health_lines(item)]
    ceilings = [line for item in records for line in ceilings_lines(item)]
    for table in (sweep_table(records, run.path.parent), ceilings, healths):
        if table:
            lines += ["", "```text", *[line.rstrip() for line in table], "```"]
    return "\n".join(lines)


def _cells(records: list[Record]) -> list[str]:
    """Each record's workload, and what tells it from the others that has no column of its own."""
    keys = [key for key in varying(records) if key not in _COLUMNS]
    labels = [label_of(item, keys) if keys else "" for item in records]
    shapes = [shape_of(item) for item in records]
    return [shape if label in ("", shape) else f"{shape}, {label}" for shape, label in zip(shapes, labels, strict=True)]


def _row(item: Record, shape: str) -> str:
    config, result = item["config"], item["result"]
    workload = config["workload"]
    how = f"{config['split']}, {config['collect']}, {config['path']}"
    if result is None:
        cells = [shape, workload["dtype"], how, item["status"], item["reason"]]
        return _line(cells) + " | | | |"
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
    return _line(cells)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
