"""One real cell in a world of one: the record's fields, its arithmetic, and what a failure or a wrong product leaves."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distbench.cell import Cell
from distbench.config import (
    Backend,
    CollectName,
    Config,
    Device,
    DType,
    EngineName,
    Measure,
    Path,
    Split,
    Upload,
    Workload,
    cell_id,
    from_dict,
)
from distbench.engines import ENGINES, torch_engine
from distbench.record import to_line
from distbench.stats import median, median_interval, quantile
from distbench.world import World

QUICK = Measure(warmup=2, min_samples=6, max_samples=8, max_time_s=60.0)


def config(**changes: Any) -> Config:
    workload = Workload("tiny", 1, 30, 20, 10, DType.float64)
    fixed = {"workload": workload, "measure": QUICK, "split": Split.m, "device": Device.cpu, "threads": 1}
    return Config(**fixed | changes)


def run(world: World, told: Config, events: list[tuple[str, Any]] | None = None) -> dict[str, Any]:
    tell = lambda event, detail: None if events is None else events.append((event, detail))  # noqa: E731
    record = Cell(world, told, tell).outcome()
    back: dict[str, Any] = json.loads(to_line(record))
    return back


@pytest.fixture(scope="module")
def ok(world: World) -> dict[str, Any]:
    record = run(world, config())
    assert record["status"] == "ok", record["reason"]
    return record


def test_a_record_has_every_field_that_other_tools_read(ok: dict[str, Any]) -> None:
    """DESIGN.md, "The record": add fields, don't rename."""
    assert ok["schema"] == 1
    assert {"cell", "status", "reason", "config", "world", "work", "samples", "result", "verification"} <= ok.keys()
    assert {"size", "launcher", "backend", "ranks"} <= ok["world"].keys()
    rank_fields = {"rank", "local_rank", "host", "pid", "device", "device_name", "device_uuid", "threads", "affinity"}
    assert rank_fields | {"shard"} <= ok["world"]["ranks"][0].keys()
    assert {"span_s", "rank_s", "dropped_late", "dropped_span_s", "phases_s"} <= ok["samples"].keys()
    times = {"time_s", "time_ci_s", "tflops", "best_s", "p5_s", "p95_s", "setup_s", "first_s", "converged"}
    assert times <= ok["result"].keys()
    assert {"ok", "method", "max_error", "tolerance"} <= ok["verification"].keys()
    assert {"distbench", "torch", "python", "command", "host", "cpu"} <= ok["environment"].keys()


def test_the_headline_is_the_whole_work_over_the_median_span(ok: dict[str, Any]) -> None:
    spans, result = ok["samples"]["span_s"], ok["result"]
    assert (ok["work"]["flop"], ok["work"]["bytes"]) == (2 * 30 * 20 * 10, 8 * (30 * 10 + 10 * 20 + 30 * 20))
    told = {
        "flop_per_term": 2,
        "stored_dtype": "float64",
        "c_dtype": "float64",
        "accumulate": "float64",
        "layout": "nn",
    }
    assert told.items() <= ok["work"].items()
    assert result["time_s"] == median(spans)
    assert result["tflops"] == pytest.approx(12000 / median(spans) / 1e12, rel=1e-12)
    assert result["time_ci_s"] == list(median_interval(spans) or [])
    assert (result["best_s"], result["p5_s"]) == (min(spans), quantile(spans, 0.05))
    assert result["samples"] == len(spans) >= 6


def test_a_sample_is_no_shorter_than_the_rank_and_phase_times_within_it(ok: dict[str, Any]) -> None:
    samples = ok["samples"]
    assert list(samples["phases_s"]) == ["gemm"]
    for span, rank, gemm in zip(samples["span_s"], samples["rank_s"][0], samples["phases_s"]["gemm"][0], strict=True):
        assert 0 < gemm <= rank <= span + 1e-12


def test_the_cell_is_named_by_the_configuration_as_it_was_written(ok: dict[str, Any]) -> None:
    assert ok["cell"] == cell_id(config(), 1)
    assert ok["autos"] == ["path", "backend"]
    assert (ok["config"]["path"], ok["config"]["backend"], ok["config"]["device"]) == ("in_place", "gloo", "cpu")
    written = ok["config"] | dict.fromkeys(ok["autos"], "auto")
    assert from_dict(written) == config()


def test_a_ranks_shard_and_threads_are_recorded(ok: dict[str, Any]) -> None:
    (rank,) = ok["world"]["ranks"]
    assert rank["shard"] == {"batch": 1, "m": 30, "n": 20, "k": 10}
    assert rank["threads"] == torch.get_num_threads()
    assert (ok["world"]["size"], ok["world"]["launcher"]) == (1, "single")


def test_the_stages_are_told_in_order(world: World) -> None:
    events: list[tuple[str, Any]] = []
    run(world, config(), events)
    stages = [detail for event, detail in events if event == "stage"]
    assert stages == ["plan", "fill", "first run", "verify", "warm up", "measure", "verify"]
    assert [event for event, _ in events].count("placed") == 1


CELLS: dict[str, dict[str, Any]] = {
    "numpy": {"engine": EngineName.numpy},
    "bfloat16 batches": {"workload": Workload("b", 3, 9, 8, 7, DType.bfloat16), "split": Split.batch},
    "split none to host": {"split": Split.none, "collect": CollectName.host},
    "gather": {"collect": CollectName.gather},
    "gather p2p": {"collect": CollectName.gather, "path": Path.p2p},
    "all_gather": {"split": Split.n, "collect": CollectName.all_gather},
    "reduce": {"split": Split.k, "collect": CollectName.reduce},
    "reduce_scatter": {"split": Split.k, "collect": CollectName.reduce_scatter},
    "all_reduce": {"split": Split.k, "collect": CollectName.all_reduce},
}


@pytest.mark.parametrize("name", CELLS)
def test_every_collect_is_right_in_a_world_of_one(world: World, name: str) -> None:
    record = run(world, config(**CELLS[name]))
    assert record["status"] == "ok", record["reason"]
    assert record["verification"]["ok"]
    assert record["result"]["busbw"] is None  # nothing crosses a link


@pytest.mark.parametrize("upload", [Upload.b, Upload.ab], ids=str)
def test_an_upload_is_a_phase_of_its_own_before_the_product(world: World, upload: Upload) -> None:
    told = config(workload=Workload("tiny", 1, 30, 20, 10, DType.float32, upload=upload))
    record = run(world, told)
    assert record["status"] == "ok", record["reason"]
    assert list(record["samples"]["phases_s"]) == ["h2d", "gemm"]


def with_engine(monkeypatch: pytest.MonkeyPatch, prepare: Any) -> None:
    engine = SimpleNamespace(prepare=prepare, settings=torch_engine.settings)
    monkeypatch.setitem(ENGINES, EngineName.torch, engine)


def test_a_wrong_product_is_a_record_without_a_rate(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def off_by_one(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        return lambda: torch.add(a @ b, 1, out=c)

    with_engine(monkeypatch, off_by_one)
    record = run(world, config())
    assert record["status"] == "wrong"
    assert record["reason"].startswith("wrong result: rank 0: C[0, 0, 0] is ")
    assert record["result"] is None
    assert record["samples"] is None
    assert record["verification"]["ok"] is False
    assert record["verification"]["max_error"] > record["verification"]["tolerance"]


def test_a_product_that_is_never_computed_is_wrong_and_not_fast(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """C is poisoned before the run that is verified; its error, not finite, is null in the record."""
    with_engine(monkeypatch, lambda a, b, c: lambda: None)
    record = run(world, config())
    assert (record["status"], record["result"]) == ("wrong", None)
    assert "is nan and should be" in record["reason"]
    assert record["verification"]["max_error"] is None


def test_an_engine_that_raises_fails_the_cell_with_rank_stage_and_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nand more")

    with_engine(monkeypatch, refuse)
    record = run(world, config())
    assert record["status"] == "failed"
    assert record["reason"].startswith("rank 0 (host ")
    assert "allocate: out of memory (RuntimeError: CUDA out of memory. Tried to allocate 2 GiB)" in record["reason"]
    assert "\n" not in record["reason"]
    assert record["result"] is None
    monkeypatch.undo()
    assert run(world, config())["status"] == "ok"  # the next cell of a sweep


def test_what_does_not_fit_is_refused_before_it_is_allocated_with_the_size_that_would(world: World) -> None:
    record = run(world, config(workload=Workload("huge", 1, 2**39, 20, 10, DType.float64)))
    assert record["status"] == "failed"
    assert record["reason"].startswith("workload.m=549755813888: does not fit: needs ")
    assert "the largest m that fits is " in record["reason"]
    assert record["world"]["ranks"][0]["shard"]["m"] == 2**39


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"collect": CollectName.reduce}, "collect=reduce: "),
        ({"workload": Workload(m=0)}, "workload.m=0: "),
        ({"device": Device.auto, "backend": Backend.nccl}, "backend=nccl: "),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_an_impossible_cell_is_a_failed_record_in_the_words_of_the_check(
    world: World, changes: dict[str, Any], start: str
) -> None:
    if "backend" in changes and torch.cuda.is_available():
        changes = changes | {"device": Device.cpu}
    record = run(world, config(**changes))
    assert (record["status"], record["result"]) == ("failed", None)
    assert record["reason"].startswith(start)


def test_a_cells_threads_are_those_that_were_asked_for(world: World) -> None:
    for threads in (2, 1):  # 1 last: it stays set for the other tests
        record = run(world, config(threads=threads))
        assert record["world"]["ranks"][0]["threads"] == threads == torch.get_num_threads()
        assert record["config"]["threads"] == threads
