"""Clocks: one name per clock, and offsets that bring a distant clock home within the stated error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from distbench import clock


def test_a_process_names_the_same_clock_twice() -> None:
    assert clock.domain() == clock.domain()
    assert clock.domain().split()[0]


def test_the_name_has_the_boot_and_the_time_namespace_in_it() -> None:
    boot = Path("/proc/sys/kernel/random/boot_id")
    if boot.exists():
        assert boot.read_text().strip() in clock.domain()
    if os.path.lexists("/proc/self/ns/time"):
        assert os.readlink("/proc/self/ns/time") in clock.domain()


def test_an_unreadable_boot_id_shares_a_clock_with_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(clock, "Path", lambda path: tmp_path / "missing")
    assert str(os.getpid()) in clock.domain()


def test_time_goes_forward() -> None:
    times = [clock.now_ns() for _ in range(1000)]
    assert times == sorted(times)


class Wire:
    """Two ends of a line in one thread: what rank 1 sends is answered by a rank 0 whose clock is ahead."""

    size, rank = 2, 1

    def __init__(self, ahead_ns: int) -> None:
        self.ahead_ns = ahead_ns

    def send_int(self, value: int, to: int) -> None:
        self.answer = clock.now_ns() + self.ahead_ns

    def receive_int(self, source: int) -> int:
        return self.answer

    def broadcast_ints(self, values: list[int], source: int = 0) -> list[int]:
        return values


@pytest.mark.parametrize("ahead_ns", [0, 10**9, -(10**12)])
def test_a_distant_clock_is_brought_home_within_the_error_that_is_stated(ahead_ns: int) -> None:
    wire: Any = Wire(ahead_ns)
    offsets, errors = clock.offsets_to_rank0(wire, ["here", "there"])
    assert offsets[0] == errors[0] == 0
    assert abs(offsets[1] - ahead_ns) <= errors[1]
    assert 0 < errors[1] < 10**8


def test_ranks_with_rank_0s_clock_are_not_measured() -> None:
    class Silent:
        size, rank = 3, 1

    wire: Any = Silent()
    assert clock.offsets_to_rank0(wire, ["here"] * 3) == ([0, 0, 0], [0, 0, 0])


def test_a_clock_that_several_ranks_share_is_measured_once() -> None:
    asked: list[int] = []

    class Counting(Wire):
        size = 4

        def broadcast_ints(self, values: list[int], source: int = 0) -> list[int]:
            asked.append(source)
            return [5, 1]

    wire: Any = Counting(0)
    assert clock.offsets_to_rank0(wire, ["x", "y", "y", "x"]) == ([0, 5, 5, 0], [0, 1, 1, 0])
    assert asked == [1]
