"""Who owns what: the blocks of A, B and C per rank. Pure numbers, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from distbench.config import CollectName, Split


@dataclass(frozen=True)
class Extent:
    """Indices start … stop-1 of one axis of the whole problem."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def slice(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class Block:
    """A part of the problem: an extent on each of the four axes."""

    batch: Extent
    m: Extent
    n: Extent
    k: Extent

    @property
    def a_shape(self) -> tuple[int, int, int]:
        return (self.batch.size, self.m.size, self.k.size)

    @property
    def b_shape(self) -> tuple[int, int, int]:
        return (self.batch.size, self.k.size, self.n.size)

    @property
    def c_shape(self) -> tuple[int, int, int]:
        return (self.batch.size, self.m.size, self.n.size)

    @property
    def flop(self) -> int:
        """2·batch·m·n·k: a multiplication and an addition per term."""
        return 2 * self.batch.size * self.m.size * self.n.size * self.k.size

    @property
    def c_numel(self) -> int:
        return prod(self.c_shape)

    @property
    def c_index(self) -> tuple[slice, slice, slice]:
        """Where the block lies in C[batch, m, n]."""
        return (self.batch.slice, self.m.slice, self.n.slice)

    def sizes(self) -> dict[str, int]:
        return {"batch": self.batch.size, "m": self.m.size, "n": self.n.size, "k": self.k.size}


def extent(size: int, parts: int, owner: int) -> Extent:
    """What one owner of `size` indices over `parts` has: the first `size % parts` have one more; some may be empty."""
    small, larger = divmod(size, parts)
    start = owner * small + min(owner, larger)
    return Extent(start, start + small + (owner < larger))


def whole(batch: int, m: int, n: int, k: int) -> Block:
    """The problem as one block."""
    return Block(Extent(0, batch), Extent(0, m), Extent(0, n), Extent(0, k))


def shard_of(problem: Block, split: Split, world_size: int, rank: int) -> Block:
    """What one rank multiplies."""
    if split is Split.none:
        return problem
    axis = split.value
    parts = {name: getattr(problem, name) for name in ("batch", "m", "n", "k")}
    parts[axis] = extent(parts[axis].size, world_size, rank)
    return Block(**parts)


def held_by(problem: Block, split: Split, collect: CollectName, world_size: int, rank: int) -> Block | None:
    """What a rank holds once C is collected: the block of C and, in k, the terms that it sums. None: nothing."""
    if collect in (CollectName.gather, CollectName.reduce, CollectName.topk):
        return problem if rank == 0 else None
    if collect in (CollectName.all_gather, CollectName.all_reduce):
        return problem
    if collect is CollectName.reduce_scatter:
        return shard_of(problem, Split.m, world_size, rank)
    return shard_of(problem, split, world_size, rank)
