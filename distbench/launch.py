"""Which ranks are we? One ordered table of launchers, read from the environment once.

Order: torchrun first, because the variables it sets for its workers are newer than those of a scheduler around it;
then plain RANK/WORLD_SIZE (Kubernetes and hand-written scripts); then the process managers that start one process per
rank, mpirun before srun because mpirun inside a Slurm job still carries Slurm's variables.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from distbench import nodelist


class LaunchError(ValueError):
    """The environment of a launcher that distbench cannot make a world of."""


@dataclass(frozen=True)
class Launcher:
    """The names under which a launcher tells a process its place."""

    name: str
    markers: tuple[str, ...]
    """How it is recognised: one of these is enough, so that an incomplete set is seen as one."""
    names: tuple[str, str, str, str]
    """Of the rank, the world size, the rank on this host and the number of ranks on it."""
    job: tuple[str, ...] = ()
    """Variables that are equal in all ranks of this launch and differ between launches."""


_PLAIN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_OPENMPI = (
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)
_MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_SUBMITIT = (
    *("SUBMITIT_LOCAL_GLOBALID", "SUBMITIT_LOCAL_NTASKS"),
    *("SUBMITIT_LOCAL_LOCALID", "SUBMITIT_LOCAL_NTASKS"),
)
# The step's values, not the job's: a batch script has SLURM_PROCID=0 and the job's SLURM_NTASKS, and is one process.
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")

LAUNCHERS = (
    Launcher("torchrun", ("TORCHELASTIC_RUN_ID",), _PLAIN),
    Launcher("submitit", ("SUBMITIT_LOCAL_GLOBALID",), _SUBMITIT, ("SUBMITIT_LOCAL_JOB_ID",)),  # submitit_local's task
    Launcher("env", ("RANK", "WORLD_SIZE"), _PLAIN),
    Launcher("openmpi", _OPENMPI, _OPENMPI, ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri")),
    Launcher("mpich", ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"), _MPICH),
    Launcher("slurm", ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"), _SLURM, ("SLURM_JOB_ID", "SLURM_STEP_ID")),
    Launcher("mpich", ("PMI_FD",), _MPICH),  # after Slurm, whose --mpi=pmi2 sets it too
)
_UNKNOWN = ("PMIX_RANK", "PMI_RANK", "PALS_RANKID", "FLUX_TASK_RANK", "JSM_NAMESPACE_RANK", "MV2_COMM_WORLD_RANK")
"""Ranks of launchers that are not in the table."""

_PORTS = (20000, 30000)  # where the ranks meet without MASTER_PORT; below the kernel's range for outgoing connections
_TRIES = 4


@dataclass(frozen=True)
class Launch:
    """A process's place in the run, as its launcher tells it."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str | None = None
    """MASTER_ADDR; None: the launcher gave none."""
    port: int | None = None
    places: tuple[tuple[str, int], ...] = ()
    """Where rank 0 is met, tried in turn; none: the ranks of this host agree on it among themselves."""
    local_is_known: bool = True
    """False: plain variables say nothing of hosts, and the ranks find out who shares one when they meet."""
    store_is_served: bool = False
    """The launcher serves the store itself (torchrun's agent)."""
    restarts: int = 0
    job: str = ""
    """Tells this launch from others."""
    notes: tuple[str, ...] = ()
    """What a person should know about how this was started."""


def detect(environment: Mapping[str, str]) -> Launch:
    """The launch that `environment` describes; a world of one where no launcher shows.

    Raises LaunchError, naming what is missing or wrong, where a launcher shows but its values are incomplete.
    """
    for launcher in LAUNCHERS:
        if any(name in environment for name in launcher.markers):
            return _read(launcher, environment)
    for name in _UNKNOWN:
        if name in environment:
            raise LaunchError(
                f"{name}={environment[name]} is set by a launcher that distbench does not know: set RANK, WORLD_SIZE, "
                "MASTER_ADDR and MASTER_PORT for each rank from its variables, or unset it for a run of one process"
            )
    if environment.get("SLURM_PROCID", "0") != "0":  # no batch script's, which is 0
        raise LaunchError(f"SLURM_STEP_ID is not set: slurm (SLURM_PROCID={environment['SLURM_PROCID']}) needs it")
    return Launch("single", 0, 1, 0, 1, notes=_batch_notes(environment))


def _batch_notes(environment: Mapping[str, str]) -> tuple[str, ...]:
    tasks = environment.get("SLURM_NTASKS", "1")
    if "SLURM_JOB_ID" not in environment or tasks == "1":
        return ()
    return (
        f"Slurm job {environment['SLURM_JOB_ID']} has {tasks} tasks, but srun did not start this process: it is a world "
        "of one; for all of them: srun python -m distbench …",
    )


def _read(launcher: Launcher, environment: Mapping[str, str]) -> Launch:
    rank_name, size_name, local_rank_name, local_size_name = launcher.names
    rank = _number(launcher, environment, rank_name)
    size = _number(launcher, environment, size_name)
    _within(rank_name, rank, size_name, size)
    local_is_known = launcher.name != "env" or local_rank_name in environment
    if local_is_known:
        local_rank = _number(launcher, environment, local_rank_name)
        local_size = _local_size(launcher, environment, local_size_name)
        _within(local_rank_name, local_rank, local_size_name, local_size)
    else:
        local_rank, local_size = rank, size  # one host, until the ranks meet and see
    address = environment.get("MASTER_ADDR")
    port = _number(launcher, environment, "MASTER_PORT") if "MASTER_PORT" in environment else None
    if (address is None) != (port is None):
        missing = "MASTER_ADDR" if address is None else "MASTER_PORT"
        raise LaunchError(f"{missing} is not set: set MASTER_ADDR and MASTER_PORT, or neither on a single host")
    if address == "":
        raise LaunchError("MASTER_ADDR is empty: it must be the name or address of rank 0's host")
    if port is not None and not 1 <= port <= 65535:
        raise LaunchError(f"MASTER_PORT={port}: must be from 1 to 65535")
    if address is None and launcher.name in ("torchrun", "env") and size > 1:
        raise LaunchError("MASTER_ADDR and MASTER_PORT are not set: RANK and WORLD_SIZE need them too")
    job = _job(launcher, environment, address, port)
    if address is not None and port is not None:
        places: tuple[tuple[str, int], ...] = ((address, port),)
    else:
        places = _places(launcher, environment, rank, job) if size > local_size else ()
    return Launch(
        launcher=launcher.name,
        rank=rank,
        world_size=size,
        local_rank=local_rank,
        local_world_size=local_size,
        address=address,
        port=port,
        places=places,
        local_is_known=local_is_known,
        store_is_served=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        restarts=_number(launcher, {"TORCHELASTIC_RESTART_COUNT": "0", **environment}, "TORCHELASTIC_RESTART_COUNT"),
        job=job,
    )


def _within(name: str, value: int, size_name: str, size: int) -> None:
    if not 0 <= value < size:
        raise LaunchError(f"{name}={value}: must be from 0 to {size_name} - 1, which is {size - 1}")


def _text(launcher: Launcher, environment: Mapping[str, str], name: str) -> str:
    if name not in environment:
        shown = next(marker for marker in launcher.markers if marker in environment)
        raise LaunchError(f"{name} is not set: {launcher.name} ({shown} is set) needs it")
    return environment[name]


def _number(launcher: Launcher, environment: Mapping[str, str], name: str) -> int:
    text = _text(launcher, environment, name)
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise LaunchError(f"{name}={text}: must be a whole number")
    return int(text)


def _local_size(launcher: Launcher, environment: Mapping[str, str], name: str) -> int:
    """Ranks on this host. Slurm tells those of each node of the step, and which of them this is."""
    if launcher.name != "slurm":
        return _number(launcher, environment, name)
    text = _text(launcher, environment, name)
    try:
        tasks = nodelist.counts(text)
    except ValueError as error:
        raise LaunchError(f"{name}={error}") from None
    node = 0 if len(tasks) == 1 else _number(launcher, environment, "SLURM_NODEID")
    _within("SLURM_NODEID", node, f"the nodes in {name}", len(tasks))
    return tasks[node]


def _places(launcher: Launcher, environment: Mapping[str, str], rank: int, job: str) -> tuple[tuple[str, int], ...]:
    """Where the ranks of several hosts meet without MASTER_ADDR: all of them derive the same from their launcher."""
    hosts: list[str] = []
    if launcher.name == "slurm":
        text = _text(launcher, environment, "SLURM_STEP_NODELIST")
        try:
            hosts = nodelist.nodes(text)[:1]
        except ValueError as error:
            raise LaunchError(f"SLURM_STEP_NODELIST={error}") from None
        if rank == 0 and environment.get("SLURM_NODEID", "0") != "0":  # srun --distribution=arbitrary
            raise LaunchError("rank 0 is not on the step's first node: set MASTER_ADDR to its node, and MASTER_PORT")
    elif launcher.name == "openmpi":  # <job>;tcp://10.0.0.1,10.1.0.1:47211;tcp6://[fd00::1]:45121 is mpirun itself
        uri = environment.get("OMPI_MCA_orte_hnp_uri", "")
        for listed in re.findall(r";tcp6?://([^;]*):[0-9]+", uri):
            hosts += listed.strip("[]").split(",")
    if not hosts:
        raise LaunchError(
            f"MASTER_ADDR is not set: ranks on several hosts under {launcher.name} need it (the name or address of "
            "rank 0's host) and MASTER_PORT"
        )
    first, last = _PORTS
    ports = [first + (int(job, 16) + number * 2503) % (last - first) for number in range(_TRIES)]
    return tuple((host, port) for port in ports for host in hosts)


def _job(launcher: Launcher, environment: Mapping[str, str], address: str | None, port: int | None) -> str:
    parts = [f"{name}={environment[name]}" for name in launcher.job if name in environment]
    if not parts:  # the parent is equal on one host only; MASTER_ADDR need not be spelt the same on each
        parts = [f"parent {os.getppid()}"] if address is None else [f"port {port}"]
    return hashlib.sha256("\n".join([launcher.name, *parts]).encode()).hexdigest()[:16]
