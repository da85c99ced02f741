"""What only a GPU can show: the kernel that fills, and every collect on device memory. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from distbench.config import CollectName, Config, Device, DType, Fill, Layout, Path, Scaling, Split, Upload
from distbench.data import fill_block
from distbench.dtypes import FACTS, storage, wide
from distbench.layout import Extent

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("fill", list(Fill), ids=str)
@pytest.mark.parametrize("dtype", list(FACTS), ids=str)
@pytest.mark.parametrize("operand", ["a", "b"])
def test_the_device_fills_the_same_bits_as_the_cpu(dtype: DType, fill: Fill, operand: str) -> None:
    for extent, rows in (
        ((Extent(1, 3), Extent(10, 47), Extent(7, 308)), 100),
        ((Extent(0, 1), Extent(3_000_000_000, 3_000_000_700), Extent(0, 30_001)), 2**33),
    ):
        shape = tuple(part.size for part in extent)
        on_cpu = torch.empty(shape, dtype=storage(dtype))
        on_gpu = torch.empty(shape, dtype=storage(dtype), device="cuda")
        for target in (on_cpu, on_gpu):
            fill_block(target, 2**63 - 1, operand, rows, extent, dtype, fill, threads=2)
        assert torch.equal(wide(on_cpu), wide(on_gpu.cpu()))


@pytest.mark.parametrize("upload", list(Upload), ids=str)
@pytest.mark.parametrize("dtype", list(FACTS), ids=str)
@pytest.mark.parametrize(
    ("split", "collect", "path"),
    [
        (Split.none, CollectName.none, Path.auto),
        (Split.m, CollectName.none, Path.auto),
        (Split.m, CollectName.host, Path.pinned),
        (Split.n, CollectName.host, Path.shared),
        (Split.m, CollectName.gather, Path.shared),
    ],
    ids=str,
)
def test_a_world_of_one_is_right_on_the_device(
    lone_world, split: Split, collect: CollectName, path: Path, dtype: DType, upload: Upload
) -> None:
    from distbench.cell import Cell

    config = Config(split=split, collect=collect, path=path, device=Device.cuda)
    config.workload.dtype, config.workload.upload = dtype, upload
    config.workload.batch, config.workload.m, config.workload.n, config.workload.k = 2, 48, 64, 1024
    config.measure.min_samples = config.measure.max_samples = 3
    record = Cell(lone_world, config, lambda event, detail: None).outcome()
    assert record["status"] == "ok", record["reason"]
    assert record["config"]["device"] == "cuda"
    assert set(record["samples"]["phases_s"]) >= {"gemm"}


def test_cells_give_the_devices_memory_back(lone_world) -> None:
    from distbench.cell import Cell

    ends = []
    for collect, path in (
        (CollectName.none, Path.auto),
        (CollectName.host, Path.pinned),
        (CollectName.none, Path.auto),
    ) * 2:
        config = Config(split=Split.m, collect=collect, path=path, device=Device.cuda)
        config.workload.m = config.workload.n = config.workload.k = 2048
        config.measure.warmup = config.measure.min_samples = config.measure.max_samples = 1
        record = Cell(lone_world, config, lambda event, detail: None).outcome()
        assert record["status"] == "ok", record["reason"]
        ends.append(record["memory"]["device_end_bytes"][0])
    assert max(ends) - min(ends) < 1 << 20, ends  # an operand has 16 MiB or more


@pytest.mark.parametrize("dtype", list(FACTS), ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("padding", [0, 16])
@pytest.mark.parametrize("scaling", list(Scaling), ids=str)
def test_every_layout_padding_and_scaling_is_right_or_refused_on_the_device(
    lone_world, dtype: DType, layout: str, padding: int, scaling: Scaling
) -> None:
    from distbench.cell import Cell

    config = Config(split=Split.m, device=Device.cuda)
    w = config.workload
    w.dtype, w.layout, w.padding, w.scaling = dtype, Layout(layout), padding, scaling
    w.batch, w.m, w.n, w.k = 2, 256, 272, 512
    config.measure.min_samples = config.measure.max_samples = 3
    record = Cell(lone_world, config, lambda event, detail: None).outcome()
    if FACTS[dtype].is_scaled and layout != "nt":
        assert record["status"] == "failed"
        assert record["reason"].startswith(f"workload.layout={layout}: ")
        return
    assert record["status"] == "ok", record["reason"]
    assert record["work"]["layout"] == layout


@pytest.mark.parametrize("dtype", [DType.tf32, DType.float8_e4m3fn, DType.float8_e5m2], ids=str)
@pytest.mark.parametrize("fill", list(Fill), ids=str)
def test_a_large_product_is_within_its_bound_and_not_far_too_loosely(lone_world, dtype: DType, fill: Fill) -> None:
    """The bounds of tf32's operands and float8's sums are taken from papers: this is the hardware's word."""
    from distbench.cell import Cell

    config = Config(split=Split.m, device=Device.cuda)
    w = config.workload
    w.dtype, w.fill, w.m, w.n, w.k = dtype, fill, 2048, 2048, 8192
    config.measure.min_samples = config.measure.max_samples = 3
    record = Cell(lone_world, config, lambda event, detail: None).outcome()
    assert record["status"] == "ok", record["reason"]
    print(dtype, fill, record["verification"])


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_what_the_device_lacks_is_skipped_with_the_reason(lone_world, name: str) -> None:
    from distbench.cell import Cell

    config = Config(device=Device.cuda)
    config.workload.dtype = DType(name)
    record = Cell(lone_world, config, lambda event, detail: None).outcome()
    assert record["status"] == "skipped"
    assert "Blackwell" in record["reason"]
