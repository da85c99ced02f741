"""collect=topk: the k best rows of C per column, with their indices, and C never whole in memory.

The product is computed a chunk of rows at a time into one buffer [n, rows], so that a column's scores lie side by side. A chunk
is searched in two levels: the largest score of each block of rows, the k blocks with the largest of those, and the k
best scores within these blocks. That is exact: a score among the k best lies in one of the k best blocks. Every selection is
a stable sort of few candidates in the order of their indices, so of equal scores the lower index wins.
"""

from __future__ import annotations

from math import isqrt

import torch
import torch.distributed as dist

from distbench.collects.base import Collect, Means, Piece, Site
from distbench.config import Config
from distbench.dtypes import FACTS

_ROWS = 500_000  # fewer rows make the products small, more gain nothing (H200)
_CHUNK_BYTES = 2 * 10**9
_WIDEST = 4096  # candidates per column that a GPU sorts in one block


def chunk_rows(site: Site, config: Config, itemsize: int) -> int:
    """Rows of C per chunk."""
    told = config.topk.chunk_rows
    fitting = max(1, _CHUNK_BYTES // (itemsize * site.problem.n.size))
    return max(1, min(told or min(_ROWS, fitting), site.shard.m.size))


def block_rows(rows: int, k: int) -> int:
    """Rows per block: about as many block maxima as candidates within the k best blocks, and few enough to sort fast."""
    return max(1, min(isqrt(max(1, rows // k)), _WIDEST // k))


class TopK(Collect):
    """Local selection chunk by chunk; then the ranks' k best are gathered and merged on rank 0."""

    @staticmethod
    def elements(site: Site, config: Config) -> tuple[int, int]:
        n, k = site.problem.n.size, config.topk.k
        rows = chunk_rows(site, config, FACTS[config.workload.dtype].c_itemsize) + _WIDEST
        chunks = -(-site.shard.m.size // rows) + site.world_size
        return 2 * n * rows + 5 * n * chunks * k, 5 * n * k

    def __init__(self, site: Site, means: Means) -> None:
        self.site, self.means, self.k = site, means, means.config.topk.k
        self.n, self.m = site.problem.n.size, site.shard.m.size
        itemsize = torch.empty(0, dtype=means.dtype).element_size()
        self.rows = chunk_rows(site, means.config, itemsize)
        self.block = block_rows(self.rows, self.k)
        self.lowest = -float("inf")
        self.padded_rows = -(-self.rows // self.block) * self.block
        self.buffer = means.empty(self.n, self.padded_rows).fill_(self.lowest)
        self.starts = list(range(0, self.m, self.rows))
        shape = (self.n, self.k * max(1, len(self.starts)))
        self.scores = torch.full(shape, self.lowest, dtype=means.dtype, device=means.device)
        self.rows_found = torch.full(shape, -1, dtype=torch.int64, device=means.device)
        self.values = torch.full((self.n, self.k), self.lowest, dtype=means.dtype)
        self.indices = torch.full((self.n, self.k), -1, dtype=torch.int64)
        self.gathered: list[list[torch.Tensor]] = []
        if site.world_size > 1 and site.rank == 0:
            like = (self.scores[:, : self.k], self.rows_found[:, : self.k])
            self.gathered = [[torch.empty_like(part).contiguous() for _ in range(site.world_size)] for part in like]
        self.shard = self.buffer[None, :, : self.rows].mT
        self.held = None

    def pieces(self) -> list[Piece]:
        everything = slice(None)
        return [(everything, slice(start, min(start + self.rows, self.m)), everything) for start in self.starts]

    def target(self, piece: Piece) -> torch.Tensor:
        return self.buffer[None, :, : piece[1].stop - piece[1].start].mT

    def after(self, index: int) -> None:
        start = self.starts[index]
        size = min(self.rows, self.m - start)
        padded = -(-size // self.block) * self.block
        if size < self.rows:
            self.buffer[:, size:padded] = self.lowest  # an earlier chunk's scores lie there
        blocks = self.buffer[:, :padded].unflatten(1, (-1, self.block))
        chosen = blocks.amax(-1).sort(dim=1, descending=True, stable=True).indices[:, : self.k].sort(dim=1).values
        candidates = blocks.gather(1, chosen[:, :, None].expand(-1, -1, self.block)).flatten(1)
        scores, order = candidates.sort(dim=1, descending=True, stable=True)
        scores, order = scores[:, : self.k], order[:, : self.k]
        rows = chosen.gather(1, order // self.block) * self.block + order % self.block
        into = slice(index * self.k, index * self.k + scores.shape[1])
        self.scores[:, into] = scores
        self.rows_found[:, into] = rows + (self.site.shard.m.start + start)

    def run(self) -> None:
        scores, rows = _best(self.scores, self.rows_found, self.k)
        if self.site.world_size > 1:
            group = self.means.world.data(self.means.backend)
            for part, parts in zip((scores, rows), self.gathered or (None, None), strict=True):
                dist.gather(part.contiguous(), parts, dst=0, group=group)
            if self.site.rank != 0:
                return
            scores, rows = _best(torch.cat(self.gathered[0], 1), torch.cat(self.gathered[1], 1), self.k)
        self.values.copy_(scores)
        self.indices.copy_(rows)

    def poison(self) -> None:
        self.buffer[:, : self.rows] = float("nan")
        self.values.fill_(float("nan"))
        self.indices.fill_(-1)


def _best(scores: torch.Tensor, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best of each row of `scores` [n, candidates], which stand in the order of their indices where they are equal."""
    best, order = scores.sort(dim=1, descending=True, stable=True)
    return best[:, :k], rows.gather(1, order[:, :k])
