"""Where a cell runs: device and backend per rank, threads, and the memory there is."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from distbench import clock, cores
from distbench import devices as devices_of
from distbench.config import Backend, Config, ConfigError, Device, Drive, EngineName, Lacking
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
    parts: int
    """Shards of the problem: one per device that is driven."""
    own: list[tuple[int, torch.device]]
    """(part, device) of each part that this process drives."""
    ranks: list[dict[str, Any]]
    """Per rank: host, pid, device, device_name, device_uuid, pci, threads, affinity, clock, parts."""
    rooms: list[Room]
    """Per part."""
    notes: list[str]
    """What a person should know: a shared device, idle GPUs."""
    is_shared: bool = False
    """Whether ranks share a GPU: it takes turns, and a turn of another's may or may not lie between a rank's own events."""


def find_place(world: World, config: Config) -> Place:
    """Decide the place; all ranks call it together and get the same answer, or the same ConfigError or CellFailed."""
    world.barrier()  # no rank still holds the last cell's memory when the free bytes are read
    told = world.attempt("place", lambda: _facts_or_refusal(world, config))
    facts = world.gather_json(told)
    for fact in facts:
        if "refused" in fact:
            raise (Lacking if fact["lacking"] else ConfigError)(*fact["refused"])
    devices = {fact["kind"] for fact in facts}
    if "missing" in devices:
        bare = [str(rank) for rank, fact in enumerate(facts) if fact["kind"] == "missing"]
        where = f"no CUDA device on rank {', '.join(bare[:8])}"
        if config.device is Device.auto:  # nobody asked for a GPU by name: the engine needs one
            raise Lacking("engine", config.engine, f"computes on a GPU, and there is {where}")
        raise ConfigError("device", config.device, f"{where}: use device=cpu or auto")
    if len(devices) > 1:
        raise ConfigError("device", config.device, "some ranks have a CUDA device and some have none: use device=cpu")
    device = Device(devices.pop())
    first = 0
    for fact in facts:
        for part in fact["parts"]:
            part["part"] = first
            first += 1
    own = facts[world.rank]
    masks = [fact["affinity"] for fact in facts if fact["host"] == own["host"] for _ in fact["parts"]]
    threads = config.threads or own["omp"] or cores.share_of(own["affinity"], masks, own["quota"])
    gpus = [(rank, f["host"], part) for rank, f in enumerate(facts) for part in f["parts"] if part["device_uuid"]]
    shared = devices_of.sharers([devices_of.Seat(rank, host, part["device_uuid"]) for rank, host, part in gpus])
    # NCCL tells devices apart by their bus: instances of one GPU (MIG) are one to it.
    buses = [devices_of.Seat(rank, host, f"{part['pci']} ({host})") for rank, host, part in gpus]
    backend = _backend(config, device, devices_of.sharers(buses))
    places = _use(device, own, threads)
    actual = world.gather_ints([_threads_in_use()])
    ranks = [_rank_facts(world, rank, fact, actual[rank][0]) for rank, fact in enumerate(facts)]
    return Place(
        device,
        backend,
        threads,
        first,
        places,
        ranks,
        _rooms(facts),
        _notes(world, config, facts, device, shared),
        bool(shared),
    )


def oversubscribed(place: Place) -> bool:
    """True if some host's ranks have more threads than the cores that they may run on."""
    for host in {rank["host"] for rank in place.ranks}:
        local = [rank for rank in place.ranks if rank["host"] == host and rank["parts"]]
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


def _facts_or_refusal(world: World, config: Config) -> dict[str, Any]:
    try:
        return _facts(world, config)
    except ConfigError as error:
        return {"refused": [error.key, error.shown, error.allowed], "lacking": isinstance(error, Lacking)}


def _facts(world: World, config: Config) -> dict[str, Any]:
    """This rank's host and device. Touches CUDA only where the cell may use it."""
    member = world.members[world.rank]
    facts: dict[str, Any] = {
        "host": member.host,
        "pid": member.pid,
        "kind": "cpu",
        "affinity": cores.affinity(),
        "quota": cores.cgroup_quota(),
        "omp": cores.users_omp_threads(world.launch.launcher),
        "free": free_host_bytes(),
        "parts": [],
        "gpus": 0,
        "clock": clock.domain(),
    }
    if config.device is not Device.cpu and config.engine is not EngineName.numpy:
        import torch

        if config.engine is EngineName.cupy and find_spec("cupy") is None:
            raise Lacking("engine", config.engine, "CuPy is not installed here: pip install 'distbench[cupy]'")
        facts["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
        needs = config.device is Device.cuda or config.engine is EngineName.cupy
        facts["kind"] = "cuda" if facts["gpus"] else ("missing" if needs else "cpu")
    if facts["kind"] != "missing":
        count = facts["gpus"] or len(facts["affinity"])
        describe = _gpu if facts["gpus"] else _cpu
        facts["parts"] = [describe(index) for index in _driven(world, config, count)]
    return facts


def _driven(world: World, config: Config, count: int) -> list[int]:
    """Numbers of the devices that this process drives, of `count` (a CPU's devices are shares of its cores)."""
    numbers = config.devices
    if numbers is not None and max(numbers) >= count:
        have = f"there are {count}, 0 to {count - 1}" if count > 1 else "there is one, 0"
        raise ConfigError("devices", numbers, f"no such device here: {have}")
    if config.drive is Drive.process:
        order = numbers or list(range(count))
        return [order[devices_of.index_of(world.launch.local_rank, len(order))]]
    if not world.is_root:
        return []  # it stands aside: rank 0's process drives the devices of all
    return numbers or [rank % count for rank in range(world.size)]


def _cpu(index: int) -> dict[str, Any]:
    return {"device": "cpu", "device_name": None, "device_uuid": None, "pci": None, "capability": None, "free": 0}


def _gpu(index: int) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(index)
    return {
        "device": f"cuda:{index}",
        "device_name": properties.name,
        "device_uuid": devices_of.identity(str(properties.uuid), os.environ.get("CUDA_VISIBLE_DEVICES"), index),
        "pci": _pci(properties),
        "free": torch.cuda.mem_get_info(index)[0],
        "capability": [properties.major, properties.minor],
    }


def _pci(properties: Any) -> str:
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


def _backend(config: Config, device: Device, shared: list[list[devices_of.Seat]]) -> Backend:
    if config.backend is Backend.nccl:
        if device is not Device.cuda:
            raise ConfigError(
                "backend", config.backend, "nccl needs CUDA tensors and there is no CUDA device: use gloo"
            )
        if shared:
            raise ConfigError(
                "backend",
                config.backend,
                f"nccl refuses two ranks on one device ({devices_of.told(shared)}): use gloo or fewer ranks",
            )
    if config.backend is not Backend.auto:
        return config.backend
    return Backend.nccl if device is Device.cuda and not shared else Backend.gloo


def _use(device: Device, own: dict[str, Any], threads: int) -> list[tuple[int, torch.device]]:
    import torch

    cores.set_threads(threads)
    places = [(part["part"], torch.device(part["device"])) for part in own["parts"]]
    if device is Device.cuda and places:
        torch.cuda.set_device(places[0][1])
    return places


def _threads_in_use() -> int:
    import torch

    return torch.get_num_threads()


def _rank_facts(world: World, rank: int, fact: dict[str, Any], threads: int) -> dict[str, Any]:
    parts = fact["parts"]
    nothing = {"device": "none", "device_name": None, "device_uuid": None, "pci": None, "capability": None}
    first = parts[0] if parts else nothing
    kept = ("device", "device_name", "device_uuid", "pci", "capability")
    return {
        "rank": rank,
        "local_rank": world.members[rank].local_rank,
        "host": fact["host"],
        "pid": fact["pid"],
        **{key: first[key] for key in kept},
        "parts": [{key: part[key] for key in ("part", *kept[:-1])} for part in parts],
        "threads": threads,
        "affinity": fact["affinity"],
        "clock": fact["clock"],
    }


def _rooms(facts: list[dict[str, Any]]) -> list[Room]:
    return [
        Room(fact["host"], fact["free"], f"{part['device']} of {fact['host']}", part["free"])
        for fact in facts
        for part in fact["parts"]
    ]


def _notes(
    world: World, config: Config, facts: list[dict[str, Any]], device: Device, shared: list[list[devices_of.Seat]]
) -> list[str]:
    notes = list(world.launch.notes)
    parts = [part for fact in facts for part in fact["parts"]]
    devices = len({part["device_uuid"] for part in parts})
    if config.drive is not Drive.process:
        aside = f"; {world.size - 1} other ranks stand aside" if world.size > 1 else ""
        notes.append(f"drive={config.drive}: rank 0 drives {len(parts)} devices{aside}")
    if shared and config.drive is not Drive.process:
        notes.append(f"{len(parts)} shards share {devices} GPU{'s' * (devices > 1)}: no rate of as many GPUs")
    elif shared:
        notes.append(
            f"{world.size} ranks share {devices} GPU{'s' * (devices > 1)}: they compute in turns and talk over gloo "
            f"({devices_of.told(shared)}); this is not the rate of as many GPUs"
        )
    used = len({part["device_uuid"] for fact in facts if fact["host"] == facts[0]["host"] for part in fact["parts"]})
    if device is Device.cuda and config.drive is Drive.process and config.devices is None and used < facts[0]["gpus"]:
        every = facts[0]["gpus"]
        arguments = shlex.join(sys.argv[1:])
        notes.append(
            f"{used} of {every} GPUs used; all: torchrun --nproc_per_node={every} -m distbench {arguments}".rstrip()
        )
    return notes
