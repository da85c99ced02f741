"""Modes and ceilings on a GPU."""

from __future__ import annotations

import pytest
import torch

from distbench.config import Cache, Config, Device, DType, Measure, Split

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def run(lone_world, n: int, dtype: DType = DType.float32, **settings):
    from distbench.cell import Cell

    told = {"warmup": 2, "min_samples": 20, "max_samples": 20} | settings
    config = Config(split=Split.m, device=Device.cuda, measure=Measure(**told))
    config.workload.dtype = dtype
    config.workload.m = config.workload.n = config.workload.k = n
    record = Cell(lone_world, config, lambda event, detail: None).outcome()
    assert record["status"] == "ok", record["reason"]
    return record


@pytest.mark.parametrize(
    "dtype", [DType.float32, DType.float64, DType.bfloat16, DType.int8, DType.float8_e4m3fn], ids=str
)
@pytest.mark.parametrize("inner", [1, 20])
def test_a_graph_is_right_and_no_slower_than_launches(lone_world, dtype: DType, inner: int) -> None:
    plain = run(lone_world, 256, dtype, inner=inner)
    graph = run(lone_world, 256, dtype, inner=inner, graph=True)
    assert graph["samples"]["mode"]["graph"]
    if inner > 1:
        assert graph["result"]["time_s"] < 1.2 * plain["result"]["time_s"]


def test_several_products_a_sample_hide_the_launch(lone_world) -> None:
    one, many = run(lone_world, 256), run(lone_world, 256, inner="auto")
    assert many["samples"]["mode"]["inner"] > 10
    assert many["result"]["time_s"] < one["result"]["time_s"]
    assert "device_idle" in [warning["name"] for warning in one["warnings"]]
    assert "device_idle" not in [warning["name"] for warning in many["warnings"]]


def test_cold_caches_are_slower_where_the_operands_fit_into_them(lone_world) -> None:
    hot, cold = run(lone_world, 1024, DType.bfloat16), run(lone_world, 1024, DType.bfloat16, cache=Cache.cold)
    assert cold["samples"]["mode"]["flush_bytes"] >= 2 * torch.cuda.get_device_properties(0).L2_cache_size
    assert cold["result"]["phases_s"]["gemm"] > hot["result"]["phases_s"]["gemm"]


def test_a_settled_card_tells_its_clock(lone_world) -> None:
    told = run(lone_world, 4096, DType.bfloat16, settle=True, settle_max_s=15.0)["samples"]["mode"]["settle"]
    assert len(told["span_s"]) == len(told["sm_clock_mhz"])
    assert all(clock is None or 100 < clock < 5000 for clock in told["sm_clock_mhz"])


def test_ceilings_of_the_card(lone_world, tmp_path) -> None:
    from distbench.cell import Cell

    config = Config(split=Split.none, device=Device.cuda, measure=Measure(min_samples=3, max_samples=3))
    config.ceilings.measure, config.ceilings.budget_s = True, 40.0
    config.ceilings.folder = str(tmp_path)
    record = Cell(lone_world, config, lambda event, detail: None, tmp_path).outcome()
    assert record["status"] == "ok", record["reason"]
    rows = {(row["name"], row["dtype"]): row for row in record["ceilings"]}
    for name in ("memory copy", "host to device, pageable", "host to device, pinned", "device to host, pinned"):
        assert rows[name, None]["value"], rows[name, None]
    pinned = rows["host to device, pinned", None]["value"]
    assert rows["both directions, pinned", None]["value"] > pinned
    for row in rows.values():
        assert row["value"] or row["reason"]
        print(row["name"], row["dtype"], row["value"], row["unit"], row["reason"])
