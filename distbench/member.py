"""A rank as a process of its host."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

from distbench.launch import LAUNCHERS, Launch


@dataclass(frozen=True)
class Member:
    """One rank as the others know it."""

    rank: int
    host: str
    pid: int
    started: float
    """The process's start time, so that a pid used again is not taken for it."""
    local_rank: int = 0

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
    return Member(launch.rank, os.uname().nodename, os.getpid(), psutil.Process().create_time(), launch.local_rank)


def launcher_process(launch: Launch) -> psutil.Process | None:
    """What started this host's ranks: the first ancestor that is no rank itself (a shell between them is).

    None for a process that no launcher started: nothing that it could lose watches over it.
    """
    marker = _marker(launch)
    try:
        return next((parent for parent in psutil.Process().parents() if marker and not _set_in(parent, marker)), None)
    except psutil.Error:
        return None


def ranks_below(process: psutil.Process, launch: Launch) -> list[Member]:
    """The ranks of this launch that live on this host, this one too, as far as their environments can be read."""
    rank, local_rank = next((it.rank, it.local_rank) for it in LAUNCHERS if it.marker == _marker(launch))
    found: dict[int, Member] = {}
    host = os.uname().nodename
    try:
        children = process.children(recursive=True)
    except psutil.Error:
        return []
    for child in children:  # parents come before their children: of a shell and its rank the rank stays
        try:
            told = child.environ()
            if rank in told:
                started = child.create_time()
                found[int(told[rank])] = Member(
                    int(told[rank]), host, child.pid, started, int(told.get(local_rank, "0"))
                )
        except (psutil.Error, ValueError):
            continue  # gone, or somebody else's
    return list(found.values())


def _marker(launch: Launch) -> str | None:
    """The variable that tells a rank from its launcher; plain variables stand in the shell that started it too."""
    return (
        None if launch.launcher == "env" else next((it.marker for it in LAUNCHERS if it.name == launch.launcher), None)
    )


def _set_in(process: psutil.Process, name: str) -> bool:
    try:
        return name in process.environ()
    except psutil.Error:
        return False  # another user's: a scheduler's daemon


def titles(ranks: list[int], known: dict[int, Member]) -> str:
    """Up to eight ranks; with host and process where those are known."""
    shown = ", ".join(known[rank].title if rank in known else str(rank) for rank in ranks[:8])
    return shown + (", …" if len(ranks) > 8 else "")


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def reason_of(error: Exception) -> str:
    """One line: an out-of-memory by its own name, anything else by type and first line."""
    text = (str(error).strip().splitlines() or [""])[0][:300]
    memory = isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error)
    return f"out of memory ({type(error).__name__}: {text})" if memory else f"{type(error).__name__}: {text}"
