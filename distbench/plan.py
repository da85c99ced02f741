"""The plan of a cell: shards, FLOP, bytes and memory, before anything is allocated. Pure numbers, exact at any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from distbench.config import (
    Backend,
    CollectName,
    Config,
    ConfigError,
    Device,
    DType,
    Fill,
    Lacking,
    Layout,
    Path,
    Split,
    Stream,
    Upload,
)
from distbench.dtypes import FACTS, DTypeFacts, of_operand
from distbench.layout import Block, shard_of, whole
from distbench.operands import layout_of, stored_shapes

Elements = Callable[[Block, int], tuple[int, int]]
"""(problem, rank) → elements of C's dtype that the collect allocates: on the device, in host memory besides."""

_BUFFER_BYTES = 256 * 2**20
"""Per rank: the buffers of fill and verification."""
_ROW_BYTES = 64
"""Per row of the whole C: the verification's float64 vectors and their temporaries."""


@dataclass(frozen=True)
class RankPlan:
    """What one rank owns and needs."""

    rank: int
    shard: Block
    device_bytes: int
    """A, B, C and the collect's buffers, on the device that computes."""
    host_bytes: int
    """In host memory besides (on the CPU the device's bytes are host memory too)."""


@dataclass(frozen=True)
class Plan:
    """What a cell will do."""

    problem: Block
    split: Split
    dtype: DType
    layout: Layout
    padding: int
    upload: Upload
    world_size: int
    elements: Elements

    @property
    def flop(self) -> int:
        """2·batch·m·n·k of the whole problem, 8· for complex; with split=none every rank does it, so times the world."""
        return self.flop_of(self.problem) * (self.world_size if self.split is Split.none else 1)

    def flop_of(self, block: Block) -> int:
        """Real operations of a block's product."""
        return block.flop // 2 * self.facts.flop_per_term

    @property
    def facts(self) -> DTypeFacts:
        return FACTS[self.dtype]

    @property
    def bytes(self) -> int:
        """A, B and C of the whole problem, each once: the least that must be read and written."""
        problem = self.problem
        return self.facts.itemsize * (prod(problem.a_shape) + prod(problem.b_shape)) + self.c_bytes

    def work(self) -> dict[str, object]:
        """The record's `work`: what is computed, and how."""
        return {
            "flop": self.flop,
            "bytes": self.bytes,
            "flop_per_term": self.facts.flop_per_term,
            "stored_dtype": self.facts.name,
            "stored_dtype_b": FACTS[of_operand(self.dtype, "b")].name,
            "c_dtype": self.facts.c_name,
            "accumulate": self.facts.accumulate,
            "layout": str(self.layout),
        }

    @property
    def c_bytes(self) -> int:
        return self.facts.c_itemsize * prod(self.problem.c_shape)

    @property
    def working_bytes(self) -> int:
        """Host memory per rank, and device memory too on a GPU, while filling and verifying."""
        return _BUFFER_BYTES + _ROW_BYTES * self.problem.batch.size * self.problem.m.size

    def rank(self, rank: int) -> RankPlan:
        """One rank's part."""
        shard = shard_of(self.problem, self.split, self.world_size, rank)
        on_device, on_host = self.elements(self.problem, rank)
        a, b = (prod(shape) for shape in stored_shapes(shard, self.layout, self.padding))
        sources = {Upload.none: 0, Upload.b: b, Upload.ab: a + b}[self.upload]
        return RankPlan(
            rank=rank,
            shard=shard,
            device_bytes=self.facts.itemsize * (a + b) + self.facts.c_itemsize * on_device,
            host_bytes=self.facts.itemsize * sources + self.facts.c_itemsize * on_host,
        )

    def sized(self, axis: str, size: int) -> Plan:
        """The same plan with another size on one axis."""
        sizes = self.problem.sizes() | {axis: size}
        return replace(self, problem=whole(**sizes))


def make_plan(config: Config, world_size: int, elements: Elements) -> Plan:
    """The plan of a checked configuration."""
    w = config.workload
    problem = whole(int(w.batch), int(w.m), int(w.n), int(w.k))
    return Plan(problem, config.split, w.dtype, layout_of(w), w.padding, w.upload, world_size, elements)


def largest_that_fits(plan: Plan, fits: Callable[[Plan], bool]) -> tuple[str, int]:
    """(axis, size): how large the split axis (m where nothing is split) could be. Size 0: not even 1 fits.

    Even shards may need less than slightly smaller uneven ones, which a collective pads and unpacks: memory grows with
    the size only among the multiples of the world size and among the others, so the multiples are searched apart.
    """
    axis = plan.split.value if plan.split is not Split.none else "m"
    size = getattr(plan.problem, axis).size
    return axis, max(_largest_multiple(step, size // step, axis, plan, fits) for step in {1, plan.world_size})


def _largest_multiple(step: int, most: int, axis: str, plan: Plan, fits: Callable[[Plan], bool]) -> int:
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(plan.sized(axis, middle * step)):
            low = middle
        else:
            high = middle - 1
    return low * step


@dataclass(frozen=True)
class Room:
    """Memory that a rank can have: its host's (shared with the host's other ranks) and its device's."""

    host: str
    host_free: int
    device: str
    """Names the device among all hosts; ranks that share a device share its memory. The host itself for a CPU."""
    device_free: int


def does_not_fit(plan: Plan, rooms: list[Room], on_cpu: bool) -> str | None:
    """None if every host and device has room for its ranks, else what lacks and the largest size that would fit."""
    short = _shortage(plan, rooms, on_cpu)
    if short is None:
        return None
    axis, size = largest_that_fits(plan, lambda smaller: _shortage(smaller, rooms, on_cpu) is None)
    hint = f"the largest {axis} that fits is {size}" if size else f"not even {axis}=1 fits"
    return f"{short}; {hint}"


def _shortage(plan: Plan, rooms: list[Room], on_cpu: bool) -> str | None:
    needs: dict[str, int] = {}
    free: dict[str, int] = {}
    for rank, room in enumerate(rooms):
        part = plan.rank(rank)
        for place, need, have in (
            (room.host, part.host_bytes + (part.device_bytes if on_cpu else 0) + plan.working_bytes, room.host_free),
            (room.device, 0 if on_cpu else part.device_bytes + plan.working_bytes, room.device_free),
        ):
            needs[place] = needs.get(place, 0) + need
            free[place] = min(have, free.get(place, have))
    for place, need in needs.items():
        if need > free[place]:
            return f"needs {need / 1e9:.2f} GB on {place}, where {free[place] / 1e9:.2f} GB are free"
    return None


def refuse_path(config: Config, hosts: int, device: Device, backend: Backend) -> None:
    """What a path cannot do where the ranks are. Raises ConfigError."""
    on_gpu = device is Device.cuda
    if config.path is Path.shared and hosts > 1:
        raise ConfigError(
            "path", config.path, f"one host's ranks only, and there are {hosts} hosts: use p2p or collective"
        )
    if config.path is Path.p2p and on_gpu and backend is Backend.gloo:
        raise ConfigError("path", config.path, "gloo sends and receives host memory only: use collective or shared")
    if config.path in (Path.pinned, Path.pipelined) and not on_gpu:
        raise Lacking("path", config.path, "page-locked memory is for copies from a GPU: use in_place or shared")
    if (config.streams > 1 or config.stream is not Stream.default) and not on_gpu:
        key, value = ("streams", config.streams) if config.streams > 1 else ("stream", config.stream)
        raise Lacking(key, value, "streams are a GPU's, and there is none here")
    if config.collect is CollectName.host and config.path is Path.in_place and on_gpu:
        raise ConfigError("path", config.path, "C is in the GPU's memory, not the host's: use pinned or shared")


def fill_is_exact(fill: Fill, k: int, significand_bits: int, largest: int) -> bool:
    """True if every partial sum of the product is a whole number that the dtype holds exactly."""
    return fill is Fill.zeros or (fill is Fill.integer and k * largest * largest <= 2**significand_bits)
