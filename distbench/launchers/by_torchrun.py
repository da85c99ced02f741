"""hydra/launcher=torchrun: a fresh torchrun for each cell, as often as it is to be repeated.

The leading process forms no world and imports no torch. Each launch runs in a folder of its own below the sweep's, and
its record is taken over into the sweep's results.jsonl as soon as the launch has ended.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from distbench import record, resume
from distbench.alive import Watch
from distbench.compose import (
    is_multirun,
    job_label,
    raw_config,
    refuse_new_keys,
    results_folder,
    resumed_folder,
    run_hydra,
    to_config,
)
from distbench.config import ConfigError, as_dict, identity
from distbench.explain import explain
from distbench.launch import Launch
from distbench.show.console import Console
from distbench.stats import median

_END_S = 8.0  # for a torchrun that was told to end
_SKIPPED = "an earlier cell failed (run.stop_on_failure)"


@dataclass(frozen=True)
class Settings:
    """conf/hydra/launcher/torchrun.yaml."""

    nproc_per_node: int
    nnodes: int
    repeats: int
    extra: list[str]
    prefix: list[str]

    def __post_init__(self) -> None:
        for name, most in (("nproc_per_node", 4096), ("nnodes", 65536), ("repeats", 1000)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise ConfigError(f"hydra.launcher.{name}", value, f"a whole number from 1 to {most}")
        for name in ("extra", "prefix"):
            if not isinstance(getattr(self, name), list):
                raise ConfigError(f"hydra.launcher.{name}", getattr(self, name), "a list of words")

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    def command(self, overrides: list[str], folder: Path) -> list[str]:
        """The words that launch one cell, whose record will lie in `folder`."""
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        size = [f"--nnodes={self.nnodes}", f"--nproc_per_node={self.nproc_per_node}"]
        run_dir = f"hydra.run.dir={resume.quoted(str(folder))}"
        words = [*self.prefix, *torchrun, *size, *self.extra, "-m", "distbench", *overrides, run_dir]
        return [str(word) for word in words]


def lead(launch: Launch, watch: Watch, arguments: list[str]) -> int:
    """Run the sweep; returns the exit status. Raises Refused for what cannot be composed."""
    assert is_multirun(arguments)
    refuse_new_keys(arguments)
    folder = resumed_folder(arguments)
    leader = _Leader(launch, watch, arguments, None if folder is None else resume.past_of(folder))
    try:
        run_hydra(leader.task, arguments, folder)
    finally:
        leader.console.close()
    if leader.journal is not None and leader.journal.path.exists():
        leader.console.finish(leader.journal.path)
    return 1 if leader.bad else 0


class _Leader:
    """The leading process over a sweep."""

    def __init__(self, launch: Launch, watch: Watch, arguments: list[str], past: resume.Past | None) -> None:
        self.launch, self.watch, self.arguments, self.past = launch, watch, arguments, past
        self.console = Console(1, True, launch.launcher)
        self.journal: record.Journal | None = None
        self.bad: list[str] = []
        self.stopped = False
        if past is not None and (note := past.note()):
            self.console.note(note)

    def task(self, composed: DictConfig) -> float | None:
        """Hydra's task function: one cell, as many launches as asked for. Returns the median of their rates, TFLOP/s."""
        if self.journal is None:
            folder = self.past.folder if self.past else results_folder()
            self.journal = record.Journal(folder)
            self.watch.how_to_go_on = resume.command(self.launch, folder)
        settings = Settings(**_own(OmegaConf.to_container(HydraConfig.get().launcher, resolve=True)))
        told = [self._one(composed, settings, repeat) for repeat in range(settings.repeats)]
        rates = [item["result"]["tflops"] for item in told if item["status"] == "ok"]
        return median(rates) if len(rates) == len(told) else None

    def _one(self, composed: DictConfig, settings: Settings, repeat: int) -> dict[str, Any]:
        assert self.journal is not None
        values, reason = raw_config(composed), None
        try:
            values = as_dict(to_config(composed))
        except (ConfigError, OmegaConfBaseException) as error:
            reason = explain(error)
        cell = identity(values, settings.world_size)
        self.console.begin(None, f"{job_label(self.arguments)}{f' #{repeat}' if settings.repeats > 1 else ''}")
        standing = None if self.past is None else self.past.standing(cell, repeat)
        if standing is not None:
            self.console.show_standing(standing)
            return standing
        blank = record.of_no_run(cell, values, settings.world_size, "torchrun", record.command(self.launch))
        blank["repeat"] = repeat
        if self.stopped:
            told = blank | {"status": "skipped", "reason": _SKIPPED}
        elif reason is not None:
            told = blank | {"status": "failed", "reason": reason}
        else:
            told = self._launched(settings, blank)
        self.journal.append(told)
        self.watch.on_end = None
        self.console.show(told)
        if told["status"] != "ok" and not self.stopped:
            self.bad.append(str(told["reason"]))
            self.stopped = values["run"]["stop_on_failure"] is True
        return told

    def _launched(self, settings: Settings, blank: dict[str, Any]) -> dict[str, Any]:
        """Start torchrun, wait, and take the record that it left; a failed one where it left none."""
        assert self.journal is not None
        journal, repeat = self.journal, blank["repeat"]
        folder = Path(HydraConfig.get().runtime.output_dir) / f"launch-{repeat}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / record.RESULTS).unlink(missing_ok=True)  # of an attempt that this one replaces
        overrides = [word for word in HydraConfig.get().overrides.task if not word.lstrip("+").startswith(resume.KEY)]
        with (folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                settings.command(list(overrides), folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C comes to this process, which passes it on once
                preexec_fn=_unblock_signals,
            )

        ending = threading.Event()

        def end(reason: str, status: str) -> None:
            ending.set()
            _end(process)
            journal.append(
                _left_in(folder, repeat, journal.path.parent) or blank | {"status": status, "reason": reason}
            )

        self.watch.on_end = end
        status = process.wait()
        if ending.is_set():
            threading.Event().wait()  # the watching thread keeps the record, and ends this process
        return _left_in(folder, repeat, journal.path.parent) or blank | {
            "status": "failed",
            "reason": _why(status, folder / "output.txt"),
        }


def _own(settings: Any) -> dict[str, Any]:
    names = [item.name for item in fields(Settings)]
    for key, value in settings.items():
        if key not in ("_target_", *names):
            raise ConfigError(f"hydra.launcher.{key}", value, f"no such key; the keys here are {', '.join(names)}")
    return {str(key): value for key, value in settings.items() if key != "_target_"}


def _unblock_signals() -> None:
    """This process has them blocked, for its watching thread; torchrun is to hear them."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _left_in(folder: Path, repeat: int, sweep: Path) -> dict[str, Any] | None:
    """The launch's record as the sweep's results.jsonl is to have it."""
    path = folder / record.RESULTS
    left = record.read(path) if path.exists() else []
    if not left:
        return None
    told = left[-1] | {"repeat": repeat}
    if told["samples"] is not None and "file" in told["samples"]:  # lies beside the launch's own results
        told["samples"]["file"] = str((folder / told["samples"]["file"]).relative_to(sweep))
    return told


def _why(status: int, output: Path) -> str:
    """One line for a launch that left no record: what distbench said last, else how torchrun ended."""
    lines = output.read_text(errors="replace").splitlines()
    said = [line.removeprefix("distbench: ") for line in lines if line.startswith("distbench: ")]
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return f"torchrun {how} and left no record{f': {said[-1]}' if said else ''}; its output is in {output}"
