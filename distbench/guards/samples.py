"""Doubts that the samples themselves raise."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from statistics import fmean, pvariance

from distbench.guards.case import Case, Unknown, Warned
from distbench.stats import median, median_interval

_DRIFT_SAMPLES = 18  # six in each third: the fewest that have an interval
_MODES_SAMPLES = 32
_MODE_SHARE = 0.15  # of the samples, the least that is a mode and not a few outliers


def device_idle(case: Case) -> Iterator[Warned]:
    """A GPU's span of one short product holds a launch, the wake of the card and a synchronise: true, and not its rate."""
    phases, config = case.samples["phases_s"], case.config
    if not case.on_gpu or list(phases) != ["gemm"] or config["collect"] != "none":
        return
    if config["measure"]["inner"] != 1 or config["measure"]["cache"] == "cold":
        return  # it was chosen, or cannot be otherwise
    if config["health"]["check"] or config["ceilings"]["measure"]:
        return  # their verdicts and rates go by the device's own time
    # Where ranks, or shards of one process, take turns on a GPU, it works for another while this one has no work.
    if case.result["gemm_tflops"] is None or any(len(rank.get("parts") or [0]) > 1 for rank in case.ranks):
        return
    busy_s = [max(of_ranks) for of_ranks in zip(*phases["gemm"], strict=True)]
    idle_s = median([span - busy for span, busy in zip(case.samples["span_s"], busy_s, strict=True)])
    share = idle_s / case.result["time_s"]
    if share > case.limits.idle:
        text = f"the GPU had no work for {share:.1%} of a span ({idle_s * 1e6:.0f} µs of starting and waiting)"
        yield Warned("device_idle", share, case.limits.idle, f"{text}: measure.inner=auto gives the product's own rate")


def drift(case: Case) -> Iterator[Warned]:
    spans = case.samples["span_s"]
    if len(spans) < _DRIFT_SAMPLES:
        raise Unknown(f"{len(spans)} samples: first and last can be compared from {_DRIFT_SAMPLES} on")
    third = len(spans) // 3
    first, last = spans[:third], spans[-third:]
    change = median(last) / median(first) - 1
    (low, high), (low_last, high_last) = (median_interval(part) or (0.0, float("inf")) for part in (first, last))
    apart = low_last > high or high_last < low
    if abs(change) > case.limits.drift and apart:
        slower = "slower" if change > 0 else "faster"
        text = f"the last third of the samples is {abs(change):.1%} {slower} than the first: not a steady state"
        yield Warned("drift", change, case.limits.drift, text)


def bimodal(case: Case) -> Iterator[Warned]:
    spans = case.samples["span_s"]
    if len(spans) < _MODES_SAMPLES:
        raise Unknown(f"{len(spans)} samples: two groups can be told from {_MODES_SAMPLES} on")
    distance, low, high = two_groups(spans)
    gap = high / low - 1
    # One uniform distribution, cut in two, is 3.46 apart, with a scatter that falls with the root of the count: this
    # takes at most 1 in 100 sample sets of it, and fewer of a normal, log-normal or exponential one, for two groups.
    if distance >= 3.5 + 9 / sqrt(len(spans)) and gap > case.limits.mode_gap:
        text = f"the samples fall into two groups, {gap:.1%} apart: a median of both is neither"
        yield Warned("bimodal", gap, case.limits.mode_gap, text)


def unconverged(case: Case) -> Iterator[Warned]:
    if case.result["converged"]:
        return
    target, interval = case.config["measure"]["target_rel_ci"], case.result["time_ci_s"]
    half = None if interval is None else (interval[1] - interval[0]) / 2 / case.result["time_s"]
    stop = case.result["stopped_by"]
    text = f"not converged: measure.{stop} came before ± {target:.2g} of the median was reached"
    yield Warned("unconverged", half, target, text)


def two_groups(values: list[float]) -> tuple[float, float, float]:
    """(distance, median of the lower, median of the upper) of the best split in two, neither below 15 % of the values.

    The split has the largest variance between the groups (Otsu, 1979); the distance of the means is in units of the
    groups' own spread, √2·|μ₁ − μ₂| / √(σ₁² + σ₂²) (Ashman, Bird and Zepf, 1994).
    """
    ordered = sorted(values)
    count, total = len(ordered), sum(ordered)
    least = max(2, round(_MODE_SHARE * count))
    below = sum(ordered[: least - 1])
    best = (-1.0, least)
    for size in range(least, count - least + 1):
        below += ordered[size - 1]
        apart = (total - below) / (count - size) - below / size
        best = max(best, (size * (count - size) * apart**2, size))
    lower, upper = ordered[: best[1]], ordered[best[1] :]
    spread = sqrt(pvariance(lower) + pvariance(upper))
    apart = fmean(upper) - fmean(lower)
    distance = sqrt(2) * apart / spread if spread > 0 else float("inf") if apart > 0 else 0.0
    return distance, median(lower), median(upper)
