"""What the table of experiment=cpu_vs_gpu is computed from."""

from __future__ import annotations

import pytest

from distbench.show.notebook import notebook_table
from distbench.stats import line_fit, timeit


def test_neighbouring_samples_are_a_repeat_and_the_spread_is_between_repeats() -> None:
    # means of the repeats: 2 and 6; their mean 4, each 2 away; the seventh sample is of no repeat
    assert timeit([1.0, 3.0, 5.0, 7.0, 99.0], 2, 2) == (4.0, 2.0)
    assert timeit([1.0, 3.0, 5.0], 2, 2) is None


def test_a_line_is_found_and_the_largest_distance_is_a_share_of_the_last_time() -> None:
    assert line_fit([3.0, 5.0, 7.0, 9.0]) == pytest.approx((2.0, 0.0))
    # through (1, 1), (2, 2), (3, 6): slope 5/2, mean 3, residuals 1/2, -1, 1/2
    assert line_fit([1.0, 2.0, 6.0]) == pytest.approx((2.5, 1 / 6))
    assert line_fit([1.0, 2.0]) is None


def test_records_of_another_experiment_make_no_table() -> None:
    assert notebook_table([{"config": {"measure": {"loop": 0}}}]) == []
