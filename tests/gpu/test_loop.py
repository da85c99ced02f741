"""The plain loop on a device: a call without a wait is over long before its product."""

from __future__ import annotations

import pytest
import torch

from distbench.config import CollectName, Config, Device, Path, Split

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_a_clock_read_before_the_device_is_done_tells_the_launch_alone(lone_world) -> None:
    from distbench.cell import Cell

    config = Config(split=Split.m, collect=CollectName.none, path=Path.auto, device=Device.cuda)
    config.measure.loop = config.measure.min_samples = config.measure.max_samples = 5
    config.workload.m = config.workload.n = config.workload.k = 4096
    told = Cell(lone_world, config, lambda event, detail: None).outcome()
    assert told["status"] == "ok", told["reason"]
    loop = told["result"]["loop"]
    assert min(loop["unsynchronised_s"]) < loop["cumulative_s"][-1] / 5 / 2
    assert loop["copy_s"] > 0
