"""Ceilings: what is kept, how a later result is compared with it, and real ones of a world of one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import validate

from distbench.ceilings import collectives, copies, store
from distbench.ceilings.rows import Row, together
from distbench.cell import Cell
from distbench.config import Config, ConfigError, Device, Drive, Measure, Split, cell_id
from distbench.engines import torch_engine
from distbench.record import to_line
from distbench.rules import check
from distbench.show.ceilings import ceiling_lines
from distbench.show.report.ceilings import ceilings_of
from distbench.world import World

QUICK = Measure(warmup=1, min_samples=3, max_samples=3)


def run(world: World, folder: Path, run_folder: Path, **ceilings: Any) -> dict[str, Any]:
    config = Config(split=Split.none, device=Device.cpu, threads=1, measure=QUICK)
    w = config.workload
    w.m = w.n = w.k = 256
    config.ceilings.folder = str(folder)
    for name, value in ceilings.items():
        setattr(config.ceilings, name, value)
    run_folder.mkdir(exist_ok=True)
    told = Cell(world, config, lambda event, detail: None, run_folder).outcome()
    back: dict[str, Any] = json.loads(to_line(told))
    validate(back)
    return back


def test_ceilings_are_measured_kept_and_the_next_cell_tells_its_share(world: World, tmp_path: Path) -> None:
    before = run(world, tmp_path / "kept", tmp_path / "run")
    assert (before["ceiling"], before["result"]["ceiling_share"]) == (None, None)
    told = run(world, tmp_path / "kept", tmp_path / "run", measure=True, budget_s=1.0)
    assert told["status"] == "ok", told["reason"]
    rows = told["ceilings"]
    assert {row["name"] for row in rows} >= {"clock", "memory copy", "GEMM"}
    for row in rows:
        assert row["value"] is not None, row
        assert row["verified"] == (row["name"] != "clock")
        assert len(row["samples"]) >= 5
    name = told["ceilings_kept"]["identity"]
    for folder in ("kept", "run"):
        assert json.loads((tmp_path / folder / f"{name}.json").read_text())["ceilings"] == rows
    after = run(world, tmp_path / "kept", tmp_path / "run")
    best = max(row["value"] for row in rows if row["dtype"] == "float32" and row["name"] == "GEMM")
    assert after["ceiling"]["gemm_tflops"] == best
    assert after["result"]["ceiling_share"] == pytest.approx(after["result"]["gemm_tflops"] / best)
    assert f"{after['result']['ceiling_share']:.1%} of the measured" in ceiling_lines(after)[0]
    (roof,) = ceilings_of([after])
    assert (roof.tflops, roof.name) == (best, f"measured float32, machine {name}")


def test_a_wrong_product_is_no_ceiling(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = torch_engine.prepare

    def off_by_one(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        call = prepare(a, b, c)
        return call if a.dtype != torch.float64 else lambda: (call(), c[0, 3].add_(1.0))

    monkeypatch.setattr(torch_engine, "prepare", off_by_one)
    told = run(world, tmp_path, tmp_path, measure=True, budget_s=1.0)
    assert told["status"] == "wrong"
    assert not list(tmp_path.glob("*.json"))


def record_of(gemm_tflops: float, **changes: Any) -> dict[str, Any]:
    part = {"device_uuid": None, "device_name": None}
    told: dict[str, Any] = {
        "world": {"size": 2, "ranks": [{"host": "h", "parts": [part]}, {"host": "h", "parts": [part]}]},
        "config": {"workload": {"dtype": "float32"}, "split": "m"},
        "result": {"gemm_tflops": gemm_tflops},
        "work": {"flop": 1000, "bytes": 100},
    }
    return told | changes


def rows(*values: tuple[str, float, str | None, bool]) -> dict[str, Any]:
    told = [vars(Row(name, "", value, value, dtype=dtype, verified=ok)) for name, value, dtype, ok in values]
    return {"identity": "0" * 12, "time": "2026-01-01T00:00:00Z", "ceilings": told}


def test_the_share_and_the_roof_by_hand() -> None:
    kept = rows(
        ("GEMM", 2.0, "float32", True),
        ("GEMM", 9.0, "float32", False),  # unverified
        ("GEMM", 5.0, "float64", True),
        ("memory copy", 100.0, None, True),
    )
    told = store.compared(kept, record_of(0.5))
    assert told is not None
    assert (told["gemm_tflops"], told["share"]) == (2.0, 0.25)
    # 10 FLOP a byte at 100 GB/s: 1 TFLOP/s
    assert (told["flop_per_byte"], told["roof_tflops"], told["roof_share"]) == (10.0, 1.0, 0.5)


def test_every_distinct_gpu_adds_its_own_ceiling_and_every_copy_of_the_problem_its_own_bytes() -> None:
    ranks = [{"host": "h", "parts": [{"device_uuid": uuid, "device_name": "X"}]} for uuid in ("a", "b", "b")]
    told = record_of(3.0, world={"size": 3, "ranks": ranks}, config={"workload": {"dtype": "float32"}, "split": "none"})
    compared = store.compared(rows(("GEMM", 2.0, "float32", True)), told)
    assert compared is not None
    assert (compared["devices"], compared["gemm_tflops"], compared["share"]) == (2, 4.0, 0.75)
    assert compared["flop_per_byte"] == pytest.approx(10 / 3)


def test_no_ceiling_of_the_dtype_is_no_share() -> None:
    compared = store.compared(rows(("GEMM", 2.0, "float64", True)), record_of(3.0))
    assert compared is not None
    assert (compared["share"], compared["gemm"]) == (None, None)
    assert store.compared(None, record_of(3.0)) is None


@pytest.mark.parametrize(
    ("name", "ranks", "factor"),
    [
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("broadcast", 4, 1.0),
        ("reduce", 2, 1.0),
    ],
)
def test_bus_bandwidth_has_nccl_tests_factors(name: str, ranks: int, factor: float) -> None:
    assert collectives.FACTORS[name](ranks) == factor


def test_wrong_numbers_of_a_collective_are_seen() -> None:
    world: Any = SimpleNamespace(size=3, is_root=True)
    own, good = torch.full((2,), 1.0), torch.tensor([1.0, 1, 2, 2, 3, 3])
    collectives._check(world, "all_gather", own, good)
    with pytest.raises(ValueError, match="all_gather of 24 bytes brought wrong numbers"):
        collectives._check(world, "all_gather", own, good.flip(0))
    collectives._check(world, "all_reduce", own, torch.full((6,), 6.0))
    with pytest.raises(ValueError, match="wrong numbers"):
        collectives._check(world, "all_reduce", own, torch.full((6,), 5.0))


def test_a_copy_that_misses_a_byte_is_seen() -> None:
    source = copies.pattern(1000, torch.device("cpu"))
    target = source.clone()
    copies.same(source, target)
    target[999] += 1
    with pytest.raises(ValueError, match="differs"):
        copies.same(source, target)


def test_a_broken_or_missing_file_is_no_ceiling(tmp_path: Path) -> None:
    assert store.kept(tmp_path, "x") is None
    (tmp_path / "x.json").write_text("{")
    assert store.kept(tmp_path, "x") is None


def test_a_folder_that_cannot_be_written_is_told_and_the_other_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = store.keep([tmp_path / "file" / "x", tmp_path / "run"], {"cpu": "x"}, [])
    assert len(told["files"]) == 1
    assert "Not a directory" in told["reason"]


def test_the_folder_follows_the_cache_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert store.folder(None) == Path("/somewhere/distbench/ceilings")
    assert store.folder("/own") == Path("/own")


def test_what_ceilings_do_not_go_with_is_refused() -> None:
    config = Config(split=Split.none)
    config.ceilings.measure = True
    check(config)
    config.split = Split.m
    with pytest.raises(ConfigError, match=r"^split=m: ceilings"):
        check(config)
    config.split, config.drive = Split.none, Drive.loop
    with pytest.raises(ConfigError, match=r"^drive=loop: ceilings"):
        check(config)


def test_where_ceilings_are_kept_changes_no_cell_and_measuring_them_does() -> None:
    plain, elsewhere, measuring = Config(), Config(), Config()
    elsewhere.ceilings.folder = "/x"
    measuring.ceilings.measure = True
    assert cell_id(plain, 1) == cell_id(elsewhere, 1) != cell_id(measuring, 1)


def test_ranks_that_share_a_device_are_rated_together() -> None:
    def ranks(*seats: tuple[str, str | None]) -> list[dict[str, Any]]:
        return [{"host": host, "device_uuid": uuid} for host, uuid in seats]

    assert together(ranks(("h", None), ("h", None), ("i", None))) == 2
    assert together(ranks(("h", "a"), ("h", "b"))) == 1
    assert together(ranks(("h", "a"), ("h", "a"), ("h", "b"))) == 2
