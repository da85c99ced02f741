"""Where Hydra looks for plugins, and only here: what they do is in distbench.launchers and distbench.peak."""

from __future__ import annotations

from distbench.launchers import torchrun as _torchrun
from distbench.peak import sweeper as _peak


class TorchrunLauncher(_torchrun.Torchrun):
    """hydra/launcher=torchrun."""


class PeakSweeper(_peak.Peak):
    """hydra/sweeper=peak."""


try:
    from hydra_plugins.hydra_submitit_launcher import submitit_launcher as _theirs
except ImportError:  # an extra: distbench.launchers says so where it is asked for
    pass
else:
    from distbench.launchers import batch as _batch

    class LocalLauncher(_batch.Batch, _theirs.LocalLauncher):
        """hydra/launcher=submitit_local."""

    class SlurmLauncher(_batch.Batch, _theirs.SlurmLauncher):
        """hydra/launcher=submitit_slurm."""
