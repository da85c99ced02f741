"""Statistics: the interval covers the median as often as it says, whatever the distribution."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from distbench.stats import median, median_interval, quantile


def ranks(count: int) -> tuple[int, int]:
    """(l, u), from 1: which order statistics the interval of `count` samples is made of."""
    interval = median_interval([float(value) for value in range(1, count + 1)])
    assert interval is not None
    return int(interval[0]), int(interval[1])


def miss_below(count: int, low: int) -> int:
    """2**count · P(fewer than `low` of `count` samples lie below the median)."""
    total, ways = 0, 1
    for below in range(low):
        total += ways
        ways = ways * (count - below) // (below + 1)
    return total


def is_covered(count: int, low: int) -> bool:
    """True if the order statistics low and count + 1 - low cover the median with 95 % or more; exact integers."""
    return 2 * miss_below(count, low) * 20 <= 2**count


def test_the_interval_covers_the_median_with_95_percent_by_the_exact_binomial() -> None:
    for count in [*range(6, 301), 500, 999, 1000, 1001, 1002, 5000]:
        low, high = ranks(count)
        assert low + high == count + 1, f"{count}: not symmetric"
        assert is_covered(count, low), count


def test_the_interval_is_the_narrowest_symmetric_one() -> None:
    for count in [*range(6, 301), 500, 999, 1000]:
        low, _ = ranks(count)
        assert not is_covered(count, low + 1), count


@pytest.mark.parametrize("count", [1001, 5000])
def test_the_approximation_for_many_samples_is_at_most_three_ranks_wider(count: int) -> None:
    low, _ = ranks(count)
    assert not is_covered(count, low + 3)


@pytest.mark.parametrize("count", range(1, 6))
def test_fewer_than_six_samples_have_no_interval(count: int) -> None:
    assert median_interval([1.0] * count) is None


def test_six_samples_are_covered_by_their_extremes() -> None:
    assert median_interval([6.0, 1.0, 5.0, 2.0, 4.0, 3.0]) == (1.0, 6.0)


def test_the_order_of_the_samples_does_not_matter() -> None:
    values = [Random(1).random() for _ in range(101)]
    shuffled = Random(2).sample(values, len(values))
    assert median_interval(values) == median_interval(shuffled)
    assert median(values) == median(shuffled)
    assert quantile(values, 0.95) == quantile(shuffled, 0.95)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 10, 99, 100])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.25, 0.5, 0.9, 0.95, 1.0])
def test_quantiles_are_numpys(count: int, share: float) -> None:
    values = [Random(count).lognormvariate(0, 1) for _ in range(count)]
    assert quantile(values, share) == pytest.approx(float(np.quantile(values, share)), rel=1e-14)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 11])
def test_the_median_is_numpys(count: int) -> None:
    values = [Random(count).lognormvariate(0, 1) for _ in range(count)]
    assert median(values) == pytest.approx(float(np.median(values)), rel=1e-15)


def test_statistics_leave_the_samples_in_their_order() -> None:
    values = [3.0, 1.0, 2.0, 6.0, 5.0, 4.0]
    median(values), quantile(values, 0.5), median_interval(values)
    assert values == [3.0, 1.0, 2.0, 6.0, 5.0, 4.0]
