"""The timed loop: what a sample is, which are dropped, when there are enough. Ranks are rows of numbers here."""

from __future__ import annotations

import gc
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distbench import measure as loop
from distbench.config import Drive, Measure, Start
from distbench.drives import DRIVES
from distbench.measure import Samples, measure
from distbench.timed import Timed
from distbench.world import CellFailed, World

MS = 10**6  # nanoseconds


def samples_of(spans: list[float], ranks: int = 2) -> Samples:
    rank_s, start_s, gemm_s = ([[] for _ in range(ranks)] for _ in range(3))
    kept = Samples(rank_s=rank_s, start_s=start_s, phases_s={"gemm": gemm_s}, late_starts=[0] * ranks)
    kept.span_s = list(spans)
    return kept


def row(start_ms: float, end_ms: float, gemm_ms: float = 0.0) -> list[int]:
    """What a rank tells of a sample: ok, start, end, phases."""
    return [1, round(start_ms * MS), round(end_ms * MS), round(gemm_ms * MS)]


def test_the_span_is_from_the_earliest_start_to_the_latest_end() -> None:
    samples = samples_of([])
    assert loop._keep(samples, ("gemm",), [row(10, 20, 7), row(11, 25, 9)], [0, 0], None)
    assert samples.span_s == [0.015]
    assert samples.start_skew_s == [0.001]
    assert samples.rank_s == [[0.010], [0.014]]
    assert samples.start_s == [[0.0], [0.001]]
    assert samples.phases_s == {"gemm": [[0.007], [0.009]]}


def test_another_hosts_clock_is_brought_to_rank_0s_before_times_are_compared() -> None:
    samples = samples_of([])
    loop._keep(samples, ("gemm",), [row(10, 20), row(1010, 1021)], [0, -1000 * MS], None)
    assert samples.span_s == [0.011]
    assert samples.rank_s[1] == [0.011]
    assert samples.start_s == [[0.0], [0.0]]


@pytest.mark.parametrize(
    ("typical_s", "late_ns", "kept"),
    [
        (0.0001, 19_000, True),
        (0.0001, 21_000, False),  # 20 µs, where a sample is short
        (1.0, 9 * MS, True),
        (1.0, 11 * MS, False),  # 1 % of the median, where it is long
    ],
)
def test_a_start_is_late_past_20_microseconds_and_1_percent(typical_s: float, late_ns: int, kept: bool) -> None:
    samples = samples_of([typical_s] * 5)
    start = 100 * MS
    end = start + round(typical_s * 1e9)
    rows = [[1, start, end, 0], [1, start + late_ns, end, 0]]
    assert loop._keep(samples, ("gemm",), rows, [0, 0], start) is kept
    assert len(samples.span_s) == 5 + kept
    assert samples.dropped_span_s == ([] if kept else [typical_s])
    assert samples.late_starts == [0, not kept]
    assert len(samples.rank_s[0]) == kept  # a dropped sample leaves no rank's time behind


def test_a_barrier_start_is_never_late() -> None:
    samples = samples_of([0.001])
    assert loop._keep(samples, ("gemm",), [row(10, 20), row(15, 21)], [0, 0], None)


def test_more_late_starts_than_not_give_way_to_the_barrier(world: World) -> None:
    samples = samples_of([0.001] * 3, ranks=1)
    samples.start, samples.dropped_span_s = "window", [0.001] * 5
    settings = Measure(min_samples=50, max_samples=100)
    assert loop._announce(world, samples, settings, loop.now_ns(), 0)[0] == loop._BARRIER
    samples.dropped_span_s = [0.001] * 2
    assert loop._announce(world, samples, settings, loop.now_ns(), 0)[0] == loop._GO


def stopped_by(spans: list[float], elapsed_s: float = 0.0, **settings: Any) -> str:
    return loop._stopped_by(samples_of(spans), Measure(**settings), elapsed_s)


def test_equal_samples_stop_at_min_samples_and_not_before() -> None:
    assert stopped_by([1.0] * 9, min_samples=10) == ""
    assert stopped_by([1.0] * 10, min_samples=10) == "target_rel_ci"


def test_scattered_samples_go_on_until_max_samples() -> None:
    scattered = [1.0 + 0.1 * (index % 7) for index in range(40)]
    assert stopped_by(scattered, max_samples=41) == ""
    assert stopped_by(scattered, max_samples=40) == "max_samples"


def test_the_target_is_the_half_width_of_the_interval_over_the_median() -> None:
    spans = [1.0] * 3 + [1.1] * 3  # interval 1.0 … 1.1, median 1.05: ± 4.8 %
    assert stopped_by(spans, min_samples=6, target_rel_ci=0.048) == "target_rel_ci"
    assert stopped_by(spans, min_samples=6, target_rel_ci=0.047) == ""


def test_fewer_than_six_samples_never_count_as_converged() -> None:
    samples = samples_of([1.0] * 5)
    assert loop._stopped_by(samples, Measure(min_samples=3, max_samples=5), 0.0) == "max_samples"
    assert not samples.converged


def test_time_running_out_wins_over_min_samples_once_there_is_a_sample() -> None:
    assert stopped_by([], elapsed_s=11.0, max_time_s=10.0) == ""
    assert stopped_by([1.0], elapsed_s=11.0, max_time_s=10.0) == "max_time_s"
    assert stopped_by([1.0], elapsed_s=9.0, max_time_s=10.0) == ""


def counted(work: Any = lambda: None) -> tuple[Timed, list[int]]:
    calls: list[int] = []

    def run() -> None:
        calls.append(1)
        work()

    return Timed(("gemm",), run, lambda: [5]), calls


ALONE: tuple[list[int], list[int]] = ([0], [0])


@pytest.mark.parametrize("start", [Start.window, Start.barrier], ids=str)
def test_each_kept_sample_is_one_run_of_the_work(world: World, start: Start) -> None:
    timed, calls = counted(lambda: time.sleep(0.001))
    settings = Measure(min_samples=7, max_samples=7, target_rel_ci=0.9)
    samples = measure(world, timed, settings, start, "why", ALONE)
    assert len(calls) == len(samples.span_s) == len(samples.rank_s[0]) == len(samples.phases_s["gemm"][0]) == 7
    assert all(span >= 0.001 for span in samples.span_s)
    assert (samples.start, samples.start_reason, samples.dropped_span_s) == (str(start), "why", [])


@pytest.mark.parametrize("start", [Start.window, Start.barrier], ids=str)
def test_looks_are_between_samples_and_at_least_50_ms_apart(world: World, start: Start) -> None:
    told: list[tuple[str, float]] = []

    def work() -> None:
        told.append(("begin", time.monotonic()))
        time.sleep(0.004)
        told.append(("end", time.monotonic()))

    timed, _ = counted(work)
    settings = Measure(min_samples=60, max_samples=60)
    samples = measure(world, timed, settings, start, None, ALONE, lambda: told.append(("look", time.monotonic())))
    assert len(samples.span_s) == 60
    looks = [at for name, at in told if name == "look"]
    assert len(looks) >= 4  # in about 0.3 s
    assert all(later - earlier >= 0.05 for earlier, later in pairwise(looks))
    order = [name for name, _ in told]
    assert all(order[index - 1] == "end" for index, name in enumerate(order) if name == "look")


def test_a_look_that_takes_long_is_taken_rarely(world: World) -> None:
    looks: list[float] = []

    def look() -> None:
        looks.append(time.monotonic())
        time.sleep(0.002)

    timed, _ = counted(lambda: time.sleep(0.005))
    measure(world, timed, Measure(min_samples=100, max_samples=100), Start.window, None, ALONE, look)
    assert all(later - earlier >= 0.6 for earlier, later in pairwise(looks))  # 300 times as long as a look takes


def test_no_garbage_is_collected_while_measuring_and_it_is_afterwards(world: World) -> None:
    seen: list[bool] = []
    timed, _ = counted(lambda: seen.append(gc.isenabled()))
    measure(world, timed, Measure(min_samples=2, max_samples=2), Start.window, None, ALONE)
    assert seen == [False, False]
    assert gc.isenabled()


def test_work_that_fails_ends_the_cell_with_its_reason_and_collects_garbage_again(world: World) -> None:
    def fail() -> None:
        raise RuntimeError("no such kernel")

    timed, calls = counted(fail)
    with pytest.raises(CellFailed, match=r"rank 0 .*measure: RuntimeError: no such kernel"):
        measure(world, timed, Measure(), Start.window, None, ALONE)
    assert len(calls) == 1
    assert gc.isenabled()


def path_of(parts: list[tuple[str, Any]], *drives: Drive) -> Timed:
    unit = SimpleNamespace(device=torch.device("cpu"), parts=lambda collects: parts, collect=None, streams=[])
    return DRIVES[drives[0]]([unit], True)  # type: ignore[list-item]


def test_the_parts_of_the_timed_path_run_in_order_and_their_times_add_up() -> None:
    order: list[str] = []

    def part(name: str, duration_s: float) -> tuple[str, Any]:
        return name, lambda: (order.append(name), time.sleep(duration_s))

    timed = path_of([part("h2d", 0.002), part("gemm", 0.006), part("collect", 0.0)], Drive.process)
    began = time.monotonic_ns()
    timed.run()
    whole_ns = time.monotonic_ns() - began
    assert timed.names == ("h2d", "gemm", "collect")
    assert order == ["h2d", "gemm", "collect"]
    h2d, gemm, collect = timed.phases_ns()
    assert h2d >= 2 * MS
    assert gemm >= 6 * MS
    assert collect >= 0
    assert h2d + gemm + collect <= whole_ns


def test_a_rank_that_stands_aside_starts_nothing_and_shifts_nobodys_start() -> None:
    samples = samples_of([], ranks=3)
    assert loop._keep(samples, ("gemm",), [[1, 0, 0, 0], row(10, 20), row(11, 25)], [0, 0, 0], None)
    assert samples.start_s == [[0.0], [0.0], [0.001]]
    assert samples.span_s == [0.015]
