"""hydra/launcher=torchrun, where Hydra looks for plugins: see distbench/launchers/by_torchrun.py."""

from __future__ import annotations

from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher


class TorchrunLauncher(BasicLauncher):
    """Hydra's own launcher, which calls the task for one cell after the other; the task is what starts torchrun."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
