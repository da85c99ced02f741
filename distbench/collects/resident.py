"""C stays where the product wrote it (none, host on the CPU), or goes to pinned host memory (host on a GPU)."""

from __future__ import annotations

import torch

from distbench.collects.base import Collect, Means, Site
from distbench.pagelock import PageLock


class InPlace(Collect):
    """Nothing moves: C is where it should be once the product is done."""

    @staticmethod
    def elements(site: Site) -> tuple[int, int]:
        return site.shard.c_numel, 0

    def __init__(self, site: Site, means: Means) -> None:
        self.shard = means.empty(*site.shard.c_shape)
        self.held = self.shard

    def run(self) -> None:
        pass


class Pinned(Collect):
    """Each rank copies its shard from the GPU into page-locked host memory, allocated once."""

    @staticmethod
    def elements(site: Site) -> tuple[int, int]:
        return site.shard.c_numel, site.shard.c_numel

    def __init__(self, site: Site, means: Means) -> None:
        self.shard = means.empty(*site.shard.c_shape)
        self.held = torch.empty(site.shard.c_shape, dtype=means.dtype)
        self.lock = PageLock(self.held)

    def run(self) -> None:
        assert self.held is not None
        self.held.copy_(self.shard, non_blocking=True)  # the window's closing synchronize waits for it

    def close(self) -> None:
        self.lock.release()
