"""Sweeps whose cells are launches of their own: this process leads them, forms no world and needs no torch.

`chosen` tells from the command line whether that is asked for; sweep.dispatch then runs it.
"""

from __future__ import annotations

from importlib.util import find_spec

from distbench.launch import Launch

_KEY = "hydra/launcher"


def chosen(arguments: list[str]) -> str | None:
    """The hydra/launcher=… of a command line; None where it is Hydra's own."""
    values = [word.partition("=")[2] for word in arguments if word.lstrip("+").partition("=")[0] == _KEY]
    return values[-1] if values and values[-1] != "basic" else None


def misused(name: str, launch: Launch, arguments: list[str]) -> str | None:
    """Why this launcher cannot be used here, as one line; None where it can."""
    if launch.world_size > 1:
        return f"{_KEY}={name}: it starts the ranks itself; start it alone: python -m distbench -m {_KEY}={name} …"
    if not {"-m", "--multirun"} & set(arguments):
        return f"{_KEY}={name}: it starts the cells of a sweep, of one cell too; add -m"
    if any(word.lstrip("+").lower() == "run.dry_run=true" for word in arguments):
        return f"run.dry_run=true: starts nothing, so {_KEY}={name} has nothing to do; leave one of them out"
    if name.startswith("submitit") and find_spec("submitit") is None:
        return f"{_KEY}={name}: needs hydra-submitit-launcher; install it by: pip install 'distbench[submitit]'"
    return None
