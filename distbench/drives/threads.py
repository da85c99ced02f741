"""A thread per device: each gives its device the whole sample. The threads stay; only their work is timed."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from distbench.drives.in_order import before_sample, in_order, nothing
from distbench.timed import Timed
from distbench.unit import Unit


class _Crew:
    """Threads that wait for a word, do their unit's sample, and say what became of it."""

    def __init__(self, lanes: list[tuple[Unit, Timed]]) -> None:
        self.go: list[SimpleQueue[bool]] = [SimpleQueue() for _ in lanes]
        self.done: SimpleQueue[BaseException | None] = SimpleQueue()
        for (unit, timed), words in zip(lanes, self.go, strict=True):
            threading.Thread(target=self._work, args=(unit, timed, words), daemon=True).start()

    def run(self) -> None:
        for words in self.go:
            words.put(True)
        failures = [failure for _ in self.go if (failure := self.done.get()) is not None]
        if failures:
            raise failures[0]

    def close(self) -> None:
        for words in self.go:
            words.put(False)

    def _work(self, unit: Unit, timed: Timed, words: SimpleQueue[bool]) -> None:
        if unit.device.type == "cuda":
            import torch

            torch.cuda.set_device(unit.device)
        while words.get():
            failure: BaseException | None = None
            try:
                timed.run()
            except Exception as error:  # the main thread raises it: this one must go on answering
                failure = error
            self.done.put(failure)


def in_threads(units: list[Unit], collects: bool) -> Timed:
    """Each device's phases in its own thread; ends when all are done."""
    lanes = [in_order([unit], collects) for unit in units]
    crew = _Crew(list(zip(units, lanes, strict=True)))

    def phases_ns() -> list[int]:
        return [max(times) for times in zip(*(lane.phases_ns() for lane in lanes), strict=True)]

    before = before_sample(units)
    return Timed(lanes[0].names, crew.run, phases_ns, crew.close, before=before or nothing, prepares=before is not None)
