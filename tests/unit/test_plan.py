"""The plan: work, bytes and memory as exact integers, and the largest size that fits being really the largest."""

from __future__ import annotations

import itertools
import re
import time

import pytest

from distbench import plan as plan_module
from distbench.cell import plan_of
from distbench.config import (
    Backend,
    CollectName,
    Config,
    ConfigError,
    Device,
    DType,
    Fill,
    Path,
    Split,
    Upload,
    Workload,
)
from distbench.plan import Plan, Room, does_not_fit, fill_is_exact, largest_that_fits
from distbench.rules import check

MEGABYTE = 10**6

WORKING_BYTES = plan_module._BUFFER_BYTES


@pytest.fixture(autouse=True)
def _no_bytes_per_row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of what fits count A, B and C to the byte; what verification needs per row has its own test."""
    if "row" not in request.node.name:
        monkeypatch.setattr(plan_module, "_ROW_BYTES", 0)


def plan(
    split: Split = Split.m,
    collect: CollectName = CollectName.none,
    world: int = 1,
    device: Device = Device.cpu,
    path: Path = Path.auto,
    **sizes: object,
) -> Plan:
    config = Config(workload=Workload(**sizes), split=split, collect=collect, path=path)  # type: ignore[arg-type]
    check(config)
    return plan_of(config, world, device)


def hosts(world: int, free: int) -> list[Room]:
    """A host per rank with `free` bytes beside the working memory."""
    return [Room(f"host{rank}", free + WORKING_BYTES, f"cpu of host{rank}", 0) for rank in range(world)]


def test_flop_and_bytes_are_exact_integers_far_past_what_a_float_holds() -> None:
    m = 10**12 + 1
    p = plan(m=m, n=10001, k=1001, dtype=DType.float64, world=4096)
    assert p.flop == 2 * m * 10001 * 1001
    assert p.flop != int(float(p.flop))  # a float on the way would show
    assert p.bytes == 8 * (m * 1001 + 1001 * 10001 + m * 10001)
    assert sum(p.rank(rank).shard.flop for rank in range(4096)) == p.flop


def test_planning_hundreds_of_ranks_takes_seconds_not_minutes() -> None:
    """Laying out every rank to find one rank's shard would take the square of the world."""
    p = plan(m=10**12, n=1000, k=1000, collect=CollectName.gather, world=512)
    rooms = [Room(f"host{rank // 8}", 10**12, f"cpu {rank}", 0) for rank in range(512)]
    began = time.process_time()
    assert does_not_fit(p, rooms, on_cpu=True) is not None
    assert time.process_time() - began < 8


def test_replicated_work_is_counted_as_often_as_it_is_done() -> None:
    assert plan(Split.none, m=10, n=10, k=10, world=3).flop == 3 * 2000
    assert plan(Split.m, m=10, n=10, k=10, world=3).flop == 2000


@pytest.mark.parametrize(("dtype", "itemsize"), [(DType.float64, 8), (DType.float32, 4), (DType.bfloat16, 2)], ids=str)
def test_a_rank_needs_its_shards_of_a_b_and_c(dtype: DType, itemsize: int) -> None:
    part = plan(m=300, n=70, k=50, world=3, dtype=dtype).rank(1)
    assert part.device_bytes == itemsize * (100 * 50 + 50 * 70 + 100 * 70)
    assert part.host_bytes == 0


def test_uploaded_operands_have_a_source_in_host_memory() -> None:
    for upload, sources in ((Upload.none, 0), (Upload.b, 50 * 70), (Upload.ab, 100 * 50 + 50 * 70)):
        part = plan(m=300, n=70, k=50, world=3, dtype=DType.float64, upload=upload).rank(0)
        assert part.host_bytes == 8 * sources


def test_gathering_uneven_shards_needs_a_padded_copy_on_rank_0_alone() -> None:
    p = plan(collect=CollectName.gather, m=10, n=7, k=5, world=3, dtype=DType.float64)
    a_b = [4 * 5 + 5 * 7, 3 * 5 + 5 * 7]
    assert p.rank(0).device_bytes == 8 * (a_b[0] + 4 * 7 + 3 * 4 * 7 + 10 * 7)  # own shard, padded parts, C
    assert p.rank(1).device_bytes == 8 * (a_b[1] + 4 * 7)
    even = plan(collect=CollectName.gather, m=12, n=7, k=5, world=3, dtype=DType.float64)
    assert even.rank(0).device_bytes == 8 * (4 * 5 + 5 * 7 + 4 * 7 + 12 * 7)


def test_pinned_host_memory_is_host_memory_and_not_the_devices() -> None:
    part = plan(collect=CollectName.host, m=10, n=7, k=5, world=1, dtype=DType.float64, device=Device.cuda).rank(0)
    assert part.device_bytes == 8 * (50 + 35 + 70)
    assert part.host_bytes == 8 * 70


def test_what_fits_exactly_is_not_refused_and_a_byte_less_is() -> None:
    p = plan(m=1000, n=1000, k=1000, dtype=DType.float64)
    need = p.rank(0).device_bytes
    assert does_not_fit(p, hosts(1, need), on_cpu=True) is None
    assert does_not_fit(p, hosts(1, need - 1), on_cpu=True) is not None


def test_ranks_of_one_host_share_its_memory() -> None:
    p = plan(m=3000, n=1000, k=1000, world=3, dtype=DType.float64)
    need = p.rank(0).device_bytes + WORKING_BYTES
    together = [Room("host", 3 * need, f"cpu {rank}", 0) for rank in range(3)]
    assert does_not_fit(p, together, on_cpu=True) is None
    message = does_not_fit(p, [Room("host", 3 * need - 1, f"cpu {rank}", 0) for rank in range(3)], on_cpu=True)
    assert message is not None
    assert "on host," in message


def test_a_device_that_is_short_is_named_though_the_host_has_room() -> None:
    p = plan(m=3000, n=1000, k=1000, world=2, dtype=DType.float64, device=Device.cuda)
    need = p.rank(0).device_bytes + WORKING_BYTES
    rooms = [Room("host", 10**12, f"cuda:{rank} of host", need - rank) for rank in range(2)]
    message = does_not_fit(p, rooms, on_cpu=False)
    assert message is not None
    assert "on cuda:1 of host" in message


CASES = [
    (split, collect, path)
    for split, collect, path in (
        (Split.m, CollectName.none, Path.auto),
        (Split.m, CollectName.gather, Path.auto),
        (Split.m, CollectName.gather, Path.p2p),
        (Split.n, CollectName.gather, Path.auto),
        (Split.batch, CollectName.all_gather, Path.auto),
        (Split.k, CollectName.reduce_scatter, Path.auto),
        (Split.none, CollectName.none, Path.auto),
    )
]


@pytest.mark.parametrize(("split", "collect", "path"), CASES, ids=str)
def test_the_largest_size_named_fits_and_no_larger_one_does(split: Split, collect: CollectName, path: Path) -> None:
    """Against every size in turn: memory does not grow evenly where uneven shards are padded."""
    axis = "m" if split is Split.none else str(split)
    others = {"m": 40, "n": 40, "k": 40, "batch": 2 if split is Split.batch else 1}
    refused = 0
    for world, size, share in itertools.product((1, 2, 4), (15, 16), range(2, 10, 2)):
        p = plan(split, collect, world, path=path, dtype=DType.float64, **others | {axis: size})
        free = max(p.rank(rank).device_bytes for rank in range(world)) * share // 10
        rooms = hosts(world, free)
        fitting = [n for n in range(1, size + 1) if does_not_fit(p.sized(axis, n), rooms, on_cpu=True) is None]
        message = does_not_fit(p, rooms, on_cpu=True)
        if not fitting or max(fitting) < size:
            assert message is not None
            hint = f"the largest {axis} that fits is {max(fitting)}" if fitting else f"not even {axis}=1 fits"
            assert message.endswith(f"; {hint}"), (world, size, share, fitting)
            refused += 1
    assert refused >= 12


def test_the_largest_size_is_found_though_smaller_uneven_ones_do_not_fit() -> None:
    """Even shards are gathered straight into C, uneven ones through a padded copy: 80 rows need less than 75."""
    p = plan(collect=CollectName.gather, world=2, m=100, n=1000, k=1, dtype=DType.float64)
    need = p.sized("m", 80).rank(0)
    rooms = hosts(2, need.device_bytes + need.host_bytes)
    assert does_not_fit(p.sized("m", 75), rooms, on_cpu=True) is not None
    message = does_not_fit(p, rooms, on_cpu=True)
    assert message is not None
    assert message.endswith("; the largest m that fits is 80")


def test_the_largest_of_millions_of_rows_is_exact_too() -> None:
    p = plan(m=3_000_000, n=256, k=512, dtype=DType.float64, world=3)
    rooms = hosts(3, 2_000 * MEGABYTE)
    message = does_not_fit(p, rooms, on_cpu=True)
    assert message is not None
    found = re.search(r"the largest m that fits is (\d+)$", message)
    assert found is not None
    largest = int(found[1])
    assert does_not_fit(p.sized("m", largest), rooms, on_cpu=True) is None
    assert does_not_fit(p.sized("m", largest + 1), rooms, on_cpu=True) is not None
    assert largest % 3 == 0  # another row would go to rank 0


def test_the_message_tells_what_is_needed_and_what_is_free() -> None:
    p = plan(m=10**5, n=10**4, k=10**4, dtype=DType.float64)
    message = does_not_fit(p, [Room("node7", 2 * 10**9, "cpu of node7", 0)], on_cpu=True)
    assert message is not None
    assert re.match(r"needs 17\.\d\d GB on node7, where 2\.00 GB are free; the largest m that fits is \d+$", message)


def test_no_size_fits_where_b_alone_is_too_large() -> None:
    p = plan(m=10, n=10**5, k=10**5)
    assert largest_that_fits(p, lambda smaller: False) == ("m", 0)
    message = does_not_fit(p, hosts(1, 10**9), on_cpu=True)
    assert message is not None
    assert message.endswith("not even m=1 fits")


@pytest.mark.parametrize(
    ("fill", "k", "bits", "exact"),
    [
        (Fill.zeros, 10**9, 8, True),
        (Fill.integer, 28, 8, True),  # 28 · 9 = 252 ≤ 256
        (Fill.integer, 29, 8, False),
        (Fill.integer, 227, 11, True),
        (Fill.integer, 228, 11, False),
        (Fill.integer, 16384, 24, True),
        (Fill.normal, 1, 53, False),
        (Fill.uniform, 1, 53, False),
    ],
)
def test_only_sums_that_the_dtype_holds_exactly_count_as_exact(fill: Fill, k: int, bits: int, exact: bool) -> None:
    assert fill_is_exact(fill, k, bits, 3) is exact


@pytest.mark.parametrize(
    ("collect", "path", "hosts", "device", "backend", "message"),
    [
        (CollectName.gather, Path.shared, 2, Device.cpu, Backend.gloo, "2 hosts"),
        (CollectName.gather, Path.p2p, 1, Device.cuda, Backend.gloo, "gloo sends and receives host memory only"),
        (CollectName.host, Path.pinned, 1, Device.cpu, Backend.gloo, "use in_place or shared"),
        (CollectName.host, Path.in_place, 1, Device.cuda, Backend.nccl, "use pinned or shared"),
    ],
)
def test_a_path_that_cannot_work_where_the_ranks_are_is_refused(
    collect: CollectName, path: Path, hosts: int, device: Device, backend: Backend, message: str
) -> None:
    config = Config(split=Split.m, collect=collect, path=path)
    with pytest.raises(ConfigError, match=f"^path={path}: .*{message}"):
        plan_module.refuse_path(config, hosts, device, backend)


@pytest.mark.parametrize("device", [Device.cpu, Device.cuda])
def test_a_path_that_works_where_the_ranks_are_is_not_refused(device: Device) -> None:
    plan_module.refuse_path(
        Config(split=Split.m, collect=CollectName.gather, path=Path.shared), 1, device, Backend.gloo
    )
    plan_module.refuse_path(Config(split=Split.m, collect=CollectName.gather, path=Path.p2p), 2, device, Backend.nccl)


def test_a_narrow_product_of_many_rows_counts_what_verifying_them_takes() -> None:
    p = plan(m=2 * 10**7, n=1, k=1)
    assert p.working_bytes >= 2 * 10**7 * 8 * 4
