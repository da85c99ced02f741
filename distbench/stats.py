"""Order statistics of samples: no assumption about their distribution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, comb, floor, sqrt


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones. `values` need not be sorted, must not be empty."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def quantile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics (type 7 of Hyndman and Fan, 1996)."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % confidence interval of the median from order statistics (Hahn and Meeker, Statistical Intervals, 5.3).

    None below six values: no pair of order statistics then covers the median with 95 %.
    """
    ranks = _interval_ranks(len(values))
    if ranks is None:
        return None
    ordered = sorted(values)
    return ordered[ranks[0] - 1], ordered[ranks[1] - 1]


@lru_cache(maxsize=4096)
def _interval_ranks(count: int) -> tuple[int, int] | None:
    """(l, u), counted from 1: the innermost symmetric pair of order statistics that covers the median with ≥ 95 %."""
    if count < 6:
        return None
    if count > 1000:  # the normal approximation to the binomial, rounded outwards
        low = floor(count / 2 - 1.959964 * sqrt(count) / 2)
        return low, min(count, ceil(count / 2 + 1.959964 * sqrt(count) / 2) + 1)
    tail, low = 0, 0
    while (tail + comb(count, low)) * 40 <= 2**count:  # P(fewer than low + 1 below the median) ≤ 0.025
        tail += comb(count, low)
        low += 1
    return low, count + 1 - low


def timeit(samples: Sequence[float], loops: int, repeats: int) -> tuple[float, float] | None:
    """Mean and spread as %%timeit -n loops -r repeats gives them, from samples in the order in which they were taken.

    Each group of `loops` neighbouring samples is a repeat, whose time is the group's mean; the result is the mean and
    the population standard deviation of the first `repeats` of them. None: fewer than loops x repeats samples.
    """
    if len(samples) < loops * repeats:
        return None
    means = [sum(samples[at * loops : (at + 1) * loops]) / loops for at in range(repeats)]
    mean = sum(means) / repeats
    return mean, sqrt(sum((value - mean) ** 2 for value in means) / repeats)


def line_fit(cumulated: Sequence[float]) -> tuple[float, float] | None:
    """(slope, largest distance from the line ÷ the last time) of the least-squares line through the times after runs
    1, 2, …; None below three of them.
    """
    count = len(cumulated)
    if count < 3:
        return None
    middle, mean = (count + 1) / 2, sum(cumulated) / count
    runs = range(1, count + 1)
    slope = sum((x - middle) * (y - mean) for x, y in zip(runs, cumulated, strict=True)) / sum(
        (x - middle) ** 2 for x in runs
    )
    worst = max(abs(y - mean - slope * (x - middle)) for x, y in zip(runs, cumulated, strict=True))
    return slope, worst / cumulated[-1]
