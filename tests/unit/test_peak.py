"""The peak search on rates made by hand, its shapes, and its closing table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distbench.compose import by_device, compose_single, is_multirun
from distbench.peak import search as module
from distbench.peak.search import Found, Search
from distbench.peak.shapes import FOUND, SQUARE, WAVE, WHOLE, Shape, neighbours, ordinary, squares, waves
from distbench.show.peak import SUMMARY, peak_table


class Machine:
    """A clock, and cells that take their seconds on it."""

    def __init__(
        self, rate: Callable[[Shape], float | None], seconds: Callable[[Shape], float] = lambda shape: 1.0
    ) -> None:
        self.rate, self.seconds, self.at_s = rate, seconds, 100.0
        self.measured: list[Shape] = []

    def measure(self, shape: Shape) -> float | None:
        self.measured.append(shape)
        self.at_s += self.seconds(shape)
        return self.rate(shape)

    def search(
        self, time_s: float = 1000.0, largest: int = 2048, fits: Callable[[Shape], bool] = lambda shape: True
    ) -> Found:
        return Search(self.measure, fits, time_s, largest, now=lambda: self.at_s).run()


def hill(m: int, n: int, k: int) -> Callable[[Shape], float]:
    """A rate that is 1 at one shape and falls to all sides."""
    return lambda shape: 1 / (1 + abs(shape.m / m - 1) + abs(shape.n / n - 1) + abs(shape.k / k - 1))


# --- the search ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", [(512, 512, 512), (1024, 1024, 1024), (1536, 768, 2048), (2048, 2048, 512)])
def test_it_finds_the_top_of_a_hill_or_near_it(top: tuple[int, int, int]) -> None:
    found = Machine(hill(*top)).search()
    assert found.best is not None
    assert found.rates[found.best] > 0.93
    assert found.stopped_by == module.TOP


def test_it_has_tried_the_bare_list_and_its_best_is_the_highest_of_all() -> None:
    machine = Machine(hill(700, 900, 800))
    found = machine.search()
    tried = {shape.sizes for shape in machine.measured}
    assert {(n, n, n) for n in (512, 768, 1024, 1536, 2048)} <= tried
    assert len(tried) == len(machine.measured)  # none twice
    assert found.best is not None
    assert found.rates[found.best] == max(found.rates.values())
    assert {shape.kind for shape in machine.measured} == {SQUARE, FOUND, "peak_odd", "peak_tile", "peak_skinny"}


def test_it_ends_in_time_and_says_so() -> None:
    machine = Machine(hill(1024, 1024, 1024), lambda shape: 2.0)
    found = machine.search(time_s=11.0)
    assert machine.at_s <= 111.0
    assert found.seconds == machine.at_s - 100
    assert found.stopped_by == module.TIME


def test_a_cell_that_would_take_too_long_is_not_begun() -> None:
    machine = Machine(hill(2048, 2048, 2048), lambda shape: shape.volume / 512**3)
    machine.search(time_s=20.0)
    # 512³ takes 1 s, 768³ 3.4 and 1024³ 8: 12.4 s; 1536³ would take 27
    assert [shape.m for shape in machine.measured[:3]] == [512, 768, 1024]
    assert all(shape.volume < 1536**3 for shape in machine.measured)
    assert machine.at_s <= 120.0


def test_the_first_cell_is_begun_however_short_the_time() -> None:
    machine = Machine(hill(512, 512, 512), lambda shape: 5.0)
    found = machine.search(time_s=0.1)
    assert [shape.m for shape in machine.measured] == [512]
    assert (found.best, found.stopped_by) == (Shape(512, 512, 512, SQUARE), module.TIME)


def test_what_has_no_rate_at_first_is_not_searched_on() -> None:
    machine = Machine(lambda shape: None)
    found = machine.search()
    assert len(machine.measured) == 1
    assert (found.best, found.rates, found.stopped_by) == (None, {}, module.NOTHING)


def test_what_does_not_fit_is_never_measured() -> None:
    machine = Machine(hill(2048, 2048, 2048))
    machine.search(fits=lambda shape: shape.volume <= 1100**3 and shape.n % 16 == 0)
    assert all(shape.volume <= 1100**3 and shape.n % 16 == 0 for shape in machine.measured)
    assert any(shape.kind == "peak_tile" for shape in machine.measured)  # m alone may be odd


# --- shapes ----------------------------------------------------------------------------------------------------------


def test_the_squares_go_up_to_the_largest_and_there_is_one_at_least() -> None:
    assert [shape.m for shape in squares(2048)] == [512, 768, 1024, 1536, 2048]
    assert [shape.m for shape in squares(16384)][-1] == 16384
    assert [shape.m for shape in squares(64)] == [512]


def test_the_ordinary_shapes_near_a_square_of_1024() -> None:
    told = [(shape.kind, shape.sizes) for shape in ordinary(1024, None)]
    assert told == [
        ("peak_odd", (1023, 1023, 1023)),
        ("peak_odd", (1025, 1025, 1025)),
        ("peak_tile", (1025, 1024, 1024)),
        ("peak_tile", (1024, 1025, 1024)),
        ("peak_tile", (1024, 1024, 1025)),
        ("peak_skinny", (32, 1024, 1024)),
        ("peak_skinny", (1024, 32, 1024)),
        ("peak_skinny", (1024, 1024, 32)),
    ]


def test_on_132_multiprocessors_a_wave_is_132_tiles() -> None:
    whole, more = waves(8192, 132)
    # 33 tiles of 256 across are 8448, nearest to 8192; 4 rows make a wave, and 16 waves are 8192 rows
    assert (whole.kind, whole.sizes) == (WHOLE, (8192, 8448, 8192))
    assert (whole.m // 128) * (whole.n // 256) % 132 == 0
    assert (more.kind, more.sizes) == (WAVE, (8320, 8448, 8192))
    assert {shape.kind for shape in ordinary(8192, 132)} >= {WHOLE, WAVE}


def test_neighbours_move_one_axis_or_all_and_stay_multiples_of_64_within_bounds() -> None:
    told = [shape.sizes for shape in neighbours(Shape(1024, 1024, 1024), 0.5, 1024)]
    assert told == [
        (1536, 1536, 1536),
        (512, 512, 512),
        *((1536, 1024, 1024), (512, 1024, 1024)),
        *((1024, 1536, 1024), (1024, 512, 1024)),
        *((1024, 1024, 1536), (1024, 1024, 512)),
    ]
    small = [shape.sizes for shape in neighbours(Shape(64, 64, 64), 0.125, 1024)]
    assert small == []  # 72 and 56 round to 64
    assert all(max(shape.sizes) <= 2048 for shape in neighbours(Shape(2048, 2048, 2048), 0.5, 1024))


# --- the table -------------------------------------------------------------------------------------------------------


def record(kind: str, m: int, n: int, k: int, tflops: float | None, dtype: str = "float32") -> dict[str, Any]:
    workload = {"name": kind, "m": m, "n": n, "k": k, "dtype": dtype}
    result = None if tflops is None else {"tflops": tflops}
    status, reason = ("ok", None) if tflops else ("skipped", "no such unit")
    return {
        "config": {"peak": {"search": True}, "workload": workload},
        "status": status,
        "reason": reason,
        "result": result,
    }


def test_the_table_tells_each_kinds_share_of_the_best(tmp_path: Path) -> None:
    records = [
        record("peak_square", 512, 512, 512, 0.05),
        record("peak_square", 768, 768, 768, 0.09),
        record("peak_square", 1024, 1024, 1024, 0.08),
        record("peak_odd", 767, 767, 767, 0.06),
        record("peak_found", 768, 1024, 768, 0.1),
        record("peak_square", 512, 512, 512, None, "tf32"),
    ]
    ends = [{"dtype": "float32", "seconds": 12.3, "stopped_by": module.TOP}]
    (tmp_path / SUMMARY).write_text(json.dumps(ends))
    lines = peak_table(records, tmp_path)
    assert lines[0] == (
        "float32: best 768 x 1024 x 768 (m x n x k), 100 GFLOP/s, of 5 shapes; the search ended after 12 s: "
        + module.TOP
    )
    assert lines[1].split(None, 3)[3] == "50% … 80% of it: 512³ 50%, 1024³ 80%"
    assert lines[2].endswith("60% of it: 767³ 60%")
    assert lines[3:] == ["tf32: no shape has a rate (skipped: no such unit)"]
    assert len(peak_table(records)) == 4  # without the summary of a run that was cut short


def test_records_of_no_search_make_no_table() -> None:
    assert peak_table([{"config": {"workload": {"dtype": "float32"}}, "status": "ok"}]) == []


# --- the door --------------------------------------------------------------------------------------------------------


def test_the_peak_experiment_is_a_sweep_without_saying_so() -> None:
    assert is_multirun(["+experiment=peak"])
    assert compose_single(["+experiment=peak"]) is None
    assert not is_multirun(["+experiment=gpu"])
    assert not is_multirun(["+experiment=nothing"])


@pytest.mark.parametrize(
    ("device", "engine", "expected"),
    [("cpu", "torch", 1), ("cuda", "numpy", 1), ("cuda", "torch", 2), ("auto", "cupy", 2)],
)
def test_an_experiments_size_follows_the_device(device: str, engine: str, expected: int) -> None:
    assert by_device(device, engine, 1, 2) == expected
