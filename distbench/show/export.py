"""distbench export: records as tidy files for other tools, and as OpenMetrics for a node exporter's textfile folder."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distbench.record import finite
from distbench.show.rows import Row, cell_rows, columns_of, sample_rows, to_csv
from distbench.show.runs import Run, Unusable, load, refusing

_TABLES = {"cells": cell_rows, "samples": sample_rows}
_PROM = "distbench.prom"


def main(arguments: list[str]) -> int:
    """`distbench export RUN…`; prints the files it wrote. Exit status 2 where a RUN holds no records."""
    parser = argparse.ArgumentParser(
        prog="distbench export",
        description="Write cells (one row per cell) and samples (one row per sample), units in the columns' names; or one "
        f"OpenMetrics text, {_PROM}, replaced at once, for a node exporter's textfile folder.",
    )
    parser.add_argument("run", nargs="+", type=Path, help="a run's folder, a results file, or a folder of runs")
    parser.add_argument(
        "--format", choices=("csv", "parquet", "jsonl", "openmetrics"), default="csv", help="default: csv"
    )
    parser.add_argument("--table", choices=tuple(_TABLES), help="this table only; with -o - to stdout (csv, jsonl)")
    parser.add_argument("-o", "--output", default=".", help="the folder to write into; default: the working folder")
    options = parser.parse_args(arguments)
    if options.output == "-" and options.format == "parquet":
        parser.error("parquet is binary: give -o a folder")
    if options.output == "-" and options.format != "openmetrics" and not options.table:
        parser.error("-o - writes one table to stdout: say --table cells or --table samples")
    return refusing(lambda: _export(options))


def _export(options: argparse.Namespace) -> int:
    runs = load(options.run)
    if options.format == "openmetrics":
        files = {_PROM: openmetrics(runs).encode()}
    else:
        names = [options.table] if options.table else list(_TABLES)
        files = {f"{name}.{options.format}": _WRITERS[options.format](_TABLES[name](runs)) for name in names}
    for name, content in files.items():
        if options.output == "-":
            print(content.decode(errors="replace"), end="")
            continue
        try:
            print(_replace(Path(options.output), name, content))
        except OSError as error:
            raise Unusable(f"{options.output}: {error.strerror}; choose another folder with -o") from None
    return 0


def _replace(folder: Path, name: str, content: bytes) -> Path:
    """Write so that a reader finds the old file or the whole new one, never a part."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=folder, prefix=f".{name}.")  # a name that node exporter does not read
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        Path(part).chmod(0o666 & ~mask)  # mkstemp's 0600 would hide it from node exporter's user
        Path(part).replace(folder / name)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    return folder / name


def _csv(rows: Iterator[Row]) -> bytes:
    return to_csv(rows).encode(errors="backslashreplace")


def _jsonl(rows: Iterator[Row]) -> bytes:
    lines = (json.dumps(finite(row), allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
    return "".join(lines).encode(errors="backslashreplace")


def _parquet(rows: Iterator[Row]) -> bytes:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise Unusable("parquet needs pyarrow: pip install 'distbench[report]', or use --format csv or jsonl") from None
    told = list(rows)
    columns = {name: _uniform([row.get(name) for row in told]) for name in columns_of(told)}
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table(columns), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _uniform(values: list[Any]) -> list[Any]:
    """A column has one type: numbers beside text (a refused cell's `n=${…}`) become text; whole numbers past 64 bits, floats."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        wide = float in kinds or any(abs(value) >= 2**63 for value in values if value is not None)
        return [float(value) if wide and value is not None else value for value in values]
    if len(kinds) == 1 and kinds <= {str, bool}:
        return [
            value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value for value in values
        ]
    return [None if value is None else str(value) for value in values]


_WRITERS = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}

_LABELS = (
    *("cell", "workload", "batch", "m", "n", "k", "dtype", "fill", "upload", "split", "collect", "path"),
    *("engine", "device", "backend", "world_size", "host"),
)
_METRICS = (
    ("span_seconds", "span_median_s", 1.0, "Median over samples of latest end - earliest start over all ranks."),
    ("span_best_seconds", "span_best_s", 1.0, "The shortest span."),
    ("span_p95_seconds", "span_p95_s", 1.0, "95th percentile of the spans."),
    ("rate_flops_per_second", "rate_tflops", 1e12, "Work / median span, over all ranks."),
    (
        "gemm_rate_flops_per_second",
        "gemm_rate_tflops",
        1e12,
        "Work / median of the slowest rank's time in the product.",
    ),
    ("gemm_peak_ratio", "gemm_share_of_datasheet_peak", 1.0, "The product's share of the datasheet's dense peak."),
    ("bus_bytes_per_second", "busbw_gb_per_s", 1e9, "The collective's bus bandwidth as nccl-tests defines it."),
    ("start_skew_seconds", "start_skew_median_s", 1.0, "Median of how far apart the ranks started."),
    ("setup_seconds", "setup_s", 1.0, "From the start of the cell to the first run."),
    ("samples", "samples", 1.0, "Kept samples."),
)


def openmetrics(runs: list[Run]) -> str:
    """The cells as gauges in OpenMetrics text, which node exporter's textfile collector reads too.

    No timestamps, which that collector refuses; of a cell that was measured several times the last counts.
    """
    try:
        from prometheus_client import CollectorRegistry, Gauge
        from prometheus_client.openmetrics.exposition import generate_latest
    except ImportError:
        raise Unusable("openmetrics needs prometheus-client: pip install 'distbench[report]'") from None
    registry = CollectorRegistry()
    last: dict[tuple[str, ...], Row] = {}
    for row in sorted(cell_rows(runs), key=lambda row: str(row["time_utc"])):
        last[tuple("" if row.get(name) is None else str(row[name]) for name in _LABELS)] = row
    ok = Gauge(
        "distbench_cell_ok", "1: verified and measured; 0: failed, wrong or skipped.", _LABELS, registry=registry
    )
    for labels, row in last.items():
        ok.labels(*labels).set(row["status"] == "ok")
    for name, column, factor, what in _METRICS:
        gauge = Gauge(f"distbench_{name}", what, _LABELS, registry=registry)
        for labels, row in last.items():
            if row[column] is not None:
                gauge.labels(*labels).set(row[column] * factor)
    text: str = generate_latest(registry).decode()
    return text
