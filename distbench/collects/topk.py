"""collect=topk: the k best rows of C per column, with their indices, and C never whole in memory.

The product is computed a chunk of rows at a time into one buffer [n, rows], so that a column's scores lie side by side. A chunk
is searched by blocks of rows: the largest score of each block, then the k blocks with the largest of those; their scores
are candidates. That is exact: a score among the k best lies in one of the k best blocks. The candidates of a few chunks
are kept in the order of their indices and searched together, and of equal scores the lower index wins everywhere.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.distributed as dist

from distbench.collects.base import Collect, Means, Piece, Site
from distbench.config import Config
from distbench.dtypes import FACTS

_ROWS = 1_000_000  # fewer rows make the products small, more gain nothing (H200)
_CHUNK_BYTES = 4 * 10**9
_BLOCK_ROWS = 1_000
_CANDIDATES = 10_000  # per column and chunk
_GROUP = 3  # chunks whose candidates are searched together


def chunk_rows(site: Site, config: Config, itemsize: int) -> int:
    """Rows of C per chunk: a third of the shard at most, so that C is never whole."""
    fitting = max(1, _CHUNK_BYTES // (itemsize * site.problem.n.size))
    third = -(-site.shard.m.size // 3)
    return max(1, min(config.topk.chunk_rows or min(_ROWS, fitting, third), site.shard.m.size))


def block_rows(rows: int, k: int) -> int:
    """Rows per block: few maxima, and not too many candidates in the k best blocks."""
    return max(1, min(_BLOCK_ROWS, _CANDIDATES // k, rows // k))


class TopK(Collect):
    """Local selection chunk by chunk; then the ranks' k best are gathered and merged on rank 0."""

    @staticmethod
    def elements(site: Site, config: Config) -> tuple[int, int]:
        n, k = site.problem.n.size, config.topk.k
        itemsize = FACTS[config.workload.dtype].c_itemsize
        rows = chunk_rows(site, config, itemsize)
        block = block_rows(rows, k)
        candidates = k * (1 + _GROUP * block + 2 * site.world_size)
        # A candidate is a score and an int64; a search holds as much again, and CPUs an int32 of each.
        return n * (rows + block) + n * candidates * (2 + 24 // itemsize), n * k * (1 + 8 // itemsize)

    def __init__(self, site: Site, means: Means) -> None:
        self.site, self.means, self.k = site, means, means.config.topk.k
        self.n, self.m = site.problem.n.size, site.shard.m.size
        itemsize = torch.empty(0, dtype=means.dtype).element_size()
        self.rows = chunk_rows(site, means.config, itemsize)
        self.block = block_rows(self.rows, self.k)
        self.lowest = -float("inf")
        self.buffer = means.empty(self.n, -(-self.rows // self.block) * self.block).fill_(self.lowest)
        self.starts = list(range(0, self.m, self.rows))
        self.per_chunk = self.k * self.block
        shape = (self.n, self.k + _GROUP * self.per_chunk)
        self.scores = torch.full(shape, self.lowest, dtype=means.dtype, device=means.device)
        """The k best so far, then the candidates of up to _GROUP chunks, in the order of their rows where they are equal."""
        self.rows_found = torch.full(shape, -1, dtype=torch.int64, device=means.device)
        self.within = torch.arange(self.block, device=means.device)
        self.used = self.k
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
        chosen = _winners(blocks.amax(-1), min(self.k, blocks.shape[1]))
        if index == 0:
            self.used = self.k
            self.scores[:, : self.k] = self.lowest
        into = slice(self.used, self.used + chosen.shape[1] * self.block)
        taken = chosen[:, :, None].expand(-1, -1, self.block)
        self.scores[:, into] = blocks.gather(1, taken).flatten(1)
        first = self.site.shard.m.start + start
        self.rows_found[:, into] = (chosen[:, :, None] * self.block + (self.within + first)).flatten(1)
        self.used = into.stop
        is_last = index == len(self.starts) - 1
        if is_last or self.used + self.per_chunk > self.scores.shape[1]:
            best, rows = _best(self.scores[:, : self.used], self.rows_found[:, : self.used], self.k)
            self.scores[:, : self.k], self.rows_found[:, : self.k] = best, rows
            self.used = self.k

    def run(self) -> None:
        scores, rows = self.scores[:, : self.k], self.rows_found[:, : self.k]
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
    """The k best of each row of `scores` [n, candidates] and their `rows`, best first, equal ones by row.

    Candidates that are equal stand in the order of their rows.
    """
    won = _winners(scores, k)
    best, order = scores.gather(1, won).sort(dim=1, descending=True, stable=True)
    return best, rows.gather(1, won).gather(1, order)


def _winners(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Where the k best of each row of `scores` [n, candidates] stand, ascending [n, k]; of equal ones the first."""
    if scores.is_cuda and _topk_takes_the_first(scores.dtype, tuple(scores.shape), k):
        return scores.topk(k, dim=1, sorted=False).indices.sort(dim=1).values
    count = scores.shape[1]
    worst = scores.topk(k, dim=1).values[:, -1:]
    before = torch.arange(count, 0, -1, dtype=torch.int32, device=scores.device)  # all different, the first largest
    keys = torch.where(scores > worst, before + count, torch.where(scores == worst, before, 0))
    return keys.topk(k, dim=1, sorted=False).indices.sort(dim=1).values


@cache
def _topk_takes_the_first(dtype: torch.dtype, shape: tuple[int, int], k: int) -> bool:
    """Whether torch.topk on a GPU takes the first of equal scores: so it does (2.11), undocumented, so it is tried."""
    equal = torch.zeros(shape, dtype=dtype, device="cuda")
    equal[:, -k:] = 1
    equal[:, : shape[1] // 2] = 1
    found = equal.topk(k, dim=1, sorted=False).indices.sort(dim=1).values
    return bool(
        (found == equal.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :k].sort(1).values).all()
    )
