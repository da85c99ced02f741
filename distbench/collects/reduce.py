"""The sums over ranks of a k split: reduce, all_reduce, reduce_scatter."""

from __future__ import annotations

import torch.distributed as dist

from distbench.collects.base import Collect, Means, Site
from distbench.config import Config, Split
from distbench.dtypes import poison, wire
from distbench.layout import shard_of
from distbench.shims import reduce_scatter_into


class Reduce(Collect):
    """torch.distributed.reduce: rank 0 holds the sum, in the memory of its own partial product."""

    @staticmethod
    def elements(site: Site, config: Config) -> tuple[int, int]:
        return site.shard.c_numel, 0

    def __init__(self, site: Site, means: Means) -> None:
        self.means = means
        self.shard = means.empty(*site.shard.c_shape)
        self.held = None if site.held is None else self.shard

    def run(self) -> None:
        dist.reduce(wire(self.shard), dst=0, group=self.means.world.data(self.means.backend))


class AllReduce(Reduce):
    """torch.distributed.all_reduce: every rank holds the sum."""

    def run(self) -> None:
        dist.all_reduce(wire(self.shard), group=self.means.world.data(self.means.backend))


class ReduceScatter(Collect):
    """torch.distributed.reduce_scatter_tensor: each rank holds its rows of the sum.

    Unequal rows are padded to the largest, which takes a packing copy inside the window.
    """

    @staticmethod
    def elements(site: Site, config: Config) -> tuple[int, int]:
        largest = shard_of(site.problem, Split.m, site.world_size, 0).c_numel
        packed = 0 if ReduceScatter._is_direct(site) else largest * site.world_size
        return site.shard.c_numel + largest + packed, 0

    @staticmethod
    def _is_direct(site: Site) -> bool:
        return site.problem.batch.size == 1 and site.problem.m.size % site.world_size == 0

    def __init__(self, site: Site, means: Means) -> None:
        self.site, self.means = site, means
        self.rows = [shard_of(site.problem, Split.m, site.world_size, rank) for rank in range(site.world_size)]
        largest = self.rows[0].c_numel
        self.shard = means.empty(*site.shard.c_shape)
        self.out = means.empty(largest)
        own = self.rows[site.rank]
        self.held = self.out[: own.c_numel].view(own.c_shape)
        self.direct = self._is_direct(site)
        self.parts = self.shard.view(site.world_size, largest) if self.direct else means.empty(site.world_size, largest)

    def run(self) -> None:
        if not self.direct:
            for part, block in zip(self.parts, self.rows, strict=True):
                part[: block.c_numel].view(block.c_shape).copy_(self.shard[:, block.m.slice, :])
        reduce_scatter_into(wire(self.out), wire(self.parts.view(-1)), self.means.world.data(self.means.backend))

    def poison(self) -> None:
        super().poison()
        poison(self.out)
        poison(self.parts)
