"""gather and all_gather by send and receive, straight into C's slices where they are contiguous."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from distbench.collects.base import Collect, Means, Site


class _PointToPoint(Collect):
    """A holder receives every other rank's shard; `targets` says to whom this rank sends its own."""

    def __init__(self, site: Site, means: Means) -> None:
        self.site, self.means = site, means
        self.held = None if site.held is None else means.empty(*site.held.c_shape)
        self.packed: dict[int, torch.Tensor] = {}
        if self.held is not None and site.is_contiguous:
            self.shard = self.held[site.shard.c_index]  # the product writes its part of C itself
        else:
            self.shard = means.empty(*site.shard.c_shape)
        if self.held is not None and not site.is_contiguous:
            for rank in range(site.world_size):
                if rank != site.rank:
                    self.packed[rank] = means.empty(*site.shard_at(rank).c_shape)

    def targets(self) -> range:
        return range(self.site.world_size) if self.site.collect.value == "all_gather" else range(1)

    @staticmethod
    def elements(site: Site) -> tuple[int, int]:
        if site.held is None:
            return site.shard.c_numel, 0
        return (1 if site.is_contiguous else 2) * site.held.c_numel, 0

    def run(self) -> None:
        site, group = self.site, self.means.world.data(self.means.backend)
        operations: list[Any] = []
        if self.shard.numel():
            operations += [
                dist.P2POp(dist.isend, self.shard, rank, group) for rank in self.targets() if rank != site.rank
            ]
        if self.held is not None:
            for rank in range(site.world_size):
                block = site.shard_at(rank)
                if rank != site.rank and block.c_numel:
                    target = self.held[block.c_index] if site.is_contiguous else self.packed[rank]
                    operations.append(dist.P2POp(dist.irecv, target, rank, group))
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
        if self.held is not None and not site.is_contiguous:
            self.held[site.shard.c_index].copy_(self.shard)
            for rank, part in self.packed.items():
                self.held[site.shard_at(rank).c_index].copy_(part)

    def poison(self) -> None:
        super().poison()
        for part in self.packed.values():
            part.fill_(float("nan"))


class GatherP2P(_PointToPoint):
    """Rank 0 holds C."""


class AllGatherP2P(_PointToPoint):
    """Every rank holds C."""
