"""A rank as a process of its host."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

from distbench.launch import Launch


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
