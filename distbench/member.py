"""A rank as a process of its host."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from distbench.launch import Launch, LaunchError


@dataclass(frozen=True)
class Member:
    """One rank as the others know it."""

    rank: int
    host: str
    pid: int
    started: float
    """The process's start time, so that a pid used again is not taken for it."""
    local_rank: int = 0
    machine: str = ""
    """Where its pid means something: two hosts may have the same name, two containers of one host the same boot."""

    @property
    def title(self) -> str:
        return f"rank {self.rank} (host {self.host}, pid {self.pid})"

    def is_gone(self) -> bool:
        """True if this host has no such process any more; only for a member of this host."""
        try:
            process = psutil.Process(self.pid)
            return process.create_time() != self.started or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def kill(self) -> None:
        try:
            process = psutil.Process(self.pid)
            if process.create_time() == self.started:
                process.kill()
        except psutil.Error:
            pass  # gone already, or not ours to end


def this_member(launch: Launch) -> Member:
    """This process as a member."""
    started = psutil.Process().create_time()
    return Member(launch.rank, os.uname().nodename, os.getpid(), started, launch.local_rank, machine())


def machine() -> str:
    """Host name, boot and process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{os.uname().nodename} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.uname().nodename


_LAUNCHERS = (
    *("mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "hydra_pmi_proxy", "pmi_proxy", "slurmstepd"),
    *("aprun", "jsrun", "jsrund", "palsd", "flux-shell"),
)
"""Programs that start the ranks of a world."""


def lone_copies() -> str | None:
    """For a world of one: other processes that the same parent started with the same command line within a second.

    Such copies were often meant to be one world. Raises LaunchError where the parent is a launcher of ranks.
    """
    own = psutil.Process()
    try:
        parent = own.parent()
        if parent is None:
            return None
        children = " ".join(path.read_text() for path in Path(f"/proc/{parent.pid}/task").glob("*/children"))
        others = [psutil.Process(int(pid)) for pid in children.split() if int(pid) != own.pid]
        copies = [
            p.pid for p in others if abs(p.create_time() - own.create_time()) < 1 and p.cmdline() == own.cmdline()
        ]
        by = parent.name()
    except (psutil.Error, OSError, ValueError):  # one went away: then it was no copy that matters
        return None
    if not copies:
        return None
    told = f"{by} (pid {parent.pid}) started {len(copies) + 1} copies of this run at once, each a world of one"
    if by in _LAUNCHERS:
        raise LaunchError(
            f"{told}: it told them no rank that distbench knows; set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for "
            "each, or start them with torchrun"
        )
    return f"{told}: they disturb each other's times; for one world use torchrun, mpirun or srun"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def reason_of(error: Exception) -> str:
    """One line: an out-of-memory by its own name, anything else by type and first line."""
    text = (str(error).strip().splitlines() or [""])[0][:300]
    memory = isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error)
    return f"out of memory ({type(error).__name__}: {text})" if memory else f"{type(error).__name__}: {text}"
