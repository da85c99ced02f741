"""gather and all_gather by send and receive, straight into C's slices where they are contiguous."""

from __future__ import annotations

import torch
import torch.distributed as dist

from distbench.collects.base import Collect, Means, Site
from distbench.config import CollectName, Config
from distbench.dtypes import poison, wire


class _PointToPoint(Collect):
    """A holder receives every other rank's shard; each rank sends its own to every holder."""

    def __init__(self, site: Site, means: Means) -> None:
        self.means = means
        self.held = None if site.held is None else means.empty(*site.held.c_shape)
        everyone = range(site.world_size) if site.collect is CollectName.all_gather else range(1)
        others = [rank for rank in range(site.world_size) if rank != site.rank and site.shard_at(rank).c_numel]
        self.receivers = [rank for rank in everyone if rank != site.rank and site.shard.c_numel]
        self.arrivals: list[tuple[int, torch.Tensor]] = []
        self.unpacked: list[tuple[torch.Tensor, torch.Tensor]] = []
        if self.held is None:
            self.shard = means.empty(*site.shard.c_shape)
        elif site.is_contiguous:
            self.shard = self.held[site.shard.c_index]  # the product writes its part of C itself
            self.arrivals = [(rank, self.held[site.shard_at(rank).c_index]) for rank in others]
        else:
            self.shard = means.empty(*site.shard.c_shape)
            self.arrivals = [(rank, means.empty(*site.shard_at(rank).c_shape)) for rank in others]
            self.unpacked = [(self.held[site.shard_at(rank).c_index], part) for rank, part in self.arrivals]
            self.unpacked.append((self.held[site.shard.c_index], self.shard))

    @staticmethod
    def elements(site: Site, config: Config) -> tuple[int, int]:
        if site.held is None:
            return site.shard.c_numel, 0
        return (1 if site.is_contiguous else 2) * site.held.c_numel, 0

    def run(self) -> None:
        group = self.means.world.data(self.means.backend)
        operations = [dist.P2POp(dist.isend, wire(self.shard), rank, group) for rank in self.receivers]
        operations += [dist.P2POp(dist.irecv, wire(target), rank, group) for rank, target in self.arrivals]
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
        for target, source in self.unpacked:
            target.copy_(source)

    def poison(self) -> None:
        super().poison()
        for _, part in self.arrivals:
            poison(part)


class GatherP2P(_PointToPoint):
    """Rank 0 holds C."""


class AllGatherP2P(_PointToPoint):
    """Every rank holds C."""
