"""What a device or a shape cannot compute is refused before anything is allocated, with what would work."""

from __future__ import annotations

import re
from math import prod

import pytest
import torch

from distbench.cell import plan_of
from distbench.config import Config, ConfigError, Device, DType, EngineName, Fill, Layout, Split, Workload
from distbench.dtypes import FACTS, NEEDS_BLACKWELL
from distbench.engines import torch_engine
from distbench.layout import shard_of, whole
from distbench.operands import layout_of, stored_shapes
from distbench.rules import check
from distbench.show.peaks import PEAKS, peak_tflops
from distbench.supports import Unsupported, refuse_dtype, refuse_shapes


def config(dtype: DType, split: Split = Split.m, **sizes: object) -> Config:
    return Config(workload=Workload(dtype=dtype, **sizes), split=split)  # type: ignore[arg-type]


def test_every_dtype_has_its_facts_or_is_skipped() -> None:
    assert set(DType) == set(FACTS) | set(NEEDS_BLACKWELL)


@pytest.mark.parametrize(
    ("dtype", "device", "capability", "reason"),
    [
        (DType.tf32, Device.cpu, None, "a CPU has no such unit"),
        (DType.tf32, Device.cuda, (7, 5), "needs compute capability 8.0, and the GPU here has 7.5"),
        (DType.float8_e4m3fn, Device.cuda, (8, 0), "needs compute capability 8.9"),
        (DType.mxfp8, Device.cuda, (9, 0), "Blackwell"),
        (DType.nvfp4, Device.cpu, None, "Blackwell"),
    ],
    ids=str,
)
def test_a_dtype_that_the_device_lacks_is_refused(
    dtype: DType, device: Device, capability: tuple[int, int] | None, reason: str
) -> None:
    with pytest.raises(Unsupported, match=re.escape(reason)):
        refuse_dtype(config(dtype), device, capability)


@pytest.mark.parametrize("dtype", FACTS, ids=str)
def test_a_hopper_gpu_computes_all_that_has_facts(dtype: DType) -> None:
    refuse_dtype(config(dtype), Device.cuda, (9, 0))
    refuse_shapes(config(dtype), 1, Device.cuda)


@pytest.mark.parametrize("dtype", [DType.int8, DType.float8_e4m3fn, DType.float8_e5m2], ids=str)
@pytest.mark.parametrize("split", [Split.m, Split.n, Split.k, Split.batch, Split.none], ids=str)
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_the_size_that_is_named_works_and_shards_that_would_not_are_refused(
    dtype: DType, split: Split, world: int
) -> None:
    multiple = 8 if dtype is DType.int8 else 16
    for size in (1, 16, 17, 50, 100, 384, 400, 1000):
        told = config(dtype, split, batch=2, m=size, n=size, k=size)
        shards = [shard_of(whole(2, size, size, size), split, world, rank) for rank in range(world)]
        fits = all(
            shard.n.size % multiple == 0
            and shard.k.size % multiple == 0
            and (dtype is not DType.int8 or shard.m.size == 0 or shard.m.size > 16)
            for shard in shards
        )
        for _ in range(3):  # one refusal per axis: doing as told ends
            try:
                refuse_shapes(told, world, Device.cuda)
            except ConfigError as error:
                assert not fits
                found = re.match(r"workload\.([mnk])=\d+: .* (\d+) works$", str(error))
                assert found is not None
                setattr(told.workload, found[1], int(found[2]))
        refuse_shapes(told, world, Device.cuda)
        refuse_shapes(config(dtype, split, m=size, n=size, k=size), world, Device.cpu)


def test_the_layout_of_a_float8_product_on_a_gpu_is_nt() -> None:
    told = config(DType.float8_e4m3fn)
    assert layout_of(told.workload) is Layout.nt
    assert layout_of(config(DType.int8).workload) is Layout.nt  # cuBLAS has fast kernels for it alone
    assert layout_of(config(DType.bfloat16).workload) is Layout.nn
    told.workload.layout = Layout.nn
    refuse_shapes(told, 1, Device.cpu)
    with pytest.raises(ConfigError, match=r"workload\.layout=nn: .*nt or auto"):
        refuse_shapes(told, 1, Device.cuda)
    told.workload.layout, told.workload.padding = Layout.nt, 20
    with pytest.raises(ConfigError, match=r"workload\.padding=20: .*32 works"):
        refuse_shapes(told, 1, Device.cuda)


@pytest.mark.parametrize(("fill", "most"), [(Fill.normal, 133_144), (Fill.integer, 238_609_294)], ids=str)
def test_int8_sums_that_may_pass_int32_are_refused(fill: Fill, most: int) -> None:
    assert (
        most * (127 if fill is Fill.normal else 3) ** 2 < 2**31 <= (most + 1) * (127 if fill is Fill.normal else 3) ** 2
    )
    check(config(DType.int8, k=most, fill=fill))
    with pytest.raises(ConfigError, match=f"workload.k={most + 1}: .*more than {most} int8 products"):
        check(config(DType.int8, k=most + 1, fill=fill))


@pytest.mark.parametrize("dtype", [d for d in DType if d not in FACTS or not FACTS[d].in_numpy], ids=str)
def test_numpy_refuses_what_it_has_no_product_for(dtype: DType) -> None:
    told = config(dtype)
    told.engine = EngineName.numpy
    with pytest.raises(ConfigError, match="numpy has float64, float32, float16, complex64, complex128"):
        check(told)


def test_flop_and_bytes_are_those_of_the_dtype() -> None:
    expected = {DType.int8: (2, 1, 4), DType.float8_e5m2: (2, 1, 2), DType.complex64: (8, 8, 8), DType.tf32: (2, 4, 4)}
    for dtype, (flop, operand, c) in expected.items():
        plan = plan_of(config(dtype, m=30, n=20, k=10), 3, Device.cpu)
        assert plan.flop == flop * 30 * 20 * 10
        assert plan.bytes == operand * (30 * 10 + 10 * 20) + c * 30 * 20
        assert plan.rank(1).device_bytes == operand * (10 * 10 + 10 * 20) + c * 10 * 20


def test_padding_takes_memory_and_is_no_work() -> None:
    told = config(DType.float64, batch=2, m=30, n=20, k=10, layout=Layout.tn, padding=7)
    plan = plan_of(told, 1, Device.cpu)
    a, b = stored_shapes(plan.problem, Layout.tn, 7)
    assert (a, b) == ((2, 10, 37), (2, 10, 27))
    assert plan.bytes == 8 * 2 * (300 + 200 + 600)
    assert plan.rank(0).device_bytes == 8 * (prod(a) + prod(b) + 2 * 600)


def test_peaks_are_named_as_the_dtypes_facts_name_them() -> None:
    known = {facts.peak for facts in FACTS.values()}
    assert all(set(row) <= known for row in PEAKS.values())
    assert peak_tflops("NVIDIA H200", "complex128") == peak_tflops("NVIDIA H200", "float64") == 67.0
    assert peak_tflops("NVIDIA H200", "float8_e5m2") == 1979.0
    assert peak_tflops("NVIDIA H200", "mxfp8") is None
    assert peak_tflops("NVIDIA L4", "float64") is None


@pytest.mark.parametrize(("m", "k", "n"), [(1, 5, 3), (4, 1, 3), (1, 1, 1), (1, 8, 8), (2, 3, 1), (5, 4, 6)])
@pytest.mark.parametrize("a_transposed", [False, True])
@pytest.mark.parametrize("b_transposed", [False, True])
def test_int8_is_exact_on_the_cpu_for_single_rows_and_columns_however_they_are_stored(
    m: int, k: int, n: int, a_transposed: bool, b_transposed: bool
) -> None:
    a = torch.randint(-9, 9, (1, k, m) if a_transposed else (1, m, k), dtype=torch.int8)
    b = torch.randint(-9, 9, (1, n, k) if b_transposed else (1, k, n), dtype=torch.int8)
    a, b = a.mT if a_transposed else a, b.mT if b_transposed else b
    c = torch.full((1, m, n), -1, dtype=torch.int32)
    torch_engine.prepare(a, b, c)()
    assert torch.equal(c[0], a[0].int() @ b[0].int())
