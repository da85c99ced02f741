"""Sweeps whose leading process measures nothing itself: it starts each cell elsewhere and gathers the records."""

from __future__ import annotations

from distbench.launch import Launch, LaunchError

OWN = "torchrun"
_KEY = "hydra/launcher"


def launcher_asked_for(arguments: list[str], launch: Launch) -> str | None:
    """The hydra/launcher of this package that the command line names, if any.

    Raises LaunchError where this process is already a rank of a launcher's world.
    """
    named = [word.partition("=")[2] for word in arguments if word.partition("=")[0].lstrip("+") == _KEY]
    if not named or named[-1] != OWN:
        return None
    if launch.launcher != "single":
        raise LaunchError(
            f"{_KEY}={OWN}: starts the ranks itself; start it with python -m distbench, not {launch.launcher}"
        )
    if not {"-m", "--multirun"} & set(arguments):
        raise LaunchError(f"{_KEY}={OWN}: starts the cells of a sweep; add -m (--multirun)")
    return OWN
