"""Which GPU is whose: a GPU per task, more ranks than GPUs, MIG, and two ranks on one device told before NCCL."""

from __future__ import annotations

import pytest

from distbench.devices import Seat, identity, index_of, sharers, told


@pytest.mark.parametrize(
    ("local_rank", "visible", "index"),
    [(0, 8, 0), (7, 8, 7), (3, 1, 0), (0, 1, 0), (5, 4, 1), (2, 2, 0)],
)
def test_a_rank_takes_its_own_device_and_the_only_one_where_it_sees_one(
    local_rank: int, visible: int, index: int
) -> None:
    assert index_of(local_rank, visible) == index


@pytest.mark.parametrize(
    ("visible_devices", "index", "expected"),
    [
        (None, 0, "uuid"),
        ("", 0, "uuid"),
        ("2,3", 1, "uuid"),
        ("GPU-11111111-2222", 0, "uuid"),
        ("MIG-aaaa, MIG-bbbb", 1, "MIG-bbbb"),
        ("MIG-GPU-1111/3/0", 0, "MIG-GPU-1111/3/0"),
        ("MIG-aaaa", 1, "uuid"),
    ],
)
def test_instances_of_one_gpu_are_told_apart(visible_devices: str | None, index: int, expected: str) -> None:
    assert identity("uuid", visible_devices, index) == expected


def test_ranks_on_one_device_are_found_and_named() -> None:
    seats = [Seat(rank, f"n{rank // 3}", f"GPU-{rank // 3}-{rank % 3 % 2}") for rank in range(6)]
    groups = sharers(seats)
    assert [[seat.rank for seat in group] for group in groups] == [[0, 2], [3, 5]]
    assert told(groups) == "ranks 0, 2 of n0 on GPU-0-0; ranks 3, 5 of n1 on GPU-1-0"
    assert sharers([Seat(rank, "n0", f"GPU-{rank}") for rank in range(8)]) == []


def test_a_great_many_are_shortened() -> None:
    groups = sharers([Seat(rank, "n0", f"GPU-{rank % 6}") for rank in range(72)])
    assert told(groups).endswith("; and 2 more devices")
    assert "ranks 0, 6, 12, 18, 24, 30, 36, 42, … of n0 on GPU-0" in told(groups)
