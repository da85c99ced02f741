"""Modes of measuring: what is refused, what is called how often, what the record says; and real cells on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import validate

from distbench import measure as loop
from distbench import modes
from distbench.cell import Cell
from distbench.config import (
    Cache,
    CollectName,
    Config,
    ConfigError,
    Device,
    Drive,
    EngineName,
    Measure,
    Mode,
    Profile,
    Split,
    Upload,
)
from distbench.engines import torch_engine
from distbench.measure import Samples
from distbench.record import to_line
from distbench.rules import check
from distbench.timed import Timed
from distbench.world import World


def run(world: World, **settings: Any) -> dict[str, Any]:
    told = {"warmup": 1, "min_samples": 6, "max_samples": 6} | settings
    config = Config(split=Split.m, device=Device.cpu, threads=1, measure=Measure(**told))
    w = config.workload
    w.m = w.n = w.k = 64
    check(config)
    back: dict[str, Any] = json.loads(to_line(Cell(world, config, lambda event, detail: None).outcome()))
    validate(back)
    return back


def test_the_default_is_named_and_does_nothing(world: World) -> None:
    told = run(world)["samples"]["mode"]
    assert told == {
        "mode": "default",
        "cache": "hot",
        "graph": False,
        "inner": 1,
        "flush_bytes": None,
        "rest_s": 0.0,
        "settle": None,
    }


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the engine's products."""
    counted: list[int] = []
    prepare = torch_engine.prepare

    def counting(*operands: Any) -> Any:
        call = prepare(*operands)
        return lambda: (counted.append(1), call())

    monkeypatch.setattr(torch_engine, "prepare", counting)
    return counted


def test_seven_products_a_sample_are_run_and_the_times_are_of_one(world: World, calls: list[int]) -> None:
    record = run(world, inner=7)
    assert record["status"] == "ok", record["reason"]
    assert record["samples"]["mode"]["inner"] == 7
    assert len(calls) == 1 + 7 + 6 * 7  # the first run, one window to warm up, six samples
    span = record["result"]["time_s"]
    assert record["result"]["tflops"] == pytest.approx(2 * 64**3 / span / 1e12)
    assert record["result"]["phases_s"]["gemm"] <= span


def test_auto_fills_five_milliseconds(world: World) -> None:
    record = run(world, inner="auto")
    inner = record["samples"]["mode"]["inner"]
    assert inner > 1
    assert record["result"]["time_s"] * inner > 0.0015  # five milliseconds, less what a busy machine makes of it


@pytest.mark.parametrize(
    ("inner", "row_s", "next_inner"),
    [
        (1, 1.0, 1),
        (1, 5e-3, 1),
        (1, 2e-3, 3),
        (1, 60e-6, 10),  # most of such a window may be its own cost: never more than ten times as many at once
        (10, 200e-6, 100),
        (100, 1.2e-3, 417),
        (417, 4.9e-3, 417),
        (10_000, 1e-3, 10_000),
        (1, 0.0, 10),
    ],
)
def test_the_number_of_products_by_hand(inner: int, row_s: float, next_inner: int) -> None:
    assert modes.inner_for(inner, row_s) == next_inner


def test_only_durations_are_divided() -> None:
    samples = Samples(
        span_s=[4.0],
        dropped_span_s=[8.0],
        rank_s=[[2.0]],
        start_s=[[0.5]],
        start_skew_s=[0.5],
        phases_s={"gemm": [[2.0]]},
    )
    modes.per_product(samples, 4)
    assert (samples.span_s, samples.dropped_span_s, samples.rank_s) == ([1.0], [2.0], [[0.5]])
    assert (samples.phases_s, samples.start_s, samples.start_skew_s) == ({"gemm": [[0.5]]}, [[0.5]], [0.5])


def test_the_last_of_several_products_is_verified(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = torch_engine.prepare
    made: list[int] = []

    def wrong_in_the_end(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        call = prepare(a, b, c)

        def product() -> None:
            made.append(1)
            call()
            if len(made) == 1 + 3 + 6 * 3:
                c[0, 3].add_(1.0)

        return product

    monkeypatch.setattr(torch_engine, "prepare", wrong_in_the_end)
    assert run(world, inner=3)["status"] == "wrong"


def test_cold_caches_are_written_over_before_each_sample(world: World) -> None:
    record = run(world, cache=Cache.cold)
    assert record["status"] == "ok", record["reason"]
    expected = 2 * modes.last_level_bytes(torch.device("cpu"))
    assert record["samples"]["mode"]["flush_bytes"] == expected >= 1 << 20


def test_the_flush_is_before_the_window_and_every_rank_waits_for_it(world: World) -> None:
    told = modes.told_of(Measure(cache=Cache.cold))
    order: list[str] = []
    plain = Timed(("gemm",), lambda: order.append("run"), lambda: [1], before=lambda: order.append("before"))
    timed = modes.cold(world, plain, [torch.device("cpu")], told)
    assert timed.prepares
    assert timed.run is plain.run
    timed.before()
    assert order == ["before"]
    assert modes.cold(world, plain, [], told).prepares  # a rank that stands aside


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [(("32K", "1024K", "32768K"), 32 << 20), (("2M",), 2 << 20), ((), 64 << 20), (("?",), 64 << 20)],
)
def test_the_largest_cache_is_the_last(tmp_path: Path, sizes: tuple[str, ...], expected: int) -> None:
    from distbench import cores

    for index, text in enumerate(sizes):
        folder = tmp_path / f"cpu{cores.affinity()[0]}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(text + "\n")
    assert modes.last_level_bytes(torch.device("cpu"), tmp_path) == expected


@pytest.mark.parametrize(
    ("spans", "clocks", "still"),
    [
        ([1.0, 1.0], [None, None], False),
        ([1.0, 1.0, 1.0], [None] * 3, True),
        ([1.0, 1.0, 1.02], [None] * 3, False),
        ([2.0, 1.0, 1.005, 1.01], [None] * 4, True),
        ([1.0] * 3, [1980.0, 1900.0, 1900.0], False),
        ([1.0] * 4, [1980.0, 1900.0, 1905.0, 1900.0], True),
    ],
)
def test_when_a_device_has_settled(spans: list[float], clocks: list[float | None], still: bool) -> None:
    assert modes.stands_still(spans, clocks) is still


def test_settling_is_bounded_and_told(world: World) -> None:
    told = run(world, settle=True, settle_max_s=0.6)["samples"]["mode"]["settle"]
    assert 0.6 <= told["seconds"] < 5
    assert told["rounds"] >= len(told["span_s"]) == len(told["sm_clock_mhz"]) >= 1


def test_a_burst_rests_before_its_samples(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(modes.time, "sleep", slept.append)
    told = run(world, mode=Mode.burst, max_time_s=0.5)["samples"]["mode"]
    assert (told["mode"], told["rest_s"], slept) == ("burst", 2.0, [2.0])


def test_nothing_ends_before_min_time() -> None:
    samples = Samples(span_s=[1.0] * 50)
    settings = Measure(min_time_s=5.0, max_samples=50)
    assert loop._stopped_by(samples, settings, 4.9) == ""
    assert loop._stopped_by(samples, settings, 5.0) == "target_rel_ci"


@pytest.mark.parametrize(
    ("key", "measure", "others"),
    [
        ("measure.inner", {"inner": 0}, {}),
        ("measure.inner", {"inner": "many"}, {}),
        ("measure.inner", {"inner": True}, {}),
        ("measure.inner", {"inner": 2, "cache": Cache.cold}, {}),
        ("measure.inner", {"inner": "auto"}, {"collect": CollectName.gather}),
        ("measure.graph", {"graph": True}, {"collect": CollectName.gather}),
        ("measure.graph", {"graph": True}, {"device": Device.cpu}),
        ("measure.graph", {"graph": True}, {"engine": EngineName.numpy}),
        ("measure.graph", {"graph": True}, {"engine": EngineName.cupy}),
        ("measure.graph", {"graph": True}, {"drive": Drive.threads}),
        ("profile", {"graph": True}, {"profile": Profile.torch}),
        ("measure.min_time_s", {"min_time_s": 11.0}, {}),
        ("measure.mode", {"mode": Mode.burst, "settle": True}, {}),
        ("measure.mode", {"mode": Mode.sustained}, {}),
        ("measure.settle_max_s", {"settle_max_s": 0.0}, {}),
    ],
)
def test_what_does_not_go_together_is_refused(key: str, measure: dict[str, Any], others: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        check(Config(measure=Measure(**measure), **others))
    assert caught.value.key == key


def test_an_upload_is_no_part_of_several_products() -> None:
    config = Config(measure=Measure(inner=2))
    config.workload.upload = Upload.b
    with pytest.raises(ConfigError, match=r"^measure.inner=2: "):
        check(config)


def test_a_graph_on_a_machine_without_a_gpu_is_refused_before_anything_is_allocated(world: World) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    cell = Cell(world, Config(measure=Measure(graph=True)), lambda event, detail: None)
    record = cell.outcome()
    assert record["reason"].startswith("measure.graph=true: a CUDA graph needs a GPU")
    assert cell.refused


def test_a_rank_that_stands_aside_has_nothing_to_repeat() -> None:
    calls: list[int] = []
    modes.repeated(lambda: calls.append(1), 5)()
    assert len(calls) == 5
    single = SimpleNamespace()
    assert modes.repeated(single, 1) is single  # type: ignore[arg-type, comparison-overlap]
