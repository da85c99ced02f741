"""The terminal: a header, the stages as they happen, one table per cell or one row per cell of a sweep.

Rank 0 alone prints, and never between timed samples: nothing here runs a thread, and no event comes while measuring.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rich.console
from rich.text import Text

from distbench import __version__
from distbench.config import Config
from distbench.show.result import result_lines
from distbench.show.tables import sweep_table
from distbench.show.units import rate, seconds

_CLEAR = "\r\x1b[K"


class Console:
    """Told what happens, by `tell` and by the leader."""

    def __init__(self, world_size: int, sweeping: bool, launcher: str) -> None:
        self.sweeping = sweeping
        self.world_size = world_size
        self.launcher = launcher
        # mpirun and srun give ranks a terminal of their own even where their output goes to a file.
        self.live = sys.stdout.isatty() and launcher in ("single", "torchrun", "env")
        width = shutil.get_terminal_size().columns if self.live else 100
        self.out = rich.console.Console(
            force_terminal=self.live, width=max(width, 60), highlight=False, soft_wrap=not self.live
        )
        self.headed = False
        self.silent = False
        self.label = ""
        self.cells = 0
        self.best: tuple[float, str] | None = None
        self.stage = ""
        self.stage_began = self.drawn = time.monotonic()
        self.columns_shown = False
        self.records: list[dict[str, Any]] = []
        """A sweep's, less their samples: for the tables at its end."""

    def begin(self, config: Config | None, label: str) -> None:
        """A cell starts."""
        self.label = label or (config.workload.name if config else "")
        self.cells += 1

    def tell(self, event: str, detail: Any) -> None:
        """A cell goes on: ("stage", name), ("progress", share of the stage), ("placed", Place).

        Never raises: the ranks are in step, and a closed pipe or a full disk under stdout must not break that.
        """
        self._safely(lambda: self._tell(event, detail))

    def _safely(self, draw: Callable[[], None]) -> None:
        if self.silent:
            return
        try:
            draw()
        except (OSError, ValueError, SystemExit):  # SystemExit is rich's answer to a closed pipe
            self.silent = True  # stdout is gone; the records go on
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (for the interpreter's own flush at exit)

    def _tell(self, event: str, detail: Any) -> None:
        if event == "stage":
            self._end_stage()
            self.stage, self.stage_began = detail, time.monotonic()
            self._draw(detail)
        elif event == "progress" and time.monotonic() - self.drawn > 0.1:
            self._draw(f"{self.stage} {detail:.0%}")
        elif event == "placed" and not self.headed:
            self._clear()
            self._header(detail)
            self.headed = True

    def show(self, record: dict[str, Any]) -> None:
        """A cell's record, once it is on disk."""
        self._safely(lambda: self._show(record))

    def show_standing(self, record: dict[str, Any]) -> None:
        """A cell that a resumed run need not run again: its record is there."""
        self._safely(lambda: self._show_standing(record))

    def note(self, text: str) -> None:
        """A line that a person should read."""
        self._safely(lambda: self.out.print(Text(f"note: {text}", style="yellow")))

    def _show_standing(self, record: dict[str, Any]) -> None:
        self._keep(record)
        self._end_stage()
        if self.sweeping:
            self._row(record, "kept" if record["status"] == "ok" else record["status"])
        else:
            told = rate(record["result"]["tflops"]) if record["status"] == "ok" else record["reason"]
            self.out.print(f"has its record already: {record['status']}, {told}", markup=False)

    def _keep(self, record: dict[str, Any]) -> None:
        if self.sweeping:
            self.records.append({key: value for key, value in record.items() if key != "samples"})

    def _show(self, record: dict[str, Any]) -> None:
        self._keep(record)
        self._end_stage()
        self.stage = ""
        if self.sweeping:
            self._row(record)
        else:
            for line in result_lines(record):
                self.out.print(line)

    def finish(self, results: Path) -> None:
        """The launch is over."""
        self._safely(lambda: self._finish(results))

    def _finish(self, results: Path) -> None:
        if self.best is not None:
            self.out.print(f"best: {rate(self.best[0])}, {self.best[1]}", markup=False)
        for line in sweep_table(self.records, results.parent):
            self.out.print(line, markup=False)
        shown = results.relative_to(Path.cwd()) if results.is_relative_to(Path.cwd()) else results
        self.out.print(f"results: {shown}", markup=False)

    def close(self) -> None:
        """Leave the terminal clean."""
        self._safely(self._clear)
        self._safely(sys.stdout.flush)

    # --- drawing -----------------------------------------------------------------------------------------------------

    def _draw(self, text: str) -> None:
        self.drawn = time.monotonic()
        if self.live:
            prefix = f"{self.cells}: {self.label}: " if self.sweeping else ""
            line = f"{prefix}{text} …"[: self.out.width - 1]
            sys.stdout.write(f"{_CLEAR}{line}")
            sys.stdout.flush()

    def _clear(self) -> None:
        if self.live:
            sys.stdout.write(_CLEAR)
            sys.stdout.flush()

    def _end_stage(self) -> None:
        """A stage is done: in a single run its time stays on the screen."""
        self._clear()
        if self.stage and not self.sweeping:
            self.out.print(f"  {self.stage:<10}{seconds(time.monotonic() - self.stage_began):>10}", style="dim")

    def _header(self, place: Any) -> None:
        import torch

        cuda = f", CUDA {torch.version.cuda}" if place.device.value == "cuda" else ""
        self.out.print(
            f"distbench {__version__}, torch {torch.__version__}{cuda}, Python {sys.version.split()[0]}, "
            f"{self.world_size} rank{'s' * (self.world_size > 1)} ({self.launcher}), data over {place.backend}",
            markup=False,
        )
        self.out.print("  rank  host              pid  device   bus id        threads  cores  name", style="bold")
        ranks = place.ranks if len(place.ranks) <= 16 else [*place.ranks[:8], None, *place.ranks[-8:]]
        for rank in ranks:
            self.out.print("     …" if rank is None else _rank_line(rank), markup=False)
        for note in place.notes:
            self.out.print(Text(f"note: {note}", style="yellow"))

    def _row(self, record: dict[str, Any], status: str | None = None) -> None:
        if not self.columns_shown:
            titles = f"   # {'rate':>15} {'span':>10} {'± 95 %':>7} {'samples':>7}  {'status':<8}cell (* best so far)"
            self.out.print(titles, style="bold")
            self.columns_shown = True
        result = record["result"]
        if record["status"] != "ok":
            blank = f"{self.cells:>4} {'-':>15} {'-':>10} {'-':>7} {'-':>7}  {record['status']:<8}{self.label}"
            self.out.print(Text(f"{blank}\n     {record['reason']}", style="red"))
            return
        is_best = self.best is None or result["tflops"] > self.best[0]
        if is_best:
            self.best = (result["tflops"], self.label)
        figures = (
            f"{rate(result['tflops']):>15} {seconds(result['time_s']):>10} {_spread(result):>7} {result['samples']:>7}"
        )
        self.out.print(
            f"{self.cells:>4}{'*' if is_best else ' '}{figures}  {status or 'ok':<8}{self.label}", markup=False
        )
        if names := sorted({warning["name"] for warning in record.get("warnings", [])}):
            self.out.print(Text(f"     {', '.join(names)}", style="yellow"))


def _spread(result: dict[str, Any]) -> str:
    interval = result["time_ci_s"]
    if interval is None:
        return "?"
    return f"{(interval[1] - interval[0]) / 2 / result['time_s']:.1%}"


def _rank_line(rank: dict[str, Any]) -> str:
    cores = len(rank["affinity"])
    return (
        f"  {rank['rank']:>4}  {rank['host'][:14]:<14}{rank['pid']:>7}  {rank['device']:<8} {rank['pci'] or '-':<13}"
        f" {rank['threads']:>7} {cores:>6}  {rank['device_name'] or '-'}"
    )
