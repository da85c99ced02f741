"""FASTER, SLOWER, SAME or UNSURE: ratios of medians with an interval that counts how launches differ.

The logarithm of a launch's median is the unit. Launches of one program differ by more than their samples tell (where
memory came to lie, which neighbours were busy), so:

- two or more launches on both sides: Welch's t interval of their log medians (Kalibera and Jones, Rigorous Benchmarking
  in Reasonable Time, ISMM 2013: the launch is the level that matters);
- more than one on one side: that side's spread stands for both;
- one a side: the spread between launches cannot be seen and is assumed, at no less than that of the samples within
  them (what disturbs samples disturbs launches), and the error of each median is added, from a bootstrap over blocks of
  samples, since neighbours in time are not independent.

Over all cells Holm's rule (1979) keeps the chance of one false FASTER or SLOWER at 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ALPHA = 0.05
_RESAMPLES = 300
_FEWEST_SAMPLES = 6


@dataclass(frozen=True)
class Estimate:
    """NEW ÷ BASE of the median, its 95 % interval, and the chance of such a ratio or a further one without a change."""

    ratio: float
    low: float
    high: float
    p: float
    how: str


def estimate(base: Sequence[Sequence[float]], new: Sequence[Sequence[float]], launch_spread: float) -> Estimate:
    """Compare two sides; each is one series of samples per launch, all positive.

    launch_spread: the least standard deviation of launches' medians, as a share, where each side has one launch.
    """
    from scipy import stats

    olds, nows = ([math.log(float(np.median(series))) for series in side] for side in (base, new))
    difference = float(np.mean(nows) - np.mean(olds))
    if len(olds) > 1 and len(nows) > 1:
        variances = [float(np.var(side, ddof=1)) / len(side) for side in (olds, nows)]
        error = math.sqrt(sum(variances))
        freedom = (
            sum(variances) ** 2 / sum(v**2 / (len(side) - 1) for v, side in zip(variances, (olds, nows), strict=True))
            if error
            else 1.0
        )
        how = f"{len(olds)} and {len(nows)} launches"
    elif len(olds) + len(nows) > 2:
        many = max(olds, nows, key=len)
        error = float(np.std(many, ddof=1)) * math.sqrt(1 + 1 / len(many))
        freedom = float(len(many) - 1)
        how = f"{len(olds)} and {len(nows)} launches: the spread of the many stands for both"
    else:
        within = [log_median_error(side[0]) for side in (base, new)]
        spread = max(launch_spread, *(log_spread(side[0]) for side in (base, new)))
        error = math.sqrt(sum(value**2 for value in within) + 2 * spread**2)
        freedom = math.inf
        how = f"one launch a side: launches are taken to differ as their samples do, by {launch_spread:.1%} at least"
        if math.isinf(error):
            how = f"one launch a side and fewer than {_FEWEST_SAMPLES} values in it: no interval"
    if not error:  # equal to the last digit in every launch
        return Estimate(math.exp(difference), math.exp(difference), math.exp(difference), float(difference == 0), how)
    half = float(stats.t.ppf(1 - ALPHA / 2, freedom)) * error
    p = 2 * float(stats.t.sf(abs(difference) / error, freedom))
    return Estimate(math.exp(difference), math.exp(difference - half), _exp(difference + half), p, how)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf


def log_median_error(series: Sequence[float]) -> float:
    """Standard error of the log of a series' median, by a bootstrap over blocks of neighbouring samples.

    Infinite below six samples. The blocks are twice as long as samples stay correlated (of their ranks, as times have
    outliers). Source: Künsch, The Jackknife and the Bootstrap for General Stationary Observations, 1989.
    """
    from scipy import stats

    values = np.log(np.asarray(series, dtype=float))
    if len(values) < _FEWEST_SAMPLES:
        return math.inf
    length = _block_length(values)
    blocks = np.lib.stride_tricks.sliding_window_view(values, length)
    count = -(-len(values) // length)

    def median(index: Any, axis: int) -> Any:
        drawn = np.moveaxis(index, axis, -1)[..., :count].astype(int)
        return np.median(blocks[drawn].reshape(*drawn.shape[:-1], -1), axis=-1)

    told = stats.bootstrap(
        (np.arange(len(blocks)),),
        median,
        n_resamples=_RESAMPLES,
        method="percentile",
        axis=0,
        rng=np.random.default_rng(0),
    )
    return float(told.standard_error)


def log_spread(series: Sequence[float]) -> float:
    """The samples' standard deviation as a share, from the middle half of them: outliers do not count."""
    low, high = np.quantile(np.log(np.asarray(series, dtype=float)), [0.25, 0.75])
    return float((high - low) / 1.349)


def _block_length(values: Any) -> int:
    """Twice the time over which samples stay correlated, between the cube root of their number and a quarter of it."""
    count = len(values)
    ranks = np.argsort(np.argsort(values)).astype(float)
    ranks -= ranks.mean()
    power = float(ranks @ ranks) or 1.0
    reach = 1.0
    for lag in range(1, count // 3):
        correlation = float(ranks[:-lag] @ ranks[lag:]) / power
        if correlation <= 0.05:
            break
        reach += 2 * correlation
    return int(max(1, min(count // 4, max(math.ceil(2 * reach), math.ceil(count ** (1 / 3))))))


def holm(chances: Sequence[float]) -> list[float]:
    """Each p adjusted for the number of comparisons (Holm, A Simple Sequentially Rejective Multiple Test, 1979)."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    adjusted, highest = [1.0] * len(chances), 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, chances[index] * (len(chances) - place)))
        adjusted[index] = highest
    return adjusted


def verdict(told: Estimate, adjusted_p: float, threshold: float, higher_is_better: bool) -> str:
    """One word. `threshold`: the share within which cells count as the same."""
    if adjusted_p <= ALPHA:
        return "FASTER" if (told.ratio > 1) == higher_is_better else "SLOWER"
    within = 1 / (1 + threshold) <= told.low and told.high <= 1 + threshold
    return "SAME" if within else "UNSURE"


def loss(ratio: float, higher_is_better: bool) -> float:
    """How much slower NEW is, as a share of BASE's time: 0.05 is 5 % more time; negative where it is faster."""
    return (1 / ratio if higher_is_better else ratio) - 1
