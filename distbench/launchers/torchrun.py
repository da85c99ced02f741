"""hydra/launcher=torchrun: a fresh torchrun for each cell, or several of each."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from distbench.launchers.sweep import Job, Sweep

_PATIENCE_S = 30.0
"""How long torchrun may take to end: it gives a rank that does not answer as long itself."""
_PR_SET_PDEATHSIG = 1


class Torchrun(Launcher):
    """The keys are those of conf/hydra/launcher/torchrun.yaml."""

    def __init__(
        self, nproc_per_node: int, nnodes: int, repeats: int, extra: Sequence[str], prefix: Sequence[str]
    ) -> None:
        self.counts = {"nproc_per_node": nproc_per_node, "nnodes": nnodes, "repeats": repeats}
        self.extra, self.prefix = list(extra), list(prefix)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Hydra's call: the cells one after the other, each by launches of its own."""
        from distbench.config import ConfigError
        from distbench.launchers import sweep

        assert sweep.current is not None
        for key, value in self.counts.items():
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"hydra.launcher.{key}", value, "a whole number, 1 or more")
        setup_globals()
        led = sweep.current
        led.open(Path(str(self.config.hydra.sweep.dir)))
        led.launcher, led.world_size = "torchrun", self.counts["nproc_per_node"] * self.counts["nnodes"]
        return [self._cell(led, initial_job_idx + at, list(words)) for at, words in enumerate(job_overrides)]

    def _cell(self, led: Sweep, number: int, overrides: list[str]) -> JobReturn:
        job = led.job(self, number, overrides, led.world_size)
        repeats = range(self.counts["repeats"])
        if job.refusal is not None:
            led.fail(job, job.refusal)
            return led.outcome(job)
        for repeat in repeats:
            marked = repeat if len(repeats) > 1 else None
            if not led.stands(job, marked):
                self._start(led, job, marked)
        return led.outcome(job, repeats)

    def _start(self, led: Sweep, job: Job, repeat: int | None) -> None:
        from distbench.resume import quoted

        assert led.folder is not None
        folder = led.folder / (str(job.number) if repeat is None else f"{job.number}-{repeat}")
        folder.mkdir(exist_ok=True)
        counts = [f"--{key}={self.counts[key]}" for key in ("nproc_per_node", "nnodes")]
        torchrun = [*self.prefix, sys.executable, "-m", "torch.distributed.run", *counts, *self.extra]
        words = [*torchrun, "-m", "distbench", *job.overrides, f"hydra.run.dir={quoted(str(folder))}"]
        log = folder / "launch.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, preexec_fn=_end_with_parent
            )
            try:
                status = process.wait()
            except BaseException as error:
                _end(process, error)
                if (folder / "results.jsonl").exists():  # what was measured of it, or that it was interrupted
                    led.gather(job, folder, str(error), repeat)
                raise
        led.gather(job, folder, _reason(status, log), repeat)


def _end(process: subprocess.Popen[bytes], error: BaseException) -> None:
    """End a launch that is under way. A terminal's Ctrl-C has reached it already: twice would cut its end short."""
    number: Any = getattr(error, "number", signal.SIGTERM)
    waits = [3.0, _PATIENCE_S] if number == signal.SIGINT else [0.0, _PATIENCE_S]
    for patience_s, ask in zip(waits, (process.terminate, process.kill), strict=True):
        try:
            process.wait(patience_s)
            return
        except subprocess.TimeoutExpired:
            ask()
    process.wait()


def _reason(status: int, log: Path) -> str:
    """Why a launch left no record, from its status and its last words."""
    lines = log.read_text(errors="replace").splitlines()
    own = [line.removeprefix("distbench: ") for line in lines if line.startswith("distbench: ")]
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return (
        f"the launch {how} and left no record{': ' + own[-1] if own else ''} (its output: {log.parent.name}/{log.name})"
    )


def _end_with_parent() -> None:
    """In the child: the leading process's SIGKILL must not leave a torchrun behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
