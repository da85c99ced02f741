"""A rank among those of its host: the launcher that started them, and who is there before the ranks have joined."""

from __future__ import annotations

import os

import psutil

from distbench.launch import LAUNCHERS, Launch
from distbench.member import Member, machine


class Neighbours:
    """This host's ranks as their launcher's children show them, and the launcher itself."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self.launcher = _launcher_process(launch)
        """None for a process that no launcher started."""
        self.known: dict[int, Member] = {}
        self.look_round()

    def look_round(self) -> None:
        """Remember who is there: one that dies before the join is known by it."""
        if self.launcher is not None and self._launch.world_size > 1:
            self.known |= {member.rank: member for member in _ranks_below(self.launcher, self._launch)}

    def launcher_died(self) -> str | None:
        """In words, if it did; nobody would end this rank any more."""
        if self.launcher is None or not _is_gone(self.launcher):
            return None
        return f"({self._launch.launcher}, pid {self.launcher.pid}) died"


def join_failure(
    arrived: set[int], behind: list[int], known: dict[int, Member], size: int, within: str
) -> tuple[str, list[Member]]:
    """Why the world did not form in time, and the ranks at fault as far as they are known.

    behind: where all arrived, those that are not as far as the others. within: where and how long they were awaited.
    """
    missing = [rank for rank in range(size) if rank not in arrived]
    if missing:
        count = f"{size - len(missing)} of {size} ranks arrived {within}"
        reason = f"{count}; missing: {_titles(missing, known)}, in stage join"
    elif len(behind) == size:
        hint = "set GLOO_SOCKET_IFNAME to the network card between the hosts"
        return f"all {size} ranks arrived, but did not reach each other {within}: {hint}", []
    else:
        missing = behind
        reason = f"all {size} ranks arrived, but did not join {within}; in stage join: {_titles(behind, known)}"
    return reason, [known[rank] for rank in missing if rank in known]


def _launcher_process(launch: Launch) -> psutil.Process | None:
    """What started this host's ranks: the first ancestor that is no rank itself (a shell between them is).

    None for a process that no launcher started: nothing that it could lose watches over it.
    """
    marker = _marker(launch)
    try:
        return next((parent for parent in psutil.Process().parents() if marker and not _set_in(parent, marker)), None)
    except psutil.Error:
        return None


def _ranks_below(process: psutil.Process, launch: Launch) -> list[Member]:
    """The ranks of this launch that live on this host, this one too, as far as their environments can be read."""
    rank, _, local_rank, _ = next(it.names for it in LAUNCHERS if it.name == launch.launcher)
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
                    int(told[rank]), host, child.pid, started, int(told.get(local_rank, "0")), machine()
                )
        except (psutil.Error, ValueError):
            continue  # gone, or somebody else's
    return list(found.values())


def _marker(launch: Launch) -> str | None:
    """The variable that tells a rank from its launcher; plain variables stand in the shell that started it too."""
    markers = [it.markers[0] for it in LAUNCHERS if it.name == launch.launcher]
    return None if launch.launcher == "env" or not markers else next((it for it in markers if it in os.environ), None)


def _set_in(process: psutil.Process, name: str) -> bool:
    try:
        return name in process.environ()
    except psutil.Error:
        return False  # another user's: a scheduler's daemon


def _titles(ranks: list[int], known: dict[int, Member]) -> str:
    """Up to eight ranks; with host and process where those are known."""
    shown = ", ".join(known[rank].title if rank in known else str(rank) for rank in ranks[:8])
    return shown + (", …" if len(ranks) > 8 else "")


def _is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True
