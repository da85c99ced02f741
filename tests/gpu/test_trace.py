"""profile=torch on a GPU: kernels, copies and launches are in the trace and in the record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from distbench.config import CollectName, Config, Device, Profile, Upload

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("streams", [1, 2])
def test_a_trace_tells_kernels_per_stream_and_launch_delay(
    lone_world, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streams: int
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # the profiler sets it
    from distbench.cell import Cell

    config = Config(collect=CollectName.host, device=Device.cuda, profile=Profile.torch)
    config.streams, config.shards_per_device = streams, 2
    config.workload.m, config.workload.n, config.workload.k = 2048, 2048, 2048
    config.workload.upload = Upload.b
    config.measure.min_samples = config.measure.max_samples = 3
    record = Cell(lone_world, config, lambda event, detail: None, tmp_path).outcome()
    assert record["status"] == "ok", record["reason"]
    trace = record["trace"]
    assert trace["of"] == "kernels"
    assert len(trace["kernels_per_stream"]) == streams
    assert sum(trace["kernels_per_stream"].values()) >= 2 * trace["samples"]
    assert 0 < trace["launch_delay_s"]["median"] <= trace["launch_delay_s"]["max"] < 1
    assert 0 <= trace["gap_share"] < 1
    assert 0 <= trace["overlap_share"] <= 1
    events = json.loads((tmp_path / trace["files"][0]).read_text())["traceEvents"]
    assert {"gpu_memcpy", "kernel", "cuda_runtime"} <= {event.get("cat") for event in events}
    assert len(record["samples"]["span_s"]) == 3
