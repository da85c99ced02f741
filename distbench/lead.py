"""Rank 0 leads: it composes cells, sends each to the others and keeps the records."""

from __future__ import annotations

import shutil
import tempfile
import traceback
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from distbench import resume
from distbench.alive import write_error_file
from distbench.cell import Cell
from distbench.compose import (
    Refused,
    compose_single,
    is_multirun,
    job_label,
    raw_config,
    refuse_new_keys,
    results_folder,
    resumed_folder,
    run_hydra,
    to_config,
)
from distbench.config import Config, ConfigError, as_dict, cell_id, identity
from distbench.explain import explain
from distbench.health.verdicts import bad_ranks
from distbench.record import Journal
from distbench.show.console import Console
from distbench.show.plan import show_plan
from distbench.world import World

_SKIPPED = "an earlier cell failed (run.stop_on_failure)"


def lead(world: World, arguments: list[str]) -> int:
    """Run what the command line asks for; returns the exit status. Raises Refused for what cannot be composed."""
    leader = Leader(world, arguments)
    try:
        return leader.run()
    finally:
        leader.console.close()
        if leader.in_cell:  # the others are inside it: no message reaches them any more
            traceback.print_exc()
            world.watch.end("rank 0 left a cell unfinished", "failed")
        world.broadcast_json({"cell": None})


class Leader:
    """Rank 0's state over a launch: the console, the journal, and how many cells did not go well."""

    def __init__(self, world: World, arguments: list[str]) -> None:
        self.world, self.arguments = world, arguments
        self.sweeping = is_multirun(arguments)
        self.console = Console(world.size, self.sweeping, world.launch.launcher)
        self.journal: Journal | None = None
        self.past: resume.Past | None = None
        self.bad: list[str] = []
        self.lacking: list[str] = []
        """Why cells were skipped that this machine cannot run."""
        self.good = 0
        self.refused: str | None = None
        """Why a cell alone cannot run here."""
        self.stopped = False
        self.in_cell = False

    def run(self) -> int:
        single = compose_single(self.arguments)
        if single is not None and single.run.dry_run:
            show_plan(single, self.world.size)
            return 0
        if self.sweeping:
            refuse_new_keys(self.arguments)
        if self.sweeping and any(word.lstrip("+").lower() == "run.dry_run=true" for word in self.arguments):
            return self._dry_sweep()
        self.past = self._past()
        run_hydra(self.task, self.arguments, self.past.folder if self.past else None)
        if self.refused is not None:
            raise Refused(self.refused)
        if self.journal is not None and self.journal.path.exists():
            self.console.finish(self.journal.path)
        if self.lacking and not self.good:
            self.bad += self.lacking  # nothing was measured: no success
        if self.bad:
            write_error_file(self.bad[0])
        return 1 if self.bad else 0

    def task(self, composed: DictConfig) -> float | None:
        """Hydra's task function: one cell. Returns the aggregate rate in TFLOP/s, None for a cell without one."""
        self.world.watch.enter("compose")
        if self.journal is None:
            self._open_journal()
        try:
            config = to_config(composed)
            if config.run.resume is not None and self.past is None:
                raise ConfigError(resume.KEY, config.run.resume, "only the command line can name the run to go on with")
        except (ConfigError, OmegaConfBaseException) as error:
            self._keep(explain(error), raw_config(composed))
            return None
        if config.run.dry_run:
            show_plan(config, self.world.size)
            return None
        if (standing := self._standing(cell_id(config, self.world.size))) is not None:
            return self._take(standing, config.run.stop_on_failure)
        return self._measure(config)

    def _past(self) -> resume.Past | None:
        """What this run goes on with: of its own launch where torchrun restarted it, else what run.resume names."""
        folder = resumed_folder(self.arguments)
        past = resume.taken_over(self.world.launch) or (None if folder is None else resume.past_of(folder))
        if past is not None and (note := past.note()):
            self.console.note(note)
        return past

    def _open_journal(self) -> None:
        folder = self.past.folder if self.past else results_folder()
        self.journal = Journal(folder)
        resume.hand_on(self.world.launch, folder)
        self.world.watch.how_to_go_on = resume.command(self.world.launch, folder)

    def _standing(self, cell: str) -> dict[str, Any] | None:
        return None if self.past is None else self.past.standing(cell)

    def _take(self, standing: dict[str, Any], stop_on_failure: bool) -> float | None:
        """A cell that has its record: shown, not measured."""
        self.console.begin(None, job_label(self.arguments))
        self.console.show_standing(standing)
        if standing["status"] == "ok":
            self.good += 1
            self.bad += bad_ranks(standing)
            rate: float = standing["result"]["tflops"]
            return rate
        self.bad.append(standing["reason"])
        self.stopped = self.stopped or stop_on_failure
        return None

    def _measure(self, config: Config) -> float | None:
        assert self.journal is not None
        journal = self.journal
        if self.stopped:
            self.console.begin(config, job_label(self.arguments))
            skipped = Cell(self.world, config, self.console.tell).record("skipped", _SKIPPED)
            self._append(skipped)
            self.console.show(skipped)
            return None
        self.console.begin(config, job_label(self.arguments) if self.sweeping else "")
        self.world.broadcast_json({"cell": as_dict(config)})
        self.in_cell = True
        cell = Cell(self.world, config, self.console.tell, journal.path.parent)
        self.world.watch.on_end = lambda reason, status: journal.append(cell.finished or cell.record(status, reason))
        record = cell.outcome()
        self.in_cell = False
        if cell.refused and not self.sweeping:
            self.world.watch.on_end = None
            self.refused = record["reason"]  # raised after Hydra, which would print its own lines before it
            return None
        # If the run ends while the line is written: twice is harmless, "skipped" after it would hide it.
        self.world.watch.on_end = lambda reason, status: journal.append(record)
        self._append(record)
        self.world.watch.on_end = None
        self.console.show(record)
        if record["status"] == "ok":
            self.good += 1
            self.bad += bad_ranks(record)
        elif record["status"] == "skipped":
            self.lacking.append(record["reason"])
        else:
            self.bad.append(record["reason"])
            self.stopped = config.run.stop_on_failure
        rate: float | None = record["result"]["tflops"] if record["status"] == "ok" else None
        return rate

    def _append(self, record: dict[str, Any]) -> None:
        """Put a record on disk, or end the run: what is measured after a lost record would be lost too."""
        assert self.journal is not None
        try:
            self.journal.append(record)
        except OSError as error:
            self.world.watch.on_end = None
            self.world.watch.end(f"cannot write {self.journal.path}: {error.strerror}", "failed")

    def _keep(self, reason: str, raw: dict[str, Any]) -> None:
        """A cell that composes but is impossible: a failed record, and the sweep goes on unless it stops on failure."""
        assert self.journal is not None
        if (standing := self._standing(identity(raw, self.world.size))) is not None:
            self._take(standing, raw["run"]["stop_on_failure"] is True)
            return
        cell = Cell(self.world, Config(), self.console.tell)
        told = ("skipped", _SKIPPED) if self.stopped else ("failed", reason)
        autos = [key for key in ("path", "device", "backend") if raw.get(key) == "auto"]
        record = cell.record(*told) | {"config": raw, "autos": autos, "cell": identity(raw, self.world.size)}
        self.console.begin(None, job_label(self.arguments))
        self._append(record)
        self.console.show(record)
        if self.stopped:
            return
        self.bad.append(reason)
        self.stopped = raw["run"]["stop_on_failure"] is True

    def _dry_sweep(self) -> int:
        folder = tempfile.mkdtemp(prefix="distbench-plan-")
        try:
            run_hydra(self.task, [*self.arguments, f"hydra.sweep.dir={folder}"])
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return 0
