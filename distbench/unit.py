"""One device's part of a cell in this process: its operands, its product, and what happens to its part of C."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from distbench import modes, operands
from distbench.collects.base import Collect, Piece, Site
from distbench.config import Config, EngineName, Split, Stream, Upload
from distbench.data import fill_block
from distbench.dtypes import FACTS, poison
from distbench.layout import extent

if TYPE_CHECKING:
    import torch

    from distbench.timed import Part

Product = Callable[[], object]


class Unit:
    """The methods are the cell's stages, in the order in which it calls them; each may fail on one rank alone."""

    def __init__(self, site: Site, config: Config, device: torch.device) -> None:
        self.site, self.config, self.device = site, config, device
        self.sources: list[tuple[torch.Tensor, torch.Tensor]] = []
        """(operand on the device, its host copy) for each operand that a sample uploads."""
        self.collect: Collect | None = None
        self.multiply: Product | None = None
        self.product: Product | None = None
        """One of what `multiply` may repeat."""
        self.calls: list[Product] = []
        """The product's pieces, where C is cut."""
        self.streams: list[torch.cuda.Stream] = []
        self.around: Callable[[str, Product], Product] | None = None
        """Put around each phase in a profiled run."""

    def allocate(self) -> None:
        """A [batch, m, k] and B [batch, k, n] of this part, on its device."""
        self.a, self.b = operands.allocate(self.site.shard, self.config.workload, self.device)

    def fill(self, threads: int, told: Callable[[float], None]) -> None:
        """Fill both operands, and keep host copies of those that each sample uploads."""
        w, shard, problem = self.config.workload, self.site.shard, self.site.problem
        common = (w.dtype, w.fill, threads)
        fill_block(self.a, w.seed, "a", problem.m.size, (shard.batch, shard.m, shard.k), *common, told)
        fill_block(self.b, w.seed, "b", problem.k.size, (shard.batch, shard.k, shard.n), *common)
        operands.scale_up((self.a, self.b), shard, w)
        uploaded = {Upload.none: [], Upload.b: [self.b], Upload.ab: [self.a, self.b]}[w.upload]
        there = [operands.stored(operand) for operand in uploaded]
        self.sources = [(operand, _host_copy(operand)) for operand in there]

    def fill_from_host(self) -> None:
        """A made by numpy's generator on the host and copied to the device: the usual way, for comparison only."""
        import numpy as np
        import torch

        generator = np.random.RandomState(self.config.workload.seed % 2**32)  # np.random.rand's generator
        for entry in self.a:
            drawn = torch.from_numpy(generator.random_sample(entry.shape))
            # torch.tensor(array) is a copy on the host before the one to the device; CuPy makes none.
            entry.copy_(drawn.clone() if self.config.engine is EngineName.torch else drawn)

    def settle(self) -> None:
        """Wait until the device has done what it was given."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def prepare(self, engine: Any) -> None:
        """Make the product: the engine's call, or one call per piece where C is cut."""
        self.streams = _streams(self.config, self.device)
        with self.context():
            self.multiply = self._product(engine)
        self.product = self.multiply

    def again(self, inner: int, graph: bool) -> None:
        """Make the sample's product `inner` of them, and those one CUDA graph; it has run before."""
        if self.product is None or self.site.shard.c_numel == 0:
            return
        with self.context():
            self.multiply = modes.repeated(self.product, inner)
            if graph:
                self.multiply = modes.captured(self.multiply, self.device)

    def parts(self, collects: bool) -> list[Part]:
        """The phases of a sample in order: (name, call)."""
        assert self.multiply is not None
        assert self.collect is not None
        phases: list[Part] = [("h2d", self._upload)] if self.config.workload.upload is not Upload.none else []
        phases.append(("gemm", self.multiply))
        if collects:
            phases.append(("collect", self.collect.run))
        around = self.around
        return phases if around is None else [(name, around(name, call)) for name, call in phases]

    def context(self) -> AbstractContextManager[Any]:
        """The device and the stream that this part's work goes to."""
        import torch

        if self.device.type != "cuda":
            return nullcontext()
        return torch.cuda.stream(self.streams[0]) if self.streams else torch.cuda.device(self.device)

    def poison(self) -> None:
        """NaN wherever C will be and in every operand that the upload must bring: what is not moved shows."""
        assert self.collect is not None
        self.collect.poison()
        for operand, _ in self.sources:
            poison(operand)

    def close(self) -> None:
        """Give back what garbage collection does not."""
        if self.collect is not None:
            self.collect.close()
        self.collect = self.multiply = self.product = None
        self.calls = []

    def _upload(self) -> None:
        for operand, source in self.sources:
            operand.copy_(source, non_blocking=True)

    def _product(self, engine: Any) -> Product:
        assert self.collect is not None
        collect, shard = self.collect, self.site.shard
        if shard.c_numel == 0:
            return lambda: None  # an empty shard has nothing to compute
        if shard.k.size == 0:
            return collect.shard.zero_  # a sum of no terms
        pieces = collect.pieces() or _cut(self.site, self.config.shards_per_device)
        if len(self.streams) > 1:
            return self._over_streams(engine, pieces)
        calls = [self._call(engine, (b, m, n)) for b, m, n in pieces]
        self.calls = calls
        if len(calls) == 1 and not collect.pieces():
            only: Product = calls[0]
            return only

        def in_turn() -> None:
            for index, call in enumerate(calls):
                call()
                collect.after(index)

        return in_turn

    def _call(self, engine: Any, piece: Piece) -> Product:
        """The engine's call for one piece of C."""
        assert self.collect is not None
        b, m, n = piece
        a_part, b_part, c_part = self.a[b, m], self.b[b, :, n], self.collect.target(piece)
        call: Product
        if FACTS[self.config.workload.dtype].is_scaled:
            scale_a, scale_b = operands.scales(self.site.shard, self.config.workload, self.device)
            if scale_a.dim():
                scale_a, scale_b = scale_a[m], scale_b[:, n]
            call = engine.prepare_scaled(a_part, b_part, c_part, scale_a, scale_b)
        else:
            call = engine.prepare(a_part, b_part, c_part)
        return call

    def _over_streams(self, engine: Any, pieces: list[Piece]) -> Product:
        """The pieces dealt to the streams in turn; the first stream waits for all before what follows."""
        import torch

        assert self.collect is not None
        first, others = self.streams[0], self.streams[1:]
        forked = torch.cuda.Event()
        joined = [torch.cuda.Event() for _ in others]
        calls: list[tuple[torch.cuda.Stream, Product]] = []
        for index, (b, m, n) in enumerate(pieces):
            stream = self.streams[index % len(self.streams)]
            with torch.cuda.stream(stream):  # engines keep the stream that they are prepared on
                calls.append((stream, self._call(engine, (b, m, n))))

        def spread() -> None:
            forked.record(first)
            for stream in others:
                stream.wait_event(forked)
            for stream, call in calls:
                with torch.cuda.stream(stream):
                    call()
            for stream, event in zip(others, joined, strict=True):
                event.record(stream)
                first.wait_event(event)

        return spread


def _cut(site: Site, count: int) -> list[Piece]:
    """A shard's products: `count` pieces along the split axis (along m where that is k or none)."""
    axis = site.split if site.split in (Split.batch, Split.n) else Split.m
    everything = slice(None)
    if count == 1:
        return [(everything, everything, everything)]
    size = getattr(site.shard, axis.value).size
    cuts = [extent(size, count, index).slice for index in range(min(count, size))]
    where = (Split.batch, Split.m, Split.n).index(axis)
    return [(*[everything] * where, cut, *[everything] * (2 - where)) for cut in cuts]  # type: ignore[misc]


def _streams(config: Config, device: torch.device) -> list[torch.cuda.Stream]:
    """The streams of a device's part; none: the null stream."""
    import torch

    if device.type != "cuda":
        return []
    if config.stream is Stream.per_thread and config.streams == 1:
        return [torch.cuda.ExternalStream(2, device=device)]  # cudaStreamPerThread, a constant of the CUDA runtime
    if config.stream is Stream.default and config.streams == 1:
        return []
    return [torch.cuda.Stream(device) for _ in range(config.streams)]


def _host_copy(operand: torch.Tensor) -> torch.Tensor:
    """A copy in host memory, page-locked where a GPU will read it."""
    import torch

    source = torch.empty(operand.shape, dtype=operand.dtype, pin_memory=operand.is_cuda)
    return source.copy_(operand)
