"""collect=host: each shard reaches host memory, by one of several ways whose costs differ by a factor of 40.

fresh      a new pageable array for each sample, as the engine's library makes it: `.cpu()`, or CuPy's `.get()`. The array's
           pages are faulted in as they are written, within the sample; the last sample's array is given back before the next
           sample begins.
pageable   one pageable array, reused
pinned     one page-locked array, reused
pipelined  the same, and a chunk is copied while the next is computed, on a stream of its own
"""

from __future__ import annotations

import time

import torch

from distbench.collects.base import Collect, Means, Piece, Site
from distbench.config import Config
from distbench.engines import ENGINES
from distbench.pagelock import PageLock

_CHUNK_S = 3e-3  # of copying: far above a launch, far below the whole
_PROBE_BYTES = 1 << 26


class Fresh(Collect):
    """A new array for each sample."""

    @staticmethod
    def elements(site: Site, config: Config) -> tuple[int, int]:
        return site.shard.c_numel, site.shard.c_numel

    def __init__(self, site: Site, means: Means) -> None:
        self.shard = means.empty(*site.shard.c_shape)
        self.held = None
        self.to_host = ENGINES[means.config.engine].to_host

    def before(self) -> None:
        self.held = None

    def run(self) -> None:
        self.held = self.to_host(self.shard)


class Pageable(Collect):
    """One array of ordinary memory."""

    @staticmethod
    def elements(site: Site, config: Config) -> tuple[int, int]:
        return site.shard.c_numel, site.shard.c_numel

    def __init__(self, site: Site, means: Means) -> None:
        self.shard = means.empty(*site.shard.c_shape)
        self.held: torch.Tensor = torch.empty(site.shard.c_shape, dtype=means.dtype)

    def run(self) -> None:
        self.held.copy_(self.shard)


class Pinned(Pageable):
    """One page-locked array: the copy runs at the link's rate, and the window's closing synchronize waits for it."""

    def __init__(self, site: Site, means: Means) -> None:
        super().__init__(site, means)
        self.lock = PageLock(self.held)

    def run(self) -> None:
        self.held.copy_(self.shard, non_blocking=True)

    def close(self) -> None:
        self.lock.release()


class Pipelined(Pinned):
    """The product of chunk i + 1 while chunk i is copied."""

    def __init__(self, site: Site, means: Means) -> None:
        super().__init__(site, means)
        self.copies = torch.cuda.Stream(means.device)
        self.link_gbs = self._link_gbs(means.device)
        told = means.config.pipeline.chunk_mib
        chunk_bytes = told * 2**20 if told is not None else self.link_gbs * 1e9 * _CHUNK_S
        self.cuts = _cuts(site, self.shard.element_size(), chunk_bytes)
        self.computed = [torch.cuda.Event() for _ in self.cuts]
        self.copied = torch.cuda.Event()

    def pieces(self) -> list[Piece]:
        return self.cuts

    def after(self, index: int) -> None:
        piece = self.cuts[index]
        self.computed[index].record()
        self.copies.wait_event(self.computed[index])
        with torch.cuda.stream(self.copies):
            self.held[piece].copy_(self.shard[piece], non_blocking=True)

    def run(self) -> None:
        self.copied.record(self.copies)
        torch.cuda.current_stream(self.shard.device).wait_event(self.copied)

    def notes(self) -> dict[str, object]:
        return {"chunks": len(self.cuts), "link_gbs": self.link_gbs}

    def _link_gbs(self, device: torch.device) -> float:
        """GB/s of a copy of up to 64 MiB into the page-locked array, the better of three."""
        count = min(self.shard.numel(), _PROBE_BYTES // self.shard.element_size())
        if count == 0:
            return 1.0
        best_s = float("inf")
        for _ in range(3):
            torch.cuda.synchronize(device)
            begin = time.perf_counter()
            self.held.view(-1)[:count].copy_(self.shard.view(-1)[:count], non_blocking=True)
            torch.cuda.synchronize(device)
            best_s = min(best_s, time.perf_counter() - begin)
        return count * self.shard.element_size() / best_s / 1e9


def _cuts(site: Site, itemsize: int, chunk_bytes: float) -> list[Piece]:
    """Chunks of about `chunk_bytes` each, along the batch if there is one, else along m: each is one run of memory."""
    shape = site.shard.c_shape
    axis = 0 if shape[0] > 1 else 1
    size = shape[axis]
    row_bytes = max(1, site.shard.c_numel * itemsize // max(1, size))
    step = max(1, round(chunk_bytes / row_bytes))
    everything = slice(None)
    cuts = [slice(first, min(first + step, size)) for first in range(0, size, step)]
    return [(cut, everything, everything) if axis == 0 else (everything, cut, everything) for cut in cuts]
