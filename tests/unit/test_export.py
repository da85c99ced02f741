"""Exported tables and metrics, read back by the libraries that others read them with."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from pyarrow import parquet

from distbench.show.export import main as export

RECORDS = Path(__file__).resolve().parents[1] / "records"
FILES = sorted(map(str, RECORDS.glob("*.jsonl")))


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for name in FILES for line in Path(name).read_text().splitlines()]


def rows_of(folder: Path, form: str, table: str) -> list[dict[str, Any]]:
    path = folder / f"{table}.{form}"
    if form == "csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    if form == "jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return list(parquet.read_table(path).to_pylist())


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_row_for_each_cell_and_one_for_each_sample(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export([*FILES, "--format", form, "-o", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / f"{table}.{form}") for table in ("cells", "samples")]
    kept = records()
    cells, samples = rows_of(tmp_path, form, "cells"), rows_of(tmp_path, form, "samples")
    assert [row["cell"] for row in cells] == [item["cell"] for item in kept]
    assert [float(row["span_median_s"]) for row in cells] == [item["result"]["time_s"] for item in kept]
    assert [float(row["span_s"]) for row in samples] == [span for item in kept for span in item["samples"]["span_s"]]
    assert {row["dtype"] for row in samples} == {"float64", "float32", "bfloat16", "float16"}
    first, slowest = samples[0], kept[0]["samples"]["phases_s"]["gemm"][0][0]
    assert float(first["gemm_slowest_s"]) == slowest
    last = kept[-1]["samples"]
    assert float(samples[-1]["slowest_rank_s"]) == max(times[-1] for times in last["rank_s"])


def test_units_are_in_the_names() -> None:
    from distbench.show.rows import cell_rows
    from distbench.show.runs import load

    (row, *_) = cell_rows(load([Path(FILES[0])]))
    numbers = [name for name, value in row.items() if isinstance(value, float)]
    ends = ("_s", "_tflops", "_peak", "_gb_per_s", "_error", "tolerance")
    assert [name for name in numbers if not name.endswith(ends)] == []


def with_a_refused_cell(folder: Path) -> Path:
    item = records()[0]
    refused = item | {"cell": "0" * 12, "status": "failed", "reason": 'n=0, "no"\n', "result": None, "samples": None}
    refused["config"] = json.loads(json.dumps(item["config"]))
    refused["config"]["workload"]["m"] = "${oc.env:M}"
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (item, refused)))
    return folder


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_cell_without_a_result_is_a_row_too(form: str, tmp_path: Path) -> None:
    assert export([str(with_a_refused_cell(tmp_path)), "--format", form, "-o", str(tmp_path)]) == 0
    good, bad = rows_of(tmp_path, form, "cells")
    assert bad["reason"] == 'n=0, "no"\n'
    assert bad["span_median_s"] in (None, "")
    assert str(good["m"]) == "3000000"
    assert bad["m"] == "${oc.env:M}"
    assert len(rows_of(tmp_path, form, "samples")) == 10


def test_one_table_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert export([*FILES, "--table", "cells", "-o", "-"]) == 0
    assert len(list(csv.reader(capsys.readouterr().out.splitlines()))) == 12
    for words in (["-o", "-"], ["-o", "-", "--format", "parquet"]):
        with pytest.raises(SystemExit):
            export([*FILES, *words])


def test_openmetrics_is_what_its_parser_takes_and_holds_base_units(tmp_path: Path) -> None:
    folder = with_a_refused_cell(tmp_path)
    assert export([str(folder), FILES[-1], "--format", "openmetrics", "-o", str(tmp_path)]) == 0
    text = (tmp_path / "distbench.prom").read_text()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {family.type for family in families.values()} == {"gauge"}  # node exporter knows no info
    ok = {sample.labels["cell"]: sample.value for sample in families["distbench_cell_ok"].samples}
    kept = records()
    assert ok[kept[0]["cell"]] == 1
    assert ok["0" * 12] == 0
    rates = {sample.labels["cell"]: sample.value for sample in families["distbench_rate_flops_per_second"].samples}
    assert rates[kept[-1]["cell"]] == pytest.approx(kept[-1]["result"]["tflops"] * 1e12)
    assert "0" * 12 not in rates
    assert all(sample.timestamp is None for family in families.values() for sample in family.samples)


def test_the_metrics_file_is_replaced_at_once_and_others_may_read_it(tmp_path: Path) -> None:
    """A reader that opened the old file keeps the whole of it."""
    words = ["--format", "openmetrics", "-o", str(tmp_path)]
    assert export([FILES[0], *words]) == 0
    path = tmp_path / "distbench.prom"
    with path.open() as old:
        inode = os.fstat(old.fileno()).st_ino
        assert export([*FILES, *words]) == 0
        assert old.read().endswith("# EOF\n")
    assert path.stat().st_ino != inode
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    assert [entry.name for entry in tmp_path.iterdir()] == ["distbench.prom"]


def test_of_a_cell_measured_twice_the_last_counts(tmp_path: Path) -> None:
    for name, time, tflops in (("b", "2026-01-01T00:00:00Z", 1.0), ("a", "2026-02-01T00:00:00Z", 2.0)):
        item = records()[0] | {"time": time}
        item["result"]["tflops"] = tflops
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.jsonl").write_text(json.dumps(item) + "\n")
    assert export([str(tmp_path), "--format", "openmetrics", "-o", str(tmp_path)]) == 0
    lines = (tmp_path / "distbench.prom").read_text().splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("distbench_rate_flops")] == ["2e+12"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert export([FILES[0], "-o", str(tmp_path / "file" / "x")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
