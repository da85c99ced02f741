"""What a person sees: units, the lines of a record, the help. Records are real ones."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from distbench.cell import Cell
from distbench.compose import conf_dir
from distbench.config import (
    Backend,
    CollectName,
    Config,
    Device,
    DType,
    EngineName,
    Fill,
    Measure,
    Path,
    Split,
    Upload,
    Workload,
)
from distbench.show.console import Console
from distbench.show.peaks import peak_of, share_of_peak
from distbench.show.result import result_lines
from distbench.show.units import rate, seconds, size, work
from distbench.show.usage import USAGE
from distbench.world import World

WIDTH = 100


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.0, "0 ns"),
        (5e-9, "5 ns"),
        (1.23456e-5, "12.35 µs"),
        (0.00456, "4.56 ms"),
        (0.9999, "999.9 ms"),
        (1.0, "1 s"),
        (7.891, "7.891 s"),
        (12345.6, "12346 s"),
    ],
)
def test_seconds_have_four_digits_and_a_decimal_unit(value: float | None, shown: str) -> None:
    assert seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.0123456, "12.35 GFLOP/s"),
        (1.0, "1 TFLOP/s"),
        (989.5, "989.5 TFLOP/s"),
        (12345.6, "12346 TFLOP/s"),  # two nodes of eight GPUs
        (2e-7, "0.2 MFLOP/s"),  # a product of two numbers
    ],
)
def test_rates_are_in_the_unit_that_reads_best_and_never_in_powers_of_ten(value: float | None, shown: str) -> None:
    assert rate(value) == shown


def test_sizes_and_work_are_decimal() -> None:
    assert [size(count) for count in (0, 999, 1000, 12_288_000_000)] == ["0 B", "999 B", "1 kB", "12.29 GB"]
    assert [work(flop) for flop in (2, 2 * 10**6, 78_643_200_000)] == ["2 FLOP", "2 MFLOP", "78.64 GFLOP"]
    assert size(8 * 10**16) == "80000 TB"
    assert work(2 * 10**20) == "200000 PFLOP"


def test_every_unit_is_a_thousand_of_the_next_smaller() -> None:
    for shown, largest in ((seconds, 1.0), (rate, 1.0), (size, 1e12), (work, 1e15)):
        texts = [shown(largest * 1.5 / 1000**step) for step in range(3)]
        assert [text.split()[0] for text in texts] == ["1.5"] * 3
        assert len({text.split()[1] for text in texts}) == 3


@pytest.fixture(scope="module")
def ok(world: World) -> dict[str, Any]:
    measure = Measure(warmup=1, min_samples=6, max_samples=6, max_time_s=60.0)
    workload = Workload("gallery_small", 1, 30, 20, 10, DType.float64)
    told = Config(workload, measure, split=Split.m, collect=CollectName.gather, device=Device.cpu, threads=1)
    record = Cell(world, told, lambda event, detail: None).outcome()
    assert record["status"] == "ok", record["reason"]
    return record


def large(record: dict[str, Any], ranks: int = 8) -> dict[str, Any]:
    """The record as a large run on many ranks would have it: long numbers, a rank that is slow, a late start."""
    wide = copy.deepcopy(record)
    wide["config"]["workload"] |= {"m": 3_000_000, "n": 28672, "k": 28672}
    wide["work"] = {"flop": 2 * 3_000_000 * 28672**2, "bytes": 8 * (3_000_000 * 28672 * 2 + 28672**2)}
    rank = wide["world"]["ranks"][0] | {"host": "gpu-node-0123"}
    wide["world"] |= {"size": ranks, "ranks": [rank | {"rank": number} for number in range(ranks)]}
    wide["result"] |= {
        "rank_time_s": [0.5] * (ranks - 1) + [0.75],
        "busbw": 123.456,
        "phases_s": {"h2d": 0.0123, "gemm": 0.5, "collect": 0.7},
        "converged": False,
        "stopped_by": "max_time_s",
    }
    wide["samples"] |= {"dropped_late": 12, "start_reason": "more than half of the window starts were late"}
    wide["samples"]["clock_error_s"] = 1.2e-5
    return wide


def text_of(record: dict[str, Any]) -> str:
    return "\n".join(line.plain for line in result_lines(record))


def test_the_lines_of_an_ok_record_fit(ok: dict[str, Any]) -> None:
    for record in (ok, large(ok)):
        too_long = [line.plain for line in result_lines(record) if line.cell_len > WIDTH]
        assert not too_long


def test_an_ok_record_tells_what_how_fast_what_bounds_it_and_that_it_is_right(ok: dict[str, Any]) -> None:
    text = text_of(ok)
    result, verification = ok["result"], ok["verification"]
    for part in (
        "gallery_small: [30 x 10] · [10 x 20], float64 normal, torch",
        "split m over 1 rank,",
        "collect gather, path collective",
        rate(result["tflops"]),
        rate(result["gemm_tflops"]),
        seconds(result["time_s"]),
        seconds(result["best_s"]),
        f"p5 {seconds(result['p5_s'])}, p95 {seconds(result['p95_s'])}",
        "12000 FLOP",
        "8.8 kB of A, B and C",
        "6 samples",
        f"{verification['tolerance']:.1e} allowed",
    ):
        assert part in text, part
    assert "bound by the " in text


def test_a_large_record_names_the_slowest_rank_the_late_starts_and_the_bus(ok: dict[str, Any]) -> None:
    text = text_of(large(ok))
    for part in (
        "split m over 8 ranks",
        "slowest rank 7 (gpu-node-0123)",
        "12 late dropped",
        "more than half of the window starts were late",
        "123.5 GB/s bus",
        "bound by the collect",
        "not converged: measure.max_time_s",
        "12 µs",
    ):
        assert part in text, part


def test_partial_sums_are_labelled_as_such(ok: dict[str, Any]) -> None:
    partial = copy.deepcopy(ok)
    partial["config"] |= {"split": "k", "collect": "none"}
    assert "partial sums" in text_of(partial)
    assert "partial sums" not in text_of(ok)


def test_fewer_than_six_samples_are_shown_without_an_interval(ok: dict[str, Any]) -> None:
    few = copy.deepcopy(ok)
    few["result"]["time_ci_s"] = None
    assert "needs 6 samples" in text_of(few)


@pytest.mark.parametrize("status", ["failed", "wrong", "skipped"])
def test_a_cell_without_a_result_is_one_line_with_its_reason_and_no_rate(ok: dict[str, Any], status: str) -> None:
    reason = "rank 1 (host a, pid 7), fill: out of memory [sic]"
    bad = copy.deepcopy(ok) | {"status": status, "reason": reason, "result": None, "samples": None}
    (line,) = result_lines(bad)
    assert line.plain == f"{status}: {reason}"
    assert line.cell_len <= WIDTH


def test_a_name_with_brackets_is_not_taken_for_markup(ok: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    named = copy.deepcopy(ok)
    named["config"]["workload"]["name"] = "[bold]mine[/bold]"
    Console(1, False, "single").show(named)
    assert "[bold]mine[/bold]: " in capsys.readouterr().out


def test_a_sweep_has_a_row_a_cell_under_one_head_and_names_the_best(
    ok: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    console = Console(1, True, "single")
    rows = ((1e-4, "ok", "workload.n=64"), (3e-4, "ok", "workload.n=128"), (None, "failed", "workload.n=0"))
    for tflops, status, label in rows:
        record = copy.deepcopy(ok) | {"status": status, "reason": "workload.n=0: a whole number from 1"}
        record["result"] = None if tflops is None else record["result"] | {"tflops": tflops}
        console.begin(None, label)
        console.show(record)
    console.finish(tmp_path / "results.jsonl")
    lines = capsys.readouterr().out.splitlines()
    assert sum("samples" in line for line in lines) == 1
    for _, _, label in rows:
        assert sum(label in line and "best:" not in line for line in lines) >= 1
    assert any("failed" in line and line.lstrip().startswith("3 ") for line in lines)
    assert any("a whole number from 1" in line for line in lines)
    assert any(line.startswith("best: ") and "300 MFLOP/s" in line and "workload.n=128" in line for line in lines)
    assert all(len(line) <= WIDTH for line in lines if "results:" not in line)


def test_a_sweeps_row_names_the_warnings_of_its_cell(ok: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(1, True, "single")
    warning = {"value": 0.3, "threshold": 0.05, "text": "other work", "impossible": False}
    console.begin(None, "workload.n=64")
    console.show(copy.deepcopy(ok) | {"warnings": [warning | {"name": name} for name in ("drift", "busy", "busy")]})
    assert capsys.readouterr().out.splitlines()[-1].strip() == "busy, drift"


def on_gpus(record: dict[str, Any], names: list[str], uuids: list[str]) -> dict[str, Any]:
    told = copy.deepcopy(record)
    (rank,) = told["world"]["ranks"]
    told["world"]["ranks"] = [
        rank | {"device_name": name, "device_uuid": uuid} for name, uuid in zip(names, uuids, strict=True)
    ]
    return told


def test_the_peak_is_the_sum_over_distinct_devices_and_unknown_where_one_is(ok: dict[str, Any]) -> None:
    h200 = "NVIDIA H200"
    assert peak_of(ok) is None
    assert peak_of(on_gpus(ok, [h200] * 2, ["a", "b"])) == 134.0
    assert peak_of(on_gpus(ok, [h200] * 2, ["a", "a"])) == 67.0  # two ranks share one
    assert peak_of(on_gpus(ok, [h200, "NVIDIA Unheard-of"], ["a", "b"])) is None


def test_the_share_of_the_peak_is_the_gemms_and_is_shown(ok: dict[str, Any]) -> None:
    told = on_gpus(ok, ["NVIDIA H200"], ["a"])
    told["result"]["gemm_tflops"] = 33.5
    assert share_of_peak(told) == 0.5
    assert "50.0% of the datasheet's dense 67 TFLOP/s" in text_of(told)
    told["result"]["gemm_tflops"] = None
    assert share_of_peak(told) is None


def test_the_help_fits_a_terminal_and_names_every_workload_and_value() -> None:
    assert max(len(line) for line in USAGE.splitlines()) <= WIDTH
    words = set(USAGE.replace(",", " ").replace(":", " ").split())
    files = {file.stem for group in ("workload", "measure") for file in (conf_dir() / group).glob("*.yaml")}
    values = {str(member) for enum in (Split, CollectName, Path, DType, Fill, Upload, EngineName) for member in enum}
    values |= {str(member) for enum in (Device, Backend) for member in enum}
    assert files | values <= words, sorted((files | values) - words)


def test_no_number_is_shown_as_nan(ok: dict[str, Any]) -> None:
    assert not math.isnan(ok["result"]["time_s"])
    assert "nan" not in text_of(ok)
    assert "None" not in text_of(ok)
