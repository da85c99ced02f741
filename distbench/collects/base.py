"""What every collect is given and offers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from distbench.config import CollectName, Config, Split
from distbench.dtypes import poison
from distbench.layout import Block, held_by, shard_of

if TYPE_CHECKING:
    import torch

    from distbench.world import World


Piece = tuple[slice, slice, slice]
"""A part of a shard: indices of its batch, m and n."""


@dataclass(frozen=True)
class Site:
    """A shard's place in the problem: pure numbers.

    A shard belongs to a device. With drive=process that is a rank, and world_size and rank are the world's; with loop and
    threads they are the number of devices and the device's number among them.
    """

    problem: Block
    split: Split
    collect: CollectName
    world_size: int
    rank: int
    on_gpu: bool = False

    @cached_property
    def shard(self) -> Block:
        return shard_of(self.problem, self.split, self.world_size, self.rank)

    @cached_property
    def held(self) -> Block | None:
        return held_by(self.problem, self.split, self.collect, self.world_size, self.rank)

    def shard_at(self, rank: int) -> Block:
        return shard_of(self.problem, self.split, self.world_size, rank)

    @cached_property
    def largest_shard(self) -> int:
        """Elements of the largest C shard: rank 0's, since extra rows go to the first ranks."""
        return self.shard_at(0).c_numel

    @cached_property
    def is_even(self) -> bool:
        return self.largest_shard == self.shard_at(self.world_size - 1).c_numel

    @cached_property
    def is_contiguous(self) -> bool:
        """True if every shard is one run of C's memory, so that a receive can go straight into it."""
        return self.split is Split.batch or (self.split is Split.m and self.problem.batch.size == 1)


@dataclass
class Means:
    """What a collect works with: the world, its data group's backend, the device and dtype of C."""

    world: World
    backend: str
    device: torch.device
    dtype: torch.dtype
    config: Config = field(default_factory=Config)

    def empty(self, *shape: int) -> torch.Tensor:
        import torch

        return torch.empty(shape, dtype=self.dtype, device=self.device)


class Collect:
    """What happens to C once it is computed. One subclass per (collect, path), of this fixed shape.

    The product is written to `shard`; `run`, the timed part, leaves C where it belongs; `held` is what this rank then
    holds of it, None if nothing. All memory is allocated in `__init__` and `connect`.
    """

    shard: torch.Tensor
    """[batch, m, n] of this rank's block: the product's out=."""
    held: torch.Tensor | None

    @staticmethod
    def elements(site: Site, config: Config) -> tuple[int, int]:
        """Elements of C's dtype that this rank allocates: (on the device, in host memory besides)."""
        raise NotImplementedError

    def __init__(self, site: Site, means: Means) -> None:
        raise NotImplementedError

    def offer(self) -> Any:
        """What the other ranks need to know before `connect` (JSON)."""
        return None

    def connect(self, offers: list[Any]) -> None:
        """All ranks' offers, in rank order."""

    def pieces(self) -> list[Piece]:
        """How the product is cut so that `after` can go on with one piece while the next is computed; []: not at all."""
        return []

    def target(self, piece: Piece) -> torch.Tensor:
        """The out= of a piece's product."""
        return self.shard[piece]

    def after(self, index: int) -> None:
        """Called, within the product, when piece `index` has been computed (on a GPU: queued)."""

    def before(self) -> None:
        """Called before each sample, outside its window."""

    def run(self) -> None:
        """The timed part."""
        raise NotImplementedError

    def notes(self) -> dict[str, object]:
        """What the record should say of how this collect set itself up."""
        return {}

    def poison(self) -> None:
        """`dtypes.poison` wherever C will be, so that a block that nobody writes shows."""
        poison(self.shard)
        if self.held is not None:
            poison(self.held)

    def close(self) -> None:
        """Give back what garbage collection does not."""
