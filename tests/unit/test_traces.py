"""What a trace tells: hand-made kernels with known answers, and a small trace of the real profiler."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from distbench import traces


def _event(cat: str, name: str, start: float, length: float, pid: int = 0, **args: int) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length, "pid": pid, "tid": 1, "args": args}


def _kernel(start: float, length: float, stream: int, correlation: int, pid: int = 0) -> dict[str, Any]:
    return _event("kernel", "gemm", start, length, pid, device=0, stream=stream, correlation=correlation)


def test_kernels_gaps_overlap_and_launch_delays_are_as_counted_by_hand() -> None:
    told = traces.facts(
        [
            _event("user_annotation", "sample 0", 0, 100),
            _event("user_annotation", "sample 1", 1000, 100),
            _event("cuda_runtime", "cudaLaunchKernel", 5, 1, correlation=1),
            _event("cuda_runtime", "cudaLaunchKernel", 7, 1, correlation=2),
            _event("cuda_driver", "cuLaunchKernelEx", 50, 1, correlation=3),
            _kernel(10, 20, stream=7, correlation=1),
            _kernel(20, 20, stream=8, correlation=2),  # until 40: then 20 without a kernel
            _kernel(60, 10, stream=7, correlation=3),
            _kernel(1010, 10, stream=7, correlation=4),  # another sample: the time before it is no gap
            _event("gpu_memcpy", "Memcpy DtoH", 35, 10, device=0, stream=9),  # half of it beside a kernel
            _kernel(0, 100, stream=7, correlation=1, pid=1),  # another rank: hides nothing of rank 0's
        ]
    )
    assert told["gap_s"] == pytest.approx(20e-6)
    assert told["gap_share"] == pytest.approx(20 / (60 + 10 + 100))
    assert told["overlap_share"] == pytest.approx(0.5)
    assert told["launch_delay_s"] == {"median": pytest.approx(10e-6), "max": pytest.approx(13e-6)}
    assert told["kernels_per_stream"] == {
        "rank 0 device 0 stream 7": 3,
        "rank 0 device 0 stream 8": 1,
        "rank 1 device 0 stream 7": 1,
    }
    assert told["reason"] is None


def test_a_real_trace_is_put_on_the_monotonic_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # the profiler sets it
    anchors = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(5):
            before = time.monotonic_ns()
            with torch.profiler.record_function(traces.ANCHOR):
                pass
            anchors.append((before, time.monotonic_ns()))
        with torch.profiler.record_function("sample 0"):
            began = time.monotonic_ns()
            for part in ("gemm 0", "gemm 1"):
                with torch.profiler.record_function(part):
                    time.sleep(0.01)
                time.sleep(0.02 if part == "gemm 0" else 0)
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    shift, error = traces.shift_us(events, anchors)
    merged = traces.merge([(3, events, shift)])["traceEvents"]
    (sample,) = [e for e in merged if e["name"] == "sample 0"]
    assert sample["pid"] == 3
    assert abs(sample["ts"] - began / 1e3) < error + 2000
    told = traces.facts(merged)
    assert told["of"] == "ranges"
    assert told["kernels_per_stream"] is None
    assert told["reason"]
    assert 0.02 <= told["gap_s"] < 0.2


def test_a_trace_without_its_anchors_is_refused() -> None:
    with pytest.raises(ValueError, match="0 of 1 anchors"):
        traces.shift_us([], [(0, 1)])
