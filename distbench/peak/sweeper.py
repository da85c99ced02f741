"""hydra/sweeper=peak: Hydra's way to a search, whose cells are composed, measured, verified and recorded as any other's."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from distbench.show.peak import SUMMARY

if TYPE_CHECKING:
    from distbench.config import Config
    from distbench.peak.search import Found
    from distbench.peak.shapes import Shape

_ROOM = 0.4  # of the free memory, for A, B and C: verifying and the library need some too
_LARGEST = {"cpu": 2048, "cuda": 16384}
_SEARCHED = ("workload.name", "workload.m", "workload.n", "workload.k")


class Peak(Sweeper):
    """Every combination of the values that the command line sweeps (dtypes as a rule) is a search of its own.

    params: what is swept unless the command line says otherwise, as in Hydra's own sweeper.
    """

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params = dict(params or {})
        self.jobs = 0

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's call before `sweep`."""
        self.hydra_context = self.context = hydra_context
        self.config = self.composed = config
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[dict[str, Any]]:
        """Hydra's call: all searches, one after the other."""
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        folder = Path(str(self.composed.hydra.sweep.dir))
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.composed, folder / "multirun.yaml")
        parser = OverridesParser.create(config_loader=self.context.config_loader)
        words = [*(f"{key}={value}" for key, value in self.params.items()), *arguments]
        (combinations,) = BasicSweeper.split_arguments(parser.parse_overrides(words), None)
        told = []
        for common in combinations:
            told.append(self._search(common))
            (folder / SUMMARY).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        return told

    def _search(self, common: list[str]) -> dict[str, Any]:
        from distbench.compose import to_config
        from distbench.config import ConfigError, Device
        from distbench.peak.search import Search

        for key, _, value in (word.partition("=") for word in common):
            if key in (*_SEARCHED, "workload.batch"):
                raise ConfigError(key, value, "a search finds the sizes: leave it out (peak.largest bounds them)")
        master = self.context.config_loader.load_sweep_config(self.composed, common)
        composed = master.copy()
        OmegaConf.set_readonly(composed, False)
        OmegaConf.set_struct(composed, False)
        composed.pop("hydra", None)
        config = to_config(composed)
        machine = _Machine(config)
        largest = config.peak.largest or _LARGEST["cuda" if machine.device is Device.cuda else "cpu"]
        search = Search(
            lambda shape: self._measure(common, shape),
            machine.fits,
            config.peak.time_s,
            largest,
            machine.multiprocessors,
        )
        return _summary(str(config.workload.dtype), common, search.run())

    def _measure(self, common: list[str], shape: Shape) -> float | None:
        """One cell through the launcher: its aggregate rate in TFLOP/s."""
        sizes = zip(_SEARCHED, (shape.kind, *shape.sizes), strict=True)
        words = [*common, *(f"{key}={value}" for key, value in sizes)]
        (job,) = self.launcher.launch([words], initial_job_idx=self.jobs)
        self.jobs += 1
        rate: float | None = job.return_value
        return rate


class _Machine:
    """What a shape must fit into: the memory and the units of this process's device."""

    def __init__(self, config: Config) -> None:
        from distbench.compose import by_device
        from distbench.config import Device
        from distbench.launch import detect

        self.config = config
        on_gpu = by_device(config.device, config.engine, False, True)
        self.device = Device.cuda if on_gpu else Device.cpu
        self.multiprocessors: int | None = None
        sharing = detect(os.environ).local_world_size
        if on_gpu:
            import torch

            if torch.cuda.is_available():
                free, _ = torch.cuda.mem_get_info()
                self.multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
                sharing = -(-sharing // torch.cuda.device_count())
            else:  # a launch of its own may find one: what does not fit there is refused there
                free = 1 << 62
        else:
            from distbench.place import free_host_bytes

            free = free_host_bytes()
        self.room = _ROOM * free / sharing

    def fits(self, shape: Shape) -> bool:
        """Whether A, B and C have room and the dtype's units take these sizes."""
        from distbench.config import ConfigError
        from distbench.dtypes import FACTS
        from distbench.rules import check
        from distbench.supports import refuse_shapes

        w = self.config.workload
        if w.dtype not in FACTS:
            return True  # the cell says that it is unknown here
        w.batch, (w.m, w.n, w.k) = 1, shape.sizes
        facts = FACTS[w.dtype]
        bytes_needed = facts.itemsize * (w.m * w.k + w.k * w.n) + facts.c_itemsize * w.m * w.n
        try:
            check(self.config)
            refuse_shapes(self.config, 1, self.device)
        except ConfigError as error:
            return error.key == "workload.dtype"  # for the cell to say: its first shape tells the reason
        return bytes_needed <= self.room


def _summary(dtype: str, common: Sequence[str], found: Found) -> dict[str, Any]:
    best = found.best
    return {
        "dtype": dtype,
        "overrides": list(common),
        "best": None if best is None else {"m": best.m, "n": best.n, "k": best.k, "tflops": found.rates[best]},
        "shapes": len(found.rates),
        "stopped_by": found.stopped_by,
        "seconds": found.seconds,
    }
