"""The search for the fastest shape: squares from small to large, ordinary shapes near the best, then uphill from the best."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from distbench.peak.shapes import FOUND, Shape, neighbours, ordinary, squares

_FIRST_STEP = 0.5
_LAST_STEP = 0.06
NOTHING = "the first shape could not be measured"
TIME = "the time was up (peak.time_s)"
TOP = "no neighbouring shape is faster"


@dataclass
class Found:
    """What a search came to. rates: TFLOP/s of each shape that was measured, in order."""

    rates: dict[Shape, float] = field(default_factory=dict)
    stopped_by: str = ""
    seconds: float = 0.0

    @property
    def best(self) -> Shape | None:
        return max(self.rates, key=lambda shape: self.rates[shape], default=None)


class Search:
    """One dtype's search. measure: the rate of a shape, None where it has none; all else is decided here."""

    def __init__(
        self,
        measure: Callable[[Shape], float | None],
        fits: Callable[[Shape], bool],
        time_s: float,
        largest: int,
        multiprocessors: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """fits: whether the shape can be multiplied at all (memory, the dtype's multiples). largest: of a square."""
        self.measure, self.fits, self.now = measure, fits, now
        self.largest, self.multiprocessors = largest, multiprocessors
        self.began_s = now()
        self.ends_s = self.began_s + time_s
        self.found = Found()
        self._tried: set[tuple[int, int, int]] = set()
        self._took: list[tuple[int, float]] = []
        """(multiply-adds, seconds) of each cell."""

    def run(self) -> Found:
        """Until the time is up or nothing near the best is faster; a cell is not begun that would not end in time."""
        self.found.stopped_by = self._stages()
        self.found.seconds = self.now() - self.began_s
        return self.found

    def _stages(self) -> str:
        for shape in squares(self.largest):
            if not self._try(shape):
                if not self._tried_any:
                    return NOTHING
                break  # larger ones take longer still, and need more memory
        best = self.found.best
        if best is None:
            return NOTHING
        for shape in ordinary(best.m, self.multiprocessors):
            self._try(shape)
        return self._uphill()

    @property
    def _tried_any(self) -> bool:
        return bool(self.found.rates)

    def _uphill(self) -> str:
        """From the best shape so far to its best neighbour, in steps that are halved where none is faster."""
        step = _FIRST_STEP
        while step > _LAST_STEP:
            here = self.found.best
            assert here is not None
            for shape in neighbours(here, step, self.largest):
                self._try(shape)
                if self.now() >= self.ends_s:
                    return TIME
            if self.found.best == here:
                step /= 2
        return TOP if not self._left_out else TIME

    _left_out = False
    """A neighbour was left out that would not have ended in time."""

    def _try(self, shape: Shape) -> bool:
        """Measure it, unless it was, cannot be, or would not end in time. True where it has a rate."""
        if shape.sizes in self._tried:
            return any(known.sizes == shape.sizes for known in self.found.rates)
        if not self.fits(shape):
            return False
        if self._took and self.now() + self._expected_s(shape) > self.ends_s:
            self._left_out = self._left_out or shape.kind == FOUND
            return False
        self._tried.add(shape.sizes)
        began_s = self.now()
        rate = self.measure(shape)
        self._took.append((shape.volume, self.now() - began_s))
        if rate is None:
            return False
        self.found.rates[shape] = rate
        return True

    def _expected_s(self, shape: Shape) -> float:
        """At most: what the nearest smaller cell took (else the smallest), by how much more there is to multiply."""
        smaller = [told for told in self._took if told[0] <= shape.volume]
        volume, seconds = max(smaller) if smaller else min(self._took)
        return seconds * max(1.0, shape.volume / volume)
