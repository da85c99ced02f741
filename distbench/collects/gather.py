"""gather and all_gather by the data group's own collective.

Shards of unequal size are padded to the largest. Where the parts do not lie in C as they arrive (unequal, or columns),
they are unpacked into C inside the window, because whoever uses C needs them there.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from distbench.collects.base import Collect, Means, Site
from distbench.config import Config
from distbench.dtypes import poison, wire
from distbench.shims import all_gather_into


class _Assembled(Collect):
    """What both share: a padded shard, parts per rank, and their unpacking."""

    def __init__(self, site: Site, means: Means) -> None:
        self.means = means
        self.unpacked: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.padded = means.empty(site.largest_shard)
        self.shard = self.padded[: site.shard.c_numel].view(site.shard.c_shape)
        self.held = None
        self.parts: torch.Tensor | None = None
        if site.held is None:
            return
        self.held = means.empty(*site.held.c_shape)
        if site.is_even and site.is_contiguous:
            self.parts = self.held.view(site.world_size, site.largest_shard)
            return
        self.parts = means.empty(site.world_size, site.largest_shard)
        for rank in range(site.world_size):
            block = site.shard_at(rank)
            source = self.parts[rank, : block.c_numel].view(block.c_shape)
            self.unpacked.append((self.held[block.c_index], source))

    def unpack(self) -> None:
        for target, source in self.unpacked:
            target.copy_(source)

    def poison(self) -> None:
        super().poison()
        poison(self.padded)
        if self.parts is not None:
            poison(self.parts)

    @staticmethod
    def elements(site: Site, config: Config) -> tuple[int, int]:
        if site.held is None:
            return site.largest_shard, 0
        parts = 0 if site.is_even and site.is_contiguous else site.world_size * site.largest_shard
        # gloo receives into a buffer of its own, as large as all parts, and copies from there.
        return site.largest_shard + parts + site.held.c_numel, site.world_size * site.largest_shard


class Gather(_Assembled):
    """torch.distributed.gather: rank 0 holds C."""

    def __init__(self, site: Site, means: Means) -> None:
        super().__init__(site, means)
        self.slots = None if self.parts is None else [wire(part) for part in self.parts.unbind(0)]

    def run(self) -> None:
        dist.gather(wire(self.padded), self.slots, dst=0, group=self.means.world.data(self.means.backend))
        self.unpack()


class AllGather(_Assembled):
    """torch.distributed.all_gather_into_tensor: every rank holds C."""

    def run(self) -> None:
        assert self.parts is not None
        all_gather_into(wire(self.parts.view(-1)), wire(self.padded), self.means.world.data(self.means.backend))
        self.unpack()
