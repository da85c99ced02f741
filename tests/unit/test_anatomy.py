"""The anatomy of a query, from records whose numbers are worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from distbench.anatomy import anatomy
from distbench.config import Config, Device, Measure, Workload
from distbench.cores import libraries_of
from distbench.show.anatomy import anatomy_lines, anatomy_markdown

GB = 10**9


def row(name: str, value: float, unit: str = "GB/s", busbw: float | None = None) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "busbw": busbw}


def query(**changes: Any) -> dict[str, Any]:
    """Two ranks, each with 1000 rows of [2000 x 500] · [500 x 250], float64: A is 8 MB, B 2 x 1 MB, C 4 MB."""
    config: dict[str, Any] = {
        "workload": {
            "name": "q",
            "dtype": "float64",
            "upload": "b",
            "padding": 0,
            "batch": 1,
            "m": 2000,
            "n": 250,
            "k": 500,
        },
        "device": "cuda",
        "collect": "host",
        "path": "pinned",
        "engine": "torch",
        "drive": "process",
    }
    shard = {"batch": 1, "m": 1000, "n": 250, "k": 500}
    record = {
        "config": config | changes.get("config", {}),
        "world": {"size": 2, "ranks": [{"parts": [{"shard": shard}]}, {"parts": [{"shard": shard}]}]},
        "work": {"flop": 500_000_000, "bytes": 13 * 10**6, "layout": "nn"},
        "samples": {"phases_overlap": changes.get("overlap", False)},
        "result": {
            "time_s": 1e-3,
            "phases_s": {"h2d": 5e-5, "gemm": 1e-4, "collect": 8e-4},
            "setup_s": 3.0,
            "fill_s": 0.1,
            "start_skew_s": 1e-5,
            "barrier_s": 1e-6,
        },
        "limits": {
            "rows": [
                row("device to host, pinned", 10.0),
                row("device to host, pageable", 8.0),
                row("host to device, pinned", 50.0),
                row("memory copy", 20.0),
                row("GEMM alone", 6.25, "TFLOP/s"),
                row("all_gather", 4.0, busbw=3.0),
            ],
            "phases_host_s": {"h2d": 6e-5, "gemm": 1.1e-4, "collect": 9e-4},
            "reason": None,
        },
        "ceiling": changes.get("ceiling"),
    }
    record["result"] |= changes.get("result", {})
    return record


def phases_of(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {phase["name"]: phase for phase in anatomy(record)["phases"]}


def test_each_phase_has_its_bytes_or_flop_over_its_time_and_under_its_limit() -> None:
    told = phases_of(query())
    assert list(told) == ["set-up", "fill", "h2d", "gemm", "collect"]
    assert (told["fill"]["bytes"], told["fill"]["rate"]) == (10 * 10**6, pytest.approx(0.1))
    # B goes to both devices: 2 MB in 50 µs are 40 of 50 GB/s
    h2d, gemm, collect = told["h2d"], told["gemm"], told["collect"]
    assert (h2d["bytes"], h2d["rate"], h2d["limit_share"]) == (2 * 10**6, pytest.approx(40), pytest.approx(0.8))
    # 0.5 GFLOP in 100 µs are 5 of 6.25 TFLOP/s
    assert (gemm["flop"], gemm["rate"], gemm["limit_share"]) == (500_000_000, pytest.approx(5), pytest.approx(0.8))
    # 4 MB in 800 µs are 5 of 10 GB/s
    assert (collect["bytes"], collect["rate"], collect["limit_share"]) == (4 * 10**6, pytest.approx(5), 0.5)
    assert (collect["device_s"], collect["host_s"], collect["share"]) == (8e-4, 9e-4, pytest.approx(0.8))


def test_the_sentence_names_the_phase_its_share_its_rate_and_what_limits_it() -> None:
    assert anatomy(query())["sentence"] == (
        "bound by the copy of C to the host: 80% of the span, at 5 of the 10 GB/s that this link gives (50%)"
    )
    gemm = {"phases_s": {"h2d": 5e-5, "gemm": 9e-4, "collect": 5e-5}}
    # 0.5 GFLOP in 900 µs: 556 GFLOP/s, 9 % of 6.25 TFLOP/s
    assert anatomy(query(result=gemm))["sentence"] == (
        "bound by the GEMM: 90% of the span, at 0.556 of the 6.25 TFLOP/s that it reaches alone (9%)"
    )
    assert anatomy(query(result={"start_skew_s": 9e-4}))["sentence"] == (
        "bound by the ranks' uneven start: 90% of the span"
    )


def test_a_copy_faster_than_memory_is_told_as_one_in_caches() -> None:
    # 8 MB read and written in 200 µs: 40 of 20 GB/s
    cpu = query(config={"device": "cpu", "path": "pageable"}, result={"phases_s": {"gemm": 1e-4, "collect": 2e-4}})
    assert anatomy(cpu)["sentence"].endswith(
        "at 40 of the 20 GB/s that a copy in memory reaches here (200%, so in caches)"
    )


def test_overlapping_phases_are_judged_by_the_time_that_their_work_takes_at_its_limit() -> None:
    told = anatomy(query(overlap=True, config={"path": "pipelined"}))
    # C: 4 MB at 10 GB/s are 400 µs of 1 ms; GEMM: 0.5 GFLOP at 6.25 TFLOP/s are 80 µs; B: 2 MB at 50 GB/s are 40 µs
    assert told["sentence"] == (
        "the phases overlap; bound by none of the measured limits: the copy of C to the host at the 10 GB/s that this "
        "link gives takes 40% of the span; the GEMM would take 8%; the copy of B to the device would take 4%"
    )
    blind = query(overlap=True) | {"limits": None}
    assert "measure.limits=true does" in anatomy(blind)["sentence"]


def test_the_kept_ceiling_is_the_limit_of_a_gemm_alone_and_the_memory_where_that_is_lower() -> None:
    ceiling = {"gemm_tflops": 10.0, "roof_tflops": 10.0}
    gemm = phases_of(query(ceiling=ceiling))["gemm"]
    assert (gemm["limit"], gemm["limit_name"]) == (10.0, "GEMM ceiling")
    assert phases_of(query(ceiling=ceiling | {"roof_tflops": 8.0}))["gemm"]["limit_name"] == "memory roof"
    beside = query(ceiling=ceiling, config={"collect": "topk", "path": "collective"})
    assert phases_of(beside)["gemm"]["limit_name"] == "GEMM alone"


@pytest.mark.parametrize(
    ("device", "collect", "path", "moved", "limit"),
    [
        ("cuda", "host", "fresh", 4_000_000, "device to host, pageable"),
        ("cuda", "host", "shared", 4_000_000, "device to host, pinned"),
        ("cpu", "host", "pageable", 8_000_000, "memory copy"),  # read and written
        ("cpu", "host", "shared", None, None),  # a barrier
        ("cpu", "all_gather", "collective", 2_000_000, "all_gather"),  # half of C crosses a link
        ("cuda", "topk", "collective", None, None),
    ],
)
def test_what_a_path_moves_and_over_what(
    device: str, collect: str, path: str, moved: int | None, limit: str | None
) -> None:
    told = phases_of(query(config={"device": device, "collect": collect, "path": path}))["collect"]
    assert (told["bytes"], told["limit_name"]) == (moved, limit)
    assert (told["device_s"] is None) == (device == "cpu")


def test_a_new_array_each_time_tells_its_page_faults() -> None:
    record = query(config={"path": "fresh"}, result={"loop": {"page_faults_per_run": 977.0}})
    told = anatomy(record)
    assert told["page_faults_per_run"] == 977.0
    assert told["sentence"].endswith(
        "at 5 of the 8 GB/s that this link gives with pageable memory (62%); its new array costs 977 page faults a run"
    )


def test_without_limits_there_is_the_rate_and_no_table() -> None:
    record = query() | {"limits": None}
    record["anatomy"] = anatomy(record)
    assert record["anatomy"]["sentence"] == "bound by the copy of C to the host: 80% of the span, at 5 GB/s"
    assert (anatomy_lines(record), anatomy_markdown([record], lambda record: "q")) == ([], [])


def test_the_table_fits_a_terminal_and_has_the_sentence_below_it() -> None:
    record = query()
    record["anatomy"] = anatomy(record)
    lines = anatomy_lines(record)
    assert max(map(len, lines)) <= 80
    assert "collect     800 µs     900 µs         4 MB         5 GB/s     50.0%    80.0%" in "\n".join(lines)
    assert "  limit: 10 GB/s device to host, pinned" in lines
    page = anatomy_markdown([record], lambda record: "q")
    assert "| q | collect | 800 µs | 900 µs | 4 MB | 5 GB/s | 10 GB/s device to host, pinned | 50.0% | 80.0% |" in page
    assert f"- q: {record['anatomy']['sentence']}." in page


def test_torchs_libraries_are_read_from_what_it_says_of_its_build() -> None:
    told = "Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build\n - Intel(R) MKL-DNN v3.7.1 (Git)\nBLAS_INFO=mkl,"
    assert libraries_of(told) == ["MKL 2024.2", "oneDNN 3.7.1"]
    assert libraries_of("  - Build settings: BLAS_INFO=open, BUILD_TYPE=Release") == ["OpenBLAS"]
    assert libraries_of("") == []


def test_a_cell_measures_its_limits_and_its_product_stays_right(world: Any) -> None:
    from distbench.cell import Cell

    measure = Measure(warmup=1, min_samples=2, max_samples=2, max_time_s=60.0, limits=True)
    cell = Config(Workload("q", 1, 300, 20, 10), measure, device=Device.cpu, threads=1)
    record = Cell(world, cell, lambda event, detail: None).outcome()
    assert record["status"] == "ok", record["reason"]
    rows = {row["name"]: row for row in record["limits"]["rows"]}
    assert set(rows) == {"GEMM alone", "memory copy"}
    assert rows["memory copy"]["bytes"] == 2 << 27
    assert record["anatomy"]["phases"][-1]["limit"] == pytest.approx(rows["GEMM alone"]["value"])


def test_limits_that_cannot_be_measured_are_a_reason_and_no_failure_of_the_cell(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distbench import probe
    from distbench.cell import Cell

    def full(count: int, device: Any) -> Any:
        raise MemoryError(f"no room for {count} bytes")

    monkeypatch.setattr(probe, "empty", full)
    measure = Measure(warmup=1, min_samples=2, max_samples=2, max_time_s=60.0, limits=True)
    cell = Config(Workload("q", 1, 300, 20, 10), measure, device=Device.cpu, threads=1)
    record = Cell(world, cell, lambda event, detail: None).outcome()
    assert record["status"] == "ok", record["reason"]
    assert "no room" in record["limits"]["reason"]
    assert [row["name"] for row in record["limits"]["rows"]] == ["GEMM alone"]
    assert any("limits not measured" in line for line in anatomy_lines(record))
