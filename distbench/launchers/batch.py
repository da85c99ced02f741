"""hydra/launcher=submitit_local and submitit_slurm: each cell is a batch job whose tasks form one world.

hydra-submitit-launcher does the submitting. This adds what a sweep here promises: parts merged as jobs end, and a record
for a job that left none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn
from omegaconf import DictConfig, OmegaConf

from distbench.config import ConfigError

if TYPE_CHECKING:
    from distbench.launchers.sweep import Job, Sweep

_LOOK_S = 0.5
_QUEUE_LOOK_S = 10.0
_GRACE_S = 15.0
"""How long jobs that were cancelled have to write their records."""


class Rank:
    """What submitit calls in each task of a batch job: one rank of its world. Travels there as a pickle."""

    def __init__(self, arguments: list[str], timeouts: list[float]) -> None:
        self.arguments, self.timeouts = arguments, timeouts

    def __call__(self, composed: DictConfig) -> float | None:
        """Join, then lead or follow through the one cell; rank 0's record is the job's part."""
        from distbench.alive import Watch
        from distbench.cell import follow
        from distbench.launch import detect
        from distbench.lead import Leader
        from distbench.member import first_line
        from distbench.record import Journal
        from distbench.world import World

        sys.argv[1:] = self.arguments  # the record tells what a person typed
        launch = detect(os.environ)
        watch = Watch(launch, *self.timeouts)
        watch.start()
        world = World(launch, watch)
        try:
            world.join()
        except (ValueError, RuntimeError, OSError) as error:
            watch.end(f"the ranks could not join: {first_line(error)}", "failed")
        world.launch = replace(launch, launcher="submitit")
        rate = None
        if world.is_root:
            leader = Leader(world, self.arguments)
            leader.journal = Journal(Path(HydraConfig.get().runtime.output_dir))
            try:
                rate = leader.task(composed)
            except BaseException as error:  # the others are inside the cell: no message reaches them any more
                watch.end(f"rank 0 left a cell unfinished: {type(error).__name__}: {error}", "failed")
            world.broadcast_json({"cell": None})
        else:
            follow(world)
        world.leave()
        return rate


class Batch:
    """Before one of hydra-submitit-launcher's classes: its `launch`, but for waiting and merging."""

    _EXECUTOR: str
    params: dict[str, Any]
    config: DictConfig

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Hydra's call: submit the cells that have no record yet, and merge their parts as they end."""
        from distbench.launchers import sweep

        led = sweep.current
        assert led is not None
        folder = led.open(Path(str(self.config.hydra.sweep.dir)))
        led.launcher, led.world_size = "submitit", self.params["nodes"] * self.params["tasks_per_node"]
        cells = [
            led.job(self, initial_job_idx + at, list(words), led.world_size) for at, words in enumerate(job_overrides)
        ]
        waiting = [cell for cell in cells if not led.stands(cell)]
        # On this host jobs that run at once would slow each other down: one after the other.
        for group in [[cell] for cell in waiting] if self._EXECUTOR == "local" else [waiting]:
            if group:
                self._run(led, folder, group)
        return [led.outcome(cell) for cell in cells]

    def _run(self, led: Sweep, folder: Path, group: list[Job]) -> None:
        pending = dict(zip([cell.number for cell in group], self._submit(group), strict=True))
        by_number = {cell.number: cell for cell in group}
        try:
            self._await(led, folder, by_number, pending)
        except BaseException:
            for task in pending.values():
                with suppress(Exception):  # one that ended meanwhile
                    task.cancel()
            deadline = time.monotonic() + _GRACE_S
            while pending and time.monotonic() < deadline:
                self._take(led, folder, by_number, pending, [n for n in pending if _part(folder, n).exists()])
                time.sleep(_LOOK_S)
            raise

    def _await(self, led: Sweep, folder: Path, cells: dict[int, Job], pending: dict[int, Any]) -> None:
        looked = time.monotonic()
        while pending:
            ended = [number for number, task in pending.items() if task.done()]
            if time.monotonic() - looked > _QUEUE_LOOK_S:
                looked = time.monotonic()
                ended = ended or [number for number, task in pending.items() if self._left_the_queue(task)]
            self._take(led, folder, cells, pending, ended)
            if pending:
                time.sleep(_LOOK_S)

    def _take(
        self, led: Sweep, folder: Path, cells: dict[int, Job], pending: dict[int, Any], ended: Sequence[int]
    ) -> None:
        for number in ended:
            task = pending.pop(number)
            missing = f"batch job {task.job_id} ended without a record; its output: {task.paths.stderr}"
            led.gather(cells[number], _part(folder, number).parent, missing)

    def _left_the_queue(self, task: Any) -> bool:
        """True if Slurm knows the job no more: where accounting is off, submitit itself never learns of its end."""
        if self._EXECUTOR != "slurm" or shutil.which("squeue") is None:
            return False
        told = subprocess.run(["squeue", "-h", "-j", str(task.job_id)], capture_output=True, text=True)
        return not told.stdout.strip() and (told.returncode == 0 or "Invalid job id" in told.stderr)

    def _submit(self, cells: Sequence[Job]) -> list[Any]:
        """As BaseSubmititLauncher.launch does it; returns submitit's jobs."""
        try:
            executor = self._executor()
        except (ValueError, RuntimeError, NameError) as error:  # a key that this queue has not, no sbatch on this host
            reason = " ".join(str(error).split())
            raise ConfigError("hydra/launcher", f"submitit_{self._EXECUTOR}", reason) from None
        state = Singleton.get_state()
        calls = [(cell.overrides, "hydra.sweep.dir", cell.number, f"job_{cell.number}", state) for cell in cells]
        return list(executor.map_array(cast(Any, self), *zip(*calls, strict=True)))

    def _executor(self) -> Any:
        import submitit
        from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

        own = {"max_num_timeout"}
        first = {f"{self._EXECUTOR}_{key}": value for key, value in self.params.items() if key in own}
        executor = submitit.AutoExecutor(folder=self.params["submitit_folder"], cluster=self._EXECUTOR, **first)
        common = set(OmegaConf.structured(BaseQueueConf).keys())
        executor.update_parameters(
            **{
                key if key in common else f"{self._EXECUTOR}_{key}": value
                for key, value in self.params.items()
                if key not in own | {"submitit_folder"}
            }
        )
        return executor


def _part(folder: Path, number: int) -> Path:
    return folder / str(number) / "results.jsonl"
