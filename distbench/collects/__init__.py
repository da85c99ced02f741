"""Collects: what happens to C. One table of (collect, path); a collect is one small class of fixed shape."""

from __future__ import annotations

from distbench.collects.base import Collect
from distbench.collects.gather import AllGather, Gather
from distbench.collects.p2p import AllGatherP2P, GatherP2P
from distbench.collects.reduce import AllReduce, Reduce, ReduceScatter
from distbench.collects.resident import InPlace, Pinned
from distbench.collects.shared import Shared
from distbench.config import CollectName, Device, Path

TABLE: dict[tuple[CollectName, Path], type[Collect]] = {
    (CollectName.none, Path.in_place): InPlace,
    (CollectName.host, Path.in_place): InPlace,
    (CollectName.host, Path.pinned): Pinned,
    (CollectName.host, Path.shared): Shared,
    (CollectName.gather, Path.collective): Gather,
    (CollectName.gather, Path.p2p): GatherP2P,
    (CollectName.gather, Path.shared): Shared,
    (CollectName.all_gather, Path.collective): AllGather,
    (CollectName.all_gather, Path.p2p): AllGatherP2P,
    (CollectName.all_gather, Path.shared): Shared,
    (CollectName.reduce, Path.collective): Reduce,
    (CollectName.all_reduce, Path.collective): AllReduce,
    (CollectName.reduce_scatter, Path.collective): ReduceScatter,
}


def resolve_path(collect: CollectName, path: Path, device: Device) -> Path:
    """What path=auto stands for: the collective for what is named after one, the fastest for host."""
    if path is not Path.auto:
        return path
    if collect is CollectName.none:
        return Path.in_place
    if collect is CollectName.host:
        return Path.pinned if device is Device.cuda else Path.in_place
    return Path.collective
