"""Where a cell runs: device and backend per rank, threads, and the memory there is."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from distbench import clock, cores
from distbench.config import Backend, Config, ConfigError, Device, EngineName
from distbench.plan import Room
from distbench.world import World

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Place:
    """What a cell's device, backend and threads came to, and every rank's facts."""

    device: Device
    backend: Backend
    threads: int
    torch_device: torch.device
    ranks: list[dict[str, Any]]
    """Per rank: host, pid, device, device_name, device_uuid, pci, threads, affinity, clock."""
    rooms: list[Room]
    notes: list[str]
    """What a person should know: a shared device, idle GPUs."""


def find_place(world: World, config: Config) -> Place:
    """Decide the place; all ranks call it together and get the same answer, or the same ConfigError or CellFailed."""
    world.barrier()  # no rank still holds the last cell's memory when the free bytes are read
    told = world.attempt("place", lambda: _facts(world, config))
    facts = world.gather_json(told)
    devices = {fact["kind"] for fact in facts}
    if "missing" in devices:
        bare = [str(rank) for rank, fact in enumerate(facts) if fact["kind"] == "missing"]
        raise ConfigError(
            "device", config.device, f"no CUDA device on rank {', '.join(bare[:8])}: use device=cpu or auto"
        )
    if len(devices) > 1:
        raise ConfigError("device", config.device, "some ranks have a CUDA device and some have none: use device=cpu")
    device = Device(devices.pop())
    masks = [fact["affinity"] for fact in facts]
    own = facts[world.rank]
    local = [mask for mask, fact in zip(masks, facts, strict=True) if fact["host"] == own["host"]]
    threads = config.threads or own["omp"] or cores.share_of(own["affinity"], local, own["quota"])
    shared = device is Device.cuda and len({fact["device_uuid"] for fact in facts}) < world.size
    backend = _backend(config, device, shared)
    torch_device = _use(device, own, threads)
    actual = world.gather_ints([_threads_in_use()])
    ranks = [_rank_facts(world, rank, fact, actual[rank][0]) for rank, fact in enumerate(facts)]
    return Place(device, backend, threads, torch_device, ranks, _rooms(facts), _notes(world, facts, device, shared))


def oversubscribed(place: Place) -> bool:
    """True if some host's ranks have more threads than the cores that they may run on."""
    for host in {rank["host"] for rank in place.ranks}:
        local = [rank for rank in place.ranks if rank["host"] == host]
        if sum(rank["threads"] for rank in local) > len({core for rank in local for core in rank["affinity"]}):
            return True
    return False


def free_host_bytes() -> int:
    """Memory that processes of this host can still take: what the kernel calls available, within the cgroup's limit."""
    free = psutil.virtual_memory().available
    v1_limit, v1_used = (
        cores.read(Path(f"/sys/fs/cgroup/memory/memory.{name}_in_bytes")) for name in ("limit", "usage")
    )
    if v1_limit is not None and v1_used is not None:
        free = min(free, int(v1_limit) - int(v1_used))
    for folder in cores.cgroup_folders():
        limit, used = (cores.read(folder / name) for name in ("memory.max", "memory.current"))
        if limit is None or used is None or not limit.isdecimal():
            continue
        stat = dict(line.split() for line in (cores.read(folder / "memory.stat") or "").splitlines())
        reclaimable = int(stat.get("inactive_file", 0))  # page cache that gives way
        free = min(free, int(limit) - int(used) + reclaimable)
    return max(0, free)


def _facts(world: World, config: Config) -> dict[str, Any]:
    """This rank's host and device. Touches CUDA only where the cell may use it."""
    member = world.members[world.rank]
    facts: dict[str, Any] = {
        "host": member.host,
        "pid": member.pid,
        "kind": "cpu",
        "device": "cpu",
        "device_name": None,
        "device_uuid": None,
        "pci": None,
        "affinity": cores.affinity(),
        "quota": cores.cgroup_quota(),
        "omp": cores.users_omp_threads(world.launch.launcher),
        "free": free_host_bytes(),
        "device_free": 0,
        "gpus": 0,
        "clock": clock.domain(),
    }
    if config.device is Device.cpu or config.engine is EngineName.numpy:
        return facts
    import torch

    facts["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not facts["gpus"]:
        facts["kind"] = "missing" if config.device is Device.cuda else "cpu"
        return facts
    index = world.launch.local_rank % facts["gpus"]
    properties = torch.cuda.get_device_properties(index)
    free, _ = torch.cuda.mem_get_info(index)
    facts |= {
        "kind": "cuda",
        "device": f"cuda:{index}",
        "device_name": properties.name,
        "device_uuid": str(properties.uuid),
        "pci": _pci(properties),
        "device_free": free,
    }
    return facts


def _pci(properties: Any) -> str:
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


def _backend(config: Config, device: Device, shared: bool) -> Backend:
    if config.backend is Backend.nccl:
        if device is not Device.cuda:
            raise ConfigError(
                "backend", config.backend, "nccl needs CUDA tensors and there is no CUDA device: use gloo"
            )
        if shared:
            raise ConfigError(
                "backend", config.backend, "nccl refuses two ranks on one device: use gloo or fewer ranks"
            )
    if config.backend is not Backend.auto:
        return config.backend
    return Backend.nccl if device is Device.cuda and not shared else Backend.gloo


def _use(device: Device, own: dict[str, Any], threads: int) -> torch.device:
    import torch

    cores.set_threads(threads)
    chosen = torch.device(own["device"])
    if device is Device.cuda:
        torch.cuda.set_device(chosen)
    return chosen


def _threads_in_use() -> int:
    import torch

    return torch.get_num_threads()


def _rank_facts(world: World, rank: int, fact: dict[str, Any], threads: int) -> dict[str, Any]:
    kept = ("host", "pid", "device", "device_name", "device_uuid", "pci")
    return {
        "rank": rank,
        "local_rank": world.members[rank].local_rank,
        **{key: fact[key] for key in kept},
        "threads": threads,
        "affinity": fact["affinity"],
        "clock": fact["clock"],
    }


def _rooms(facts: list[dict[str, Any]]) -> list[Room]:
    return [Room(f["host"], f["free"], f"{f['device']} of {f['host']}", f["device_free"]) for f in facts]


def _notes(world: World, facts: list[dict[str, Any]], device: Device, shared: bool) -> list[str]:
    notes = list(world.launch.notes)
    if shared:
        devices = len({fact["device_uuid"] for fact in facts})
        notes.append(
            f"{world.size} ranks share {devices} GPU{'s' * (devices > 1)}: they compute in turns and talk over gloo; "
            "this is not the rate of as many GPUs"
        )
    used = len({fact["device_uuid"] for fact in facts if fact["host"] == facts[0]["host"]})
    if device is Device.cuda and used < facts[0]["gpus"]:
        every = facts[0]["gpus"]
        arguments = shlex.join(sys.argv[1:])
        notes.append(
            f"{used} of {every} GPUs used; all: torchrun --nproc_per_node={every} -m distbench {arguments}".rstrip()
        )
    return notes
