"""What a guard is given, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from distbench.config import Guard


@dataclass(frozen=True)
class Warned:
    """One doubt about a result. value and threshold are in the unit that `text` names; None where there is no number."""

    name: str
    value: float | None
    threshold: float | None
    text: str
    impossible: bool = False


@dataclass(frozen=True)
class Case:
    """A result with all that is known about how it came about; every part as it stands in the record."""

    config: dict[str, Any]
    ranks: list[dict[str, Any]]
    samples: dict[str, Any]
    result: dict[str, Any]
    telemetry: list[dict[str, Any]] | None
    peak_tflops: float | None
    """Dense datasheet peak of the distinct devices, for the dtype; None where unknown."""
    limits: Guard
    itemsize: int
    """Bytes of an element."""

    @property
    def on_gpu(self) -> bool:
        return bool(self.config["device"] == "cuda")

    def devices_of(self, rank: int) -> int:
        """Distinct devices that a rank drives; 0 where it stands aside (drive=loop and threads)."""
        parts = self.ranks[rank].get("parts")
        return 1 if parts is None else len({part["device_uuid"] or part["part"] for part in parts})

    def gpus(self) -> list[tuple[int, dict[str, Any]]]:
        """(rank, telemetry) of the ranks whose GPU told its state."""
        return [(rank, told["gpu"]) for rank, told in enumerate(self.telemetry or []) if told["gpu"] is not None]

    def told(self) -> list[dict[str, Any]]:
        """Each rank's telemetry. Raises Unknown where there is none."""
        if self.telemetry is None:
            raise Unknown("no telemetry")
        return self.telemetry


class Unknown(Exception):
    """A guard cannot tell; the message says what is missing."""


Check = Callable[[Case], Iterator[Warned]]
