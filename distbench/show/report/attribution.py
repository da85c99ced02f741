"""Whose time a span was: the rank that ended last, part by part."""

from __future__ import annotations

from typing import Any

import numpy as np

from distbench.show.report.figures import PHASE_NAMES


def where_time_went(samples: dict[str, Any]) -> dict[str, float]:
    """Seconds by part (start, upload, GEMM, collect, rest) that sum to the mean span of the middle half of the samples.

    Of each sample the rank that ends last is followed: it started so much after the first rank, spent its phases, and
    the rest in launching and synchronising. Empty where the record keeps nothing per rank, and where phases overlap.
    """
    if not samples.get("rank_s") or not samples.get("phases_s") or samples.get("phases_overlap"):
        return {}
    spans = np.asarray(samples["span_s"], dtype=float)
    rank_s = np.asarray(samples["rank_s"], dtype=float)
    start_s = samples.get("start_s")
    # Without starts (older records) the rank that took longest stands for the one that ended last.
    last = np.argmax(rank_s if not start_s else rank_s + np.asarray(start_s, dtype=float), axis=0)
    middle = np.argsort(spans)[len(spans) // 4 : max(len(spans) // 4 + 1, len(spans) - len(spans) // 4)]
    at = (last[middle], middle)
    own = rank_s[at]
    parts = {"start": np.maximum(spans[middle] - own, 0.0)}
    for name, values in samples["phases_s"].items():
        parts[PHASE_NAMES.get(name, name)] = np.asarray(values, dtype=float)[at]
    parts["rest"] = np.maximum(own - sum(parts[name] for name in parts if name != "start"), 0.0)
    return {name: float(np.mean(values)) for name, values in parts.items()}


def middle_sample(samples: dict[str, Any]) -> int:
    """The index of the sample whose span is nearest the median."""
    spans = np.asarray(samples["span_s"], dtype=float)
    return int(np.argmin(np.abs(spans - np.median(spans))))
