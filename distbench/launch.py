"""Which ranks are we? One ordered table of launchers, read from the environment once.

Order: torchrun first, because the variables it sets for its workers are newer than those of a scheduler around it;
then plain RANK/WORLD_SIZE (Kubernetes and hand-written scripts); then the process managers that start one process per
rank, mpirun before srun because mpirun inside a Slurm job still carries Slurm's variables.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass


class LaunchError(ValueError):
    """The environment of a launcher that distbench cannot make a world of."""


@dataclass(frozen=True)
class Launcher:
    """The names under which a launcher tells a process its place."""

    name: str
    marker: str
    """Set by this launcher alone: how it is recognised."""
    rank: str
    size: str
    local_rank: str
    local_size: str
    job: tuple[str, ...] = ()
    """Variables that are equal in all ranks of this launch and differ between launches."""


LAUNCHERS = (
    Launcher("torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    Launcher(  # a task of hydra/launcher=submitit_local
        "submitit",
        "SUBMITIT_LOCAL_GLOBALID",
        "SUBMITIT_LOCAL_GLOBALID",
        "SUBMITIT_LOCAL_NTASKS",
        "SUBMITIT_LOCAL_LOCALID",
        "SUBMITIT_LOCAL_NTASKS",
        ("SUBMITIT_LOCAL_JOB_ID",),
    ),
    Launcher("env", "RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    Launcher("env", "WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    Launcher(
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE", "PMIX_SERVER_URI2", "PMIX_SERVER_URI21", "OMPI_MCA_orte_hnp_uri"),
    ),
    # PMI_FD, not PMI_RANK: Slurm sets PMI_RANK too. PMI_FD differs per rank, so the job is told by the parent process.
    Launcher("mpich", "PMI_FD", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Launcher(
        "slurm",
        "SLURM_STEP_ID",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
)


@dataclass(frozen=True)
class Launch:
    """A process's place in the run, as its launcher tells it."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str | None = None
    """Where rank 0's store is; None: the ranks of this host agree on it among themselves."""
    port: int | None = None
    store_is_served: bool = False
    """The launcher serves the store itself (torchrun's agent)."""
    restarts: int = 0
    job: str = ""
    """Tells this launch from others on the host."""


def detect(environment: Mapping[str, str]) -> Launch:
    """The launch that `environment` describes; a world of one where no launcher shows.

    Raises LaunchError, naming what is missing or wrong, where a launcher shows but its values are incomplete.
    """
    for launcher in LAUNCHERS:
        if launcher.marker in environment:
            return _read(launcher, environment)
    return Launch("single", 0, 1, 0, 1)


def _read(launcher: Launcher, environment: Mapping[str, str]) -> Launch:
    rank = _number(launcher, environment, launcher.rank)
    size = _number(launcher, environment, launcher.size)
    if not 0 <= rank < size:
        raise LaunchError(f"{launcher.rank}={rank}: must be from 0 to {launcher.size} - 1, which is {size - 1}")
    if launcher.local_rank not in environment and launcher.name == "env":
        local_rank, local_size = rank, size  # plain variables: one host unless they say otherwise
    else:
        local_rank = _number(launcher, environment, launcher.local_rank)
        local_size = _number(launcher, environment, launcher.local_size)
    if not 0 <= local_rank < local_size:
        raise LaunchError(
            f"{launcher.local_rank}={local_rank}: must be from 0 to {launcher.local_size} - 1, which is {local_size - 1}"
        )
    address = environment.get("MASTER_ADDR")
    port = _number(launcher, environment, "MASTER_PORT") if "MASTER_PORT" in environment else None
    if (address is None) != (port is None):
        missing = "MASTER_ADDR" if address is None else "MASTER_PORT"
        raise LaunchError(f"{missing} is not set: set MASTER_ADDR and MASTER_PORT, or neither on a single host")
    if address is None and size > local_size:
        raise LaunchError(
            f"MASTER_ADDR is not set: {size} ranks on several hosts ({local_size} here) need it and MASTER_PORT"
        )
    if address is None and launcher.name == "env" and size > 1:
        raise LaunchError("MASTER_ADDR and MASTER_PORT are not set: RANK and WORLD_SIZE need them too")
    return Launch(
        launcher=launcher.name,
        rank=rank,
        world_size=size,
        local_rank=local_rank,
        local_world_size=local_size,
        address=address,
        port=port,
        store_is_served=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        restarts=_number(launcher, {"TORCHELASTIC_RESTART_COUNT": "0", **environment}, "TORCHELASTIC_RESTART_COUNT"),
        job=_job(launcher, environment),
    )


def _number(launcher: Launcher, environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name)
    if text is None:
        raise LaunchError(f"{name} is not set: {launcher.name} ({launcher.marker} is set) needs it")
    digits = text.split("(")[0].split(",")[0]  # Slurm writes tasks per node as 4(x2),3
    if not digits.isdecimal():
        raise LaunchError(f"{name}={text}: must be a whole number")
    return int(digits)


def _job(launcher: Launcher, environment: Mapping[str, str]) -> str:
    named = [environment[name] for name in launcher.job if name in environment]
    parts = named or [f"parent {os.getppid()}"]
    return hashlib.sha256("\n".join([launcher.name, *parts]).encode()).hexdigest()[:16]
