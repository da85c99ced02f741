"""What the verdicts of experiment=health are made of: the record taken apart, a rank's verdict, and what an outlier is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from distbench.config import Guard, Health
from distbench.stats import median

_MAD_TO_SIGMA = 1.4826

WRONG, POWER, CLOCK, SLOW, LATE, LINK = (
    "wrong_result",
    "power_limited",
    "clock_limited",
    "compute_slow",
    "late",
    "slow_link",
)
BAD = (WRONG, POWER, CLOCK, SLOW, LATE, LINK)
"""The bad verdicts, the gravest first: where there are several reasons, the first of them is the verdict."""
UNKNOWN, OK = "unknown", "ok"


@dataclass
class Verdict:
    """What is known of one rank. verdict: of the gravest reason; unknown where nothing could be compared."""

    rank: int
    host: str
    device: str
    device_name: str | None
    device_uuid: str | None
    pci: str | None
    verdict: str = OK
    reasons: list[dict[str, str]] = field(default_factory=list)
    """name (of a verdict) and text."""
    numbers: dict[str, Any] = field(default_factory=dict)

    def found(self, name: str, text: str) -> None:
        """One more reason."""
        self.reasons.append({"name": name, "text": text})
        names = [reason["name"] for reason in self.reasons]
        self.verdict = next((bad for bad in BAD if bad in names), UNKNOWN if UNKNOWN in names else OK)


@dataclass(frozen=True)
class Facts:
    """The record of a cell that was measured, taken apart."""

    record: dict[str, Any]
    limits: Health
    guard: Guard

    @property
    def ranks(self) -> list[dict[str, Any]]:
        return list(self.record["world"]["ranks"])

    def sharing(self, rank: int) -> list[int]:
        """The other ranks on this rank's GPU."""
        uuid = self.ranks[rank]["device_uuid"]
        return [
            other["rank"] for other in self.ranks if uuid and other["device_uuid"] == uuid and other["rank"] != rank
        ]

    def times_s(self, rank: int) -> list[float]:
        """Of a rank's product, per sample."""
        times: list[float] = self.record["samples"]["phases_s"]["gemm"][rank]
        return times

    def gemm_s(self, rank: int) -> float:
        """The median of those."""
        return median(self.times_s(rank))

    def cpu(self, rank: int) -> dict[str, Any]:
        told: dict[str, Any] = self.record["telemetry"][rank]["cpu"]
        return told

    def gpu(self, rank: int) -> dict[str, Any] | None:
        told: dict[str, Any] | None = self.record["telemetry"][rank]["gpu"]
        return told

    def cores(self, rank: int) -> float:
        """A rank's share of the cores in its mask, each divided among this run's ranks that may run on it."""
        own = self.ranks[rank]
        users = Counter(core for other in self.ranks if other["host"] == own["host"] for core in other["affinity"])
        return sum(1 / users[core] for core in own["affinity"])

    def kind(self, rank: int) -> str:
        """What a rank's device is: equal kinds should be equally fast."""
        return str(self.ranks[rank]["device_name"] or self.cpu(rank)["model"])

    def arithmetic(self, rank: int) -> tuple[str, int, int]:
        """What decides a result's bits beside A and B: on the CPU the library cuts the work by threads (and by the cores
        that it sees); cuBLAS promises equal bits on GPUs of one architecture and as many multiprocessors (cuBLAS library,
        "Results Reproducibility").
        """
        told = self.ranks[rank]
        if told["device_name"]:
            return self.kind(rank), 0, 0
        return self.kind(rank), told["threads"], len(told["affinity"])


def outliers(values: list[float], least: float, deviations: float) -> list[bool]:
    """Which of three values or more lie above the median by more than `least` (in their unit) and so many deviations."""
    middle = median(values)
    spread = _MAD_TO_SIGMA * median([abs(value - middle) for value in values])
    return [value - middle > max(least, deviations * spread) for value in values]
