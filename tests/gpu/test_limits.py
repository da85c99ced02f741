"""The limits beside a query on a device, and what bounds it: C is 256 MB, and its product far shorter than its copy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from distbench.config import CollectName, Config, Device, Drive, DType, Path, Split, Upload

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def query(
    world: Any, path: Path, collect: CollectName = CollectName.host, drive: Drive = Drive.process
) -> dict[str, Any]:
    from distbench.cell import Cell

    config = Config(split=Split.m, collect=collect, path=path, device=Device.cuda, drive=drive)
    w = config.workload
    w.m, w.n, w.k, w.dtype, w.upload = 125_000, 256, 512, DType.float64, Upload.b
    config.measure.min_samples = config.measure.max_samples = 10
    config.measure.limits = True
    told = Cell(world, config, lambda event, detail: None).outcome()
    assert told["status"] == "ok", told["reason"]
    assert told["limits"]["reason"] is None
    names = {row["name"] for row in told["limits"]["rows"]}
    assert names == {"GEMM alone", "memory copy"} | {
        f"{way}, {kind}" for way in ("host to device", "device to host") for kind in ("pageable", "pinned")
    }
    return told


def phase(record: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [phase for phase in record["anatomy"]["phases"] if phase["name"] == name]
    return found


@pytest.mark.parametrize(("path", "limit"), [(Path.pinned, "pinned"), (Path.pageable, "pageable")])
def test_a_copy_to_the_host_runs_at_its_links_rate(lone_world, path: Path, limit: str) -> None:
    told = query(lone_world, path)
    copy = phase(told, "collect")
    assert copy["bytes"] == 125_000 * 256 * 8
    assert copy["limit_name"] == f"device to host, {limit}"
    assert 0.5 < copy["limit_share"] < 1.1
    assert copy["host_s"] > 0.9 * copy["device_s"]  # the wait after it is in the host's time
    assert told["anatomy"]["sentence"].startswith("bound by the copy of C to the host")


@pytest.mark.parametrize("path", [Path.pipelined, Path.auto], ids=str)
def test_a_pipelined_query_is_judged_by_its_largest_limit(lone_world, path: Path) -> None:
    told = query(lone_world, path)
    assert told["config"]["path"] == "pipelined"
    assert told["samples"]["phases_overlap"]
    assert told["anatomy"]["sentence"].startswith("the phases overlap; bound by the copy of C to the host")
    assert 0.5 < phase(told, "collect")["share"] < 1.1
    assert phase(told, "gemm")["limit_name"] == "GEMM alone"


def test_a_gemm_alone_has_no_search_in_it(lone_world) -> None:
    told = query(lone_world, Path.auto, CollectName.topk)
    assert phase(told, "gemm")["limit_name"] == "GEMM alone"
    assert phase(told, "gemm")["limit_share"] < 1.02


@pytest.mark.parametrize("drive", [Drive.loop, Drive.threads])
def test_a_drive_of_one_process_measures_its_limits(lone_world, drive: Drive) -> None:
    told = query(lone_world, Path.pinned, drive=drive)
    assert told["anatomy"]["sentence"].startswith("the phases overlap; bound by the copy of C")
