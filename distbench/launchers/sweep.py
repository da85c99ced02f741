"""The leading process of a sweep whose cells are launches of their own: parts in, one results.jsonl out."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import signal
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from distbench import __version__, record, resume
from distbench.alive import ending_signals
from distbench.compose import (
    new_folder,
    raw_config,
    refuse_new_keys,
    resumed_folder,
    run_hydra,
    to_config,
)
from distbench.config import ConfigError, as_dict, cell_id, identity
from distbench.explain import explain
from distbench.health.verdicts import bad_ranks
from distbench.show.console import Console
from distbench.stats import median


class Interrupted(Exception):
    """A signal asks this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = signal.Signals(number)


@dataclass
class Job:
    """One cell of the sweep, as composed in this process."""

    number: int
    overrides: list[str]
    values: dict[str, Any]
    cell: str
    refusal: str | None
    """Why it cannot run at all."""
    composed: DictConfig
    hydra: DictConfig


class Sweep:
    """What the leading process knows; its launcher finds it in `current`."""

    def __init__(self, arguments: list[str], past: Path | None) -> None:
        self.arguments, self.past = arguments, past
        self.console = Console(1, True, "single")
        self.folder: Path | None = None
        self.bad: list[str] = []
        self.standing: dict[tuple[str, int], dict[str, Any]] = {}

    def open(self, folder: Path) -> Path:
        """The sweep's folder, once Hydra has composed its name; leftovers of a leading process that was killed too."""
        if self.folder is None:
            self.folder = folder.absolute()
            self.folder.mkdir(parents=True, exist_ok=True)
            self.journal = record.Journal(self.folder)
            if self.past is not None:
                for part in sorted(self.folder.glob(f"*/{record.RESULTS}")):
                    self._move(part)
                if note := resume.past_of(self.folder).note():
                    self.console.note(note)
                told = record.read(self.journal.path) if self.journal.path.exists() else []
                self.standing = {(item["cell"], item.get("repeat") or 0): item for item in told}
        return self.folder

    def job(self, launcher: Any, number: int, overrides: list[str], world_size: int) -> Job:
        """Compose a cell, as Hydra's own launchers do."""
        composed = launcher.hydra_context.config_loader.load_sweep_config(launcher.config, list(overrides))
        with read_write(composed), open_dict(composed):
            composed.hydra.job.num, composed.hydra.job.id = number, str(number)
            hydra = OmegaConf.create({"hydra": composed.hydra})
            del composed["hydra"]
        try:
            config = to_config(composed)
            values, refusal, cell = as_dict(config), None, cell_id(config, world_size)
        except (ConfigError, OmegaConfBaseException) as error:
            values, refusal = raw_config(composed), explain(error)
            cell = identity(values, world_size)
        return Job(number, list(overrides), values, cell, refusal, composed, hydra)

    def stands(self, job: Job, repeat: int | None = None) -> bool:
        """True for a cell (a launch of it) that an earlier run measured: shown, not run."""
        told = self.standing.get((job.cell, repeat or 0))
        if told is None or told["status"] != "ok":
            return False
        self.console.begin(None, self._label(job, repeat))
        self.console.show_standing(told)
        return True

    def gather(self, job: Job, part: Path, missing: str, repeat: int | None = None) -> None:
        """Move a launch's record into the sweep's results.jsonl; one that left none has failed, for the reason `missing`."""
        told = self._move(part / record.RESULTS, repeat)
        if not any(item["cell"] == job.cell for item in told):
            self.fail(job, missing, repeat=repeat)
            return
        for item in told:
            self._show(job, item, repeat)

    def fail(self, job: Job, reason: str, status: str = "failed", repeat: int | None = None) -> None:
        """A record for a cell that no rank could make one for."""
        told: dict[str, Any] = {
            "schema": record.SCHEMA,
            "cell": job.cell,
            "time": record.now(),
            "status": status,
            "reason": reason,
            "config": job.values,
            "autos": [key for key in ("path", "device", "backend") if job.values.get(key) == "auto"],
            "world": {"size": self.world_size, "launcher": self.launcher, "backend": None, "ranks": [], "notes": []},
            **dict.fromkeys(("work", "samples", "result", "verification")),
            "environment": _environment() | {"command": self._command(self.arguments)},
        } | ({} if repeat is None else {"repeat": repeat})
        self.journal.append(told)
        self._show(job, told, repeat)

    launcher, world_size = "single", 1

    def outcome(self, job: Job, repeats: range | None = None) -> JobReturn:
        """What the sweeper gets: the median rate of the cell's launches, None where any of them has none."""
        told = [self.standing.get((job.cell, repeat)) for repeat in repeats or (0,)]
        rates = [item["result"]["tflops"] for item in told if item is not None and item["status"] == "ok"]
        rate = median(rates) if len(rates) == len(told) else None
        return JobReturn(
            overrides=job.overrides,
            cfg=job.composed,
            hydra_cfg=job.hydra,
            _return_value=rate,
            status=JobStatus.COMPLETED,
        )

    def how_to_go_on(self) -> str | None:
        """The command that goes on with this sweep; None before it has a folder."""
        if self.folder is None:
            return None
        here = Path.cwd()
        shown = self.folder.relative_to(here) if self.folder.is_relative_to(here) else self.folder
        return self._command([*self.arguments, f"{resume.KEY}={resume.quoted(str(shown))}"])

    def _command(self, arguments: list[str]) -> str:
        return shlex.join(["python", "-m", "distbench", *arguments])

    def _label(self, job: Job, repeat: int | None) -> str:
        words = [word for word in job.overrides if word not in self.arguments] or job.overrides
        return " ".join([*words, *([] if repeat is None else [f"launch {repeat}"])])

    def _show(self, job: Job, told: dict[str, Any], repeat: int | None) -> None:
        self.standing[told["cell"], told.get("repeat") or 0] = told
        self.console.begin(None, self._label(job, repeat))
        self.console.show(told)
        if told["status"] != "ok":
            self.bad.append(told["reason"])
        else:
            self.bad += bad_ranks(told)

    def _move(self, part: Path, repeat: int | None = None) -> list[dict[str, Any]]:
        """Append what a part holds, then remove it: killed in between, a line is there twice, never not at all."""
        told = record.read(part) if part.exists() else []
        for item in told:
            if repeat is not None:
                item["repeat"] = repeat
            self.journal.append(item)
            beside = (item.get("samples") or {}).get("file")
            if beside is not None:
                shutil.move(part.parent / beside, self.journal.path.parent / beside)
        part.unlink(missing_ok=True)
        return told


current: Sweep | None = None


def dispatch(name: str, arguments: list[str], task: Any) -> int:
    """Lead a sweep by hydra/launcher=`name`; returns the exit status. Raises Refused for what cannot be composed."""
    global current
    past = resumed_folder(arguments)
    refuse_new_keys(arguments)
    typed = [word for word in arguments if not word.lstrip("+").startswith(f"{resume.KEY}=")]
    sweep = current = Sweep(typed, past)
    words = list(typed)
    if past is not None or not any(word.startswith("hydra.sweep.dir=") for word in words):
        words.append(f"hydra.sweep.dir={resume.quoted(str(past or Path(new_folder('multirun')).absolute()))}")
    if name in _OURS:  # Hydra's plugin of that name, with the parts merged and a lost job told as a record
        words.append(f"hydra.launcher._target_=hydra_plugins.distbench_launchers.{_OURS[name]}")
    for number in ending_signals():
        signal.signal(number, _interrupt)
    try:
        run_hydra(task, words)
    except Interrupted as interrupted:
        print(f"distbench: {interrupted}", file=sys.stderr)
        if command := sweep.how_to_go_on():
            print(f"what was measured is on disk; to go on:\n  {command}", file=sys.stderr)
        return 1
    finally:
        current = None
        sweep.console.close()
    if sweep.folder is not None and sweep.journal.path.exists():
        sweep.console.finish(sweep.journal.path)
    return 1 if sweep.bad else 0


_OURS = {"submitit_local": "LocalLauncher", "submitit_slurm": "SlurmLauncher"}


def _interrupt(number: int, frame: FrameType | None) -> None:
    for again in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(again, signal.SIG_IGN)  # the end is under way
    raise Interrupted(number)


def _environment() -> dict[str, Any]:
    """The record's environment as far as it is known without importing torch."""
    return {
        "distbench": __version__,
        **{name: _version(name) for name in ("torch", "numpy")},
        "python": platform.python_version(),
        "host": platform.node(),
        "cpu": record.cpu_name(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
