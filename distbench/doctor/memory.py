"""Huge pages, locked and shared memory."""

from __future__ import annotations

import os
import resource

from distbench.doctor.machine import Finding, Level, Machine, ok
from distbench.show.units import size

_SMALL_SHM = 10**9
_SMALL_LOCK = 10**9


def huge_pages(machine: Machine) -> list[Finding]:
    text = machine.read("sys/kernel/mm/transparent_hugepage/enabled")
    if text is None:
        return [Finding(Level.note, "the kernel has no transparent huge pages")]
    chosen = text.partition("[")[2].partition("]")[0]
    asks = machine.environment.get("THP_MEM_ALLOC_ENABLE") == "1"
    if chosen == "always" or (chosen == "madvise" and asks):
        return ok(f"transparent huge pages: {chosen}")
    if chosen == "madvise":
        remedy = "THP_MEM_ALLOC_ENABLE=1"
        return [
            Finding(Level.slow, "huge pages only where asked for, and torch does not ask (collects gain most)", remedy)
        ]
    remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, and THP_MEM_ALLOC_ENABLE=1"
    return [Finding(Level.slow, f"transparent huge pages: {chosen}", remedy)]


def locked_memory(machine: Machine, limit: int | None = None) -> list[Finding]:
    """How much a process may lock: what RDMA and page-locked buffers need. limit: bytes, else this process's."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if limit is None else limit
    if limit == resource.RLIM_INFINITY or limit >= _SMALL_LOCK:
        return ok("locked memory: enough")
    level = Level.slow if machine.has_infiniband else Level.note
    needs = "InfiniBand registers its buffers with it" if machine.has_infiniband else "only RDMA networks need more"
    return [
        Finding(
            level, f"a process may lock {size(limit)}: {needs}", "ulimit -l unlimited, or docker --ulimit memlock=-1"
        )
    ]


def shared_memory(machine: Machine) -> list[Finding]:
    """The room in /dev/shm, where path=shared, gloo and NCCL put what the ranks of a host share."""
    try:
        told = os.statvfs(machine.root / "dev/shm")
    except OSError as error:
        return [Finding(Level.wrong, f"/dev/shm: {error.strerror}", "mount a tmpfs there")]
    total, free = told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize
    if free < _SMALL_SHM:
        remedy = "docker --shm-size=16g, or a larger tmpfs"
        return [
            Finding(
                Level.slow, f"/dev/shm has {size(free)} free of {size(total)}: path=shared and NCCL need it", remedy
            )
        ]
    return ok(f"/dev/shm has {size(free)} free")
