"""The state of a real GPU, through NVML and torch's UUID. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch
from helpers import validate

from distbench.config import Config, Device, DType, Split

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_a_real_measurement_has_clock_power_heat_and_energy(lone_world) -> None:
    pytest.importorskip("pynvml")
    from distbench.cell import Cell

    config = Config(split=Split.none, device=Device.cuda)
    config.workload.dtype = DType.bfloat16
    config.workload.m = config.workload.n = config.workload.k = 8192
    config.measure.min_samples = config.measure.max_samples = 3000  # 1.4 ms each on an H200
    config.measure.max_time_s = 4
    record = Cell(lone_world, config, lambda event, detail: None).outcome()
    assert record["status"] == "ok", record["reason"]
    validate(record)
    (told,) = record["telemetry"]
    gpu = told["gpu"]
    assert gpu is not None, told["gpu_reason"]
    assert 200 < gpu["sm_clock_mhz"]["median"] <= gpu["max_sm_clock_mhz"]
    assert 50 < gpu["power_w"]["max"] < 1.2 * gpu["power_limit_w"]
    assert 10 < gpu["temperature_c"]["median"] < 110
    assert gpu["energy_j"] > 50 * gpu["elapsed_s"]  # no data-centre card idles below 50 W
    assert "state_unknown" not in [warning["name"] for warning in record["warnings"]]
    if gpu["energy_per_sample_j"] is None:
        assert gpu["reasons"]["energy_per_sample_j"] == record["result"]["energy_reason"]
    else:
        assert record["result"]["tflops_per_watt"] == pytest.approx(
            record["work"]["flop"] / gpu["energy_per_sample_j"] / 1e12
        )
    assert told["looks"] >= 10
    assert told["looking_s"] < 0.02 * told["cpu"]["elapsed_s"]
