"""What the samples say: the record's `result`, derived from the samples and the plan alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from distbench.config import CollectName
from distbench.measure import Samples
from distbench.plan import Plan
from distbench.stats import median, median_interval, quantile


def summary(samples: Samples, plan: Plan, collective: CollectName | None) -> dict[str, Any]:
    """Times in seconds, rates in TFLOP/s = FLOP ÷ median span ÷ 1e12.

    collective: the operation whose bus bandwidth to state; None where C was not collected by one.
    """
    spans = samples.span_s
    time_s = median(spans)
    interval = median_interval(spans)
    phases = {name: slowest_s(per_rank) for name, per_rank in samples.phases_s.items()}
    gemm_s = phases["gemm"]
    return {
        "time_s": time_s,
        "time_ci_s": None if interval is None else list(interval),
        "tflops": plan.flop / time_s / 1e12,
        "best_s": min(spans),
        "p5_s": quantile(spans, 0.05),
        "p95_s": quantile(spans, 0.95),
        "samples": len(spans),
        "converged": samples.converged,
        "stopped_by": samples.stopped_by,
        "phases_s": phases,
        "gemm_tflops": plan.flop / gemm_s / 1e12 if gemm_s > 0 else None,
        "busbw": None if collective is None else busbw(collective, plan.c_bytes, plan.world_size, phases["collect"]),
        "rank_time_s": [median(times) for times in samples.rank_s],
        "start_skew_s": median(samples.start_skew_s),
    }


def slowest_s(per_rank: list[list[float]]) -> float:
    """Median over samples of the slowest rank's time, from [rank][sample]."""
    return median([max(times) for times in zip(*per_rank, strict=True)])


def busbw(collective: CollectName, c_bytes: int, world_size: int, time_s: float) -> float | None:
    """GB/s as nccl-tests defines it: bytes of C ÷ time × the share that crosses a link; None in a world of one.

    Source of the factors: PERFORMANCE.md of NVIDIA/nccl-tests.
    """
    p = world_size
    factor = {
        CollectName.gather: (p - 1) / p,
        CollectName.all_gather: (p - 1) / p,
        CollectName.reduce_scatter: (p - 1) / p,
        CollectName.reduce: 1.0,
        CollectName.all_reduce: 2 * (p - 1) / p,
    }[collective]
    return None if p == 1 or time_s <= 0 else c_bytes / time_s * factor / 1e9


def samples_of(samples: Samples) -> dict[str, Any]:
    """The record's `samples`."""
    told = asdict(samples)
    for derived in ("converged", "stopped_by"):  # they stand in the result
        del told[derived]
    return told | {"dropped_late": len(samples.dropped_span_s)}
