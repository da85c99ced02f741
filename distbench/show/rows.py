"""Records as tidy tables: one row per cell, one row per sample; the unit is in the column's name."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from distbench.show.peaks import share_of_peak
from distbench.show.runs import Record, Run, flat, per_rank, workload_of
from distbench.stats import median

Row = dict[str, Any]


def cell_rows(runs: list[Run]) -> Iterator[Row]:
    """One row per cell: what it was, how fast, whether right, on what. Absent values are None."""
    for run in runs:
        for item in run.records:
            yield _cell_row(run, item)


def _cell_row(run: Run, item: Record) -> Row:
    result: dict[str, Any] = item["result"] or {}
    work, checked, environment = item.get("work") or {}, item.get("verification") or {}, item["environment"]
    ranks: list[dict[str, Any]] = item["world"].get("ranks") or []
    interval = result.get("time_ci_s") or (None, None)
    rank_time_s = result.get("rank_time_s") or []
    slowest = max(range(len(rank_time_s)), key=rank_time_s.__getitem__) if rank_time_s else None
    return {
        **_identity(run, item),
        "status": item["status"],
        "reason": item["reason"],
        "time_utc": item.get("time"),
        "launcher": item["world"].get("launcher"),
        "hosts": len({rank.get("host") for rank in ranks}),
        "device_name": ", ".join(sorted({str(rank.get("device_name") or environment.get("cpu")) for rank in ranks})),
        "work_flop": work.get("flop"),
        "abc_bytes": work.get("bytes"),
        "samples": result.get("samples"),
        "span_median_s": result.get("time_s"),
        "span_ci_low_s": interval[0],
        "span_ci_high_s": interval[1],
        "span_best_s": result.get("best_s"),
        "span_p5_s": result.get("p5_s"),
        "span_p95_s": result.get("p95_s"),
        "rate_tflops": result.get("tflops"),
        "gemm_rate_tflops": result.get("gemm_tflops"),
        "gemm_share_of_datasheet_peak": share_of_peak(item) if result else None,
        **{f"{name}_median_s": (result.get("phases_s") or {}).get(name) for name in ("h2d", "gemm", "collect")},
        "busbw_gb_per_s": result.get("busbw"),
        "start_skew_median_s": result.get("start_skew_s"),
        "barrier_s": result.get("barrier_s"),
        "rank_median_s": median(rank_time_s) if rank_time_s else None,
        "slowest_rank": slowest,
        "slowest_rank_host": ranks[slowest].get("host") if slowest is not None and slowest < len(ranks) else None,
        "setup_s": result.get("setup_s"),
        "first_s": result.get("first_s"),
        "converged": result.get("converged"),
        "max_error": checked.get("max_error"),
        "tolerance": checked.get("tolerance"),
        "distbench_version": environment.get("distbench"),
        "torch_version": environment.get("torch"),
        "host": environment.get("host"),
    }


def sample_rows(runs: list[Run]) -> Iterator[Row]:
    """One row per kept sample: its span, how far apart the ranks started, the slowest rank and each phase's slowest."""
    for run in runs:
        for item in run.records:
            if item["samples"]:
                yield from _rows_of_samples(run, item)


def _rows_of_samples(run: Run, item: Record) -> Iterator[Row]:
    identity, flop = _identity(run, item), item["work"]["flop"]
    samples = per_rank(run, item)
    rank_s, phases_s = samples.get("rank_s"), samples.get("phases_s") or {}
    for index, span_s in enumerate(samples["span_s"]):
        times = [times[index] for times in rank_s] if rank_s else None
        yield {
            **identity,
            "sample": index,
            "span_s": span_s,
            "rate_tflops": flop / span_s / 1e12 if span_s else None,
            "start_skew_s": samples["start_skew_s"][index] if samples.get("start_skew_s") else None,
            "slowest_rank": max(range(len(times)), key=times.__getitem__) if times else None,
            "slowest_rank_s": max(times) if times else None,
            **{
                f"{name}_slowest_s": max(of_rank[index] for of_rank in phases_s[name]) if name in phases_s else None
                for name in ("h2d", "gemm", "collect")
            },
        }


def _identity(run: Run, item: Record) -> Row:
    """The columns that both tables share: which run, which cell, its configuration."""
    told = item["config"] | {"workload": workload_of(item)}
    config = {key: value for key, value in flat(told) if not key.startswith(("run.", "measure."))}
    named = {key.replace("workload.name", "workload").replace("workload.", ""): value for key, value in config.items()}
    return {
        "run": run.name,
        "cell": item["cell"],
        "repeat": item.get("repeat"),
        "world_size": item["world"]["size"],
        **{key.replace(".", "_"): value for key, value in named.items()},
    }


def columns_of(rows: list[Row]) -> list[str]:
    """Every column of any row, in the order met: records of several versions may differ."""
    return list(dict.fromkeys(key for row in rows for key in row))


def to_csv(rows: Iterator[Row]) -> str:
    """RFC 4180 with a heading; nothing where a value is absent."""
    told = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns_of(told), lineterminator="\n")
    writer.writeheader()
    writer.writerows(told)
    return text.getvalue()
