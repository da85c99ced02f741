"""Collects: what happens to C. One table of (collect, path); a collect is one small class of fixed shape."""

from __future__ import annotations

from distbench.collects.base import Collect
from distbench.collects.gather import AllGather, Gather
from distbench.collects.host import Fresh, Pageable, Pinned, Pipelined
from distbench.collects.p2p import AllGatherP2P, GatherP2P
from distbench.collects.reduce import AllReduce, Reduce, ReduceScatter
from distbench.collects.resident import InPlace
from distbench.collects.shared import Shared
from distbench.collects.topk import TopK
from distbench.config import CollectName, Config, Device, Path

TABLE: dict[tuple[CollectName, Path], type[Collect]] = {
    (CollectName.none, Path.in_place): InPlace,
    (CollectName.host, Path.in_place): InPlace,
    (CollectName.host, Path.fresh): Fresh,
    (CollectName.host, Path.pageable): Pageable,
    (CollectName.host, Path.pinned): Pinned,
    (CollectName.host, Path.pipelined): Pipelined,
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
    (CollectName.topk, Path.collective): TopK,
}


def resolve_path(config: Config, device: Device) -> Path:
    """What path=auto stands for: the collective for what is named after one, the fastest for host."""
    if config.path is not Path.auto:
        return config.path
    if config.collect is CollectName.none:
        return Path.in_place
    if config.collect is not CollectName.host:
        return Path.collective
    if device is not Device.cuda:
        return Path.in_place
    return Path.pipelined if config.shards_per_device == 1 else Path.pinned
