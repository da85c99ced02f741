"""Which GPU is a rank's, and who shares one: pure functions of what the ranks see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Seat:
    """A rank's GPU."""

    rank: int
    host: str
    identity: str


def index_of(local_rank: int, visible: int) -> int:
    """The visible device that a rank takes: its local rank's; where only one is visible (a GPU per task), that one.

    With fewer devices than ranks on the host they are dealt out in turn; `sharers` tells who then sits together.
    """
    return local_rank % visible


def identity(uuid: str, visible_devices: str | None, index: int) -> str:
    """What tells this device from all others. Instances of one GPU (MIG) may report that GPU's UUID: their own is what
    CUDA_VISIBLE_DEVICES names them by. `uuid` is returned for anything else."""
    tokens = [token.strip() for token in (visible_devices or "").split(",")]
    if index < len(tokens) and tokens[index].startswith("MIG-"):
        return tokens[index]
    return uuid


def sharers(seats: Sequence[Seat]) -> list[list[Seat]]:
    """The groups of ranks that are on one device; none where each rank has its own."""
    groups: dict[str, list[Seat]] = {}
    for seat in seats:
        groups.setdefault(seat.identity, []).append(seat)
    return [group for group in groups.values() if len(group) > 1]


def told(groups: Sequence[Sequence[Seat]]) -> str:
    """For a person: `ranks 0, 4 of n0 on GPU-…; …`."""
    shown = [
        f"ranks {', '.join(str(seat.rank) for seat in group[:8])}{', …' if len(group) > 8 else ''} of {group[0].host} on "
        f"{group[0].identity}"
        for group in groups[:4]
    ]
    return "; ".join(shown) + (f"; and {len(groups) - 4} more devices" if len(groups) > 4 else "")
