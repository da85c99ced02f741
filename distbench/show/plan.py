"""The plan, printed: integers in full, exact at any size."""

from __future__ import annotations

from distbench.cell import plan_of
from distbench.config import Config, ConfigError, Device, EngineName
from distbench.place import free_host_bytes
from distbench.plan import Plan, Room, does_not_fit
from distbench.show.units import size, work
from distbench.supports import refuse_dtype, refuse_shapes

_SHOWN = 4


def show_plan(config: Config, launched: int) -> None:
    """Print what the cell would do in a world of run.world ranks (else as many as were launched)."""
    world = config.run.world or launched
    device, free = _device_here(config)
    try:
        refuse_dtype(config, device, None)
        refuse_shapes(config, world, device)
    except ConfigError as error:
        print(f"refused: {error}")
        return
    plan = plan_of(config, world, device)
    w, p = config.workload, plan.problem
    print(f"plan of {w.name}, {world} rank{'s' * (world > 1)}, {w.dtype}, on {device}")
    print(f"  C[{w.batch}, {w.m}, {w.n}] = A[{w.batch}, {w.m}, {w.k}] · B[{w.batch}, {w.k}, {w.n}]")
    print(
        f"  split {config.split}, collect {config.collect}, path {config.path}, upload {w.upload}, layout {plan.layout}"
        + (f", padding {w.padding}" if w.padding else "")
    )
    print(
        f"  work   {plan.flop} FLOP ({work(plan.flop)})" + ("; every rank does it all" * (plan.flop_of(p) != plan.flop))
    )
    print(f"  bytes  {plan.bytes} of A, B and C ({size(plan.bytes)})")
    print("  rank        batch           m           n           k              FLOP  A, B, C, buffers (bytes)")
    shown = range(world) if world <= 2 * _SHOWN else [*range(_SHOWN), None, *range(world - _SHOWN, world)]
    for rank in shown:
        print("   …" if rank is None else _row(plan, rank))
    print(f"  besides: {plan.working_bytes} bytes a rank while filling and verifying")
    print(_fit(plan, device, free, world, launched))


def _row(plan: Plan, rank: int) -> str:
    part = plan.rank(rank)
    s = part.shard
    sizes = " ".join(f"{extent.size:>11}" for extent in (s.batch, s.m, s.n, s.k))
    return f"  {part.rank:>4} {sizes} {plan.flop_of(s):>17} {part.device_bytes + part.host_bytes:>28}"


def _device_here(config: Config) -> tuple[Device, int]:
    """The kind of device a cell would use on this machine, and its free memory in bytes (0 on a CPU)."""
    if config.device is Device.cpu or config.engine is EngineName.numpy:
        return Device.cpu, 0
    import torch

    if torch.cuda.is_available():
        return Device.cuda, torch.cuda.mem_get_info(0)[0]
    return (Device.cpu, 0) if config.device is Device.auto else (Device.cuda, 0)


def _fit(plan: Plan, device: Device, free: int, world: int, launched: int) -> str:
    """Whether it fits: all ranks on this host where the world is the launched one, else one rank on a host like this."""
    host_free = free_host_bytes()
    if device is Device.cuda and not free:
        return "  memory not judged: no CUDA device here"
    if world == launched:
        rooms = [Room("this host", host_free, f"GPU {rank}", free) for rank in range(world)]
        shortage = does_not_fit(plan, rooms, device is Device.cpu)
        return f"  does not fit: {shortage}" if shortage else "  fits in this host's memory"
    # Other hosts are unknown: each rank is judged alone, in a world of this size.
    rooms = [Room(f"host of rank {rank}", host_free, f"GPU of rank {rank}", free) for rank in range(world)]
    shortage = does_not_fit(plan, rooms, device is Device.cpu)
    if shortage:
        return f"  does not fit on a host like this one: {shortage}"
    largest = plan.rank(0)
    per_host = max(
        1,
        host_free // (plan.working_bytes + largest.host_bytes + (largest.device_bytes if device is Device.cpu else 0)),
    )
    return f"  fits: a host like this one has memory for {min(per_host, world)} of these ranks"
