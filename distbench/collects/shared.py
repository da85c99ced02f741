"""One mapping that the ranks of a host write into: C is assembled by the products themselves.

The memory is a memfd: its size does not depend on /dev/shm, and nothing is left behind however the run ends. Rank 0
makes it, the others open it through /proc/<pid>/fd. A closing barrier on the data group tells every rank that C is whole; it
is part of the timed path, since nobody can use C before it.
"""

from __future__ import annotations

import mmap
import os
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from distbench.collects.base import Collect, Means, Site
from distbench.config import Config
from distbench.dtypes import poison
from distbench.pagelock import PageLock


class Shared(Collect):
    """gather, all_gather and host through one shared mapping of C."""

    @staticmethod
    def elements(site: Site, config: Config) -> tuple[int, int]:
        # Every rank's part of the mapping counts once: where it writes.
        return site.shard.c_numel, site.shard.c_numel if site.on_gpu else 0

    def __init__(self, site: Site, means: Means) -> None:
        self.site, self.means = site, means
        self.fd: int | None = None
        self.numel = prod(site.problem.c_shape)
        self.nbytes = self.numel * torch.empty(0, dtype=means.dtype).element_size()
        self.on_gpu = means.device.type == "cuda"
        self.barrier_on = [means.device.index] if means.backend == "nccl" else None  # NCCL would guess, and says so
        self.lock: PageLock | None = None
        if site.rank == 0:
            self.fd = os.memfd_create("distbench-c", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, self.nbytes)

    def offer(self) -> Any:
        return None if self.fd is None else {"pid": os.getpid(), "fd": self.fd}

    def connect(self, offers: list[Any]) -> None:
        if self.fd is None:
            path = f"/proc/{offers[0]['pid']}/fd/{offers[0]['fd']}"
            try:
                self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                raise RuntimeError(
                    f"path=shared: cannot open rank 0's mapping ({error}); the ranks must run on one host as one user"
                ) from None
        self.mapping = mmap.mmap(self.fd, self.nbytes)
        c = torch.frombuffer(self.mapping, dtype=self.means.dtype).view(self.site.problem.c_shape)
        own = c[self.site.shard.c_index]
        self.host_part = own
        if self.on_gpu:
            self.lock = PageLock(c)
            self.shard = self.means.empty(*self.site.shard.c_shape)
        else:
            self.shard = own  # the product writes its part of C itself
        self.held = None if self.site.held is None else c[self.site.held.c_index]

    def run(self) -> None:
        if self.on_gpu:
            self.host_part.copy_(self.shard, non_blocking=True)
            torch.cuda.current_stream(self.means.device).synchronize()
        dist.barrier(group=self.means.world.data(self.means.backend), device_ids=self.barrier_on)

    def poison(self) -> None:
        poison(self.shard)
        poison(self.host_part)

    def close(self) -> None:
        if self.lock is not None:
            self.lock.release()
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
