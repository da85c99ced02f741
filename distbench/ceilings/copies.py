"""Copies: within memory, between host and device, both directions at once, and between devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from distbench.ceilings.rows import Budget, Row, repeated, together
from distbench.config import Config, Device
from distbench.pagelock import PageLock
from distbench.place import Place
from distbench.world import World

CPU_BYTES = 1 << 27
LINK_BYTES = 1 << 28
GPU_BYTES = 1 << 29  # far beyond any L2
_COPIES_ON_GPU = 10  # before each synchronise, which takes as long as some percent of one


def copies(world: World, config: Config, place: Place, budget: Budget) -> Iterator[Row]:
    """GB/s. Within one memory, bytes read and bytes written both count, as STREAM counts them; over a link, those moved."""
    on_gpu = place.device is Device.cuda
    device = place.own[0][1]
    longest_s = min(1.0, budget.left_s() / 8)
    yield _within(world, place, device, GPU_BYTES if on_gpu else CPU_BYTES, longest_s)
    if on_gpu:
        yield from _links(world, device, longest_s)
        yield from _peers(world, longest_s)


def _within(world: World, place: Place, device: torch.device, count: int, longest_s: float) -> Row:
    source, target = world.attempt("ceilings", lambda: (pattern(count, device), empty(count, device)))
    several = 1 if device.type == "cpu" else _COPIES_ON_GPU

    def copy() -> None:
        for _ in range(several):
            target.copy_(source)

    seconds = [value / several for value in repeated(world, _synced(device, copy), longest_s)]
    world.attempt("ceilings", lambda: same(source, target))
    row = Row("memory copy", "GB/s", bytes=count, ranks=world.size, per="host" if device.type == "cpu" else "device")
    row.verified, row.threads = True, place.threads if device.type == "cpu" else None
    return row.rated(2 * count * together(place.ranks) / 1e9, seconds)


def _links(world: World, device: torch.device, longest_s: float) -> Iterator[Row]:
    """Host and device, in pageable and in page-locked memory; each direction alone, then both at once."""
    count = LINK_BYTES
    there, back = world.attempt("ceilings", lambda: (pattern(count, device), empty(count, device)))
    for kind in ("pageable", "pinned"):
        host, other = world.attempt(
            "ceilings", lambda: (pattern(count, torch.device("cpu")), empty(count, torch.device("cpu")))
        )
        locks = world.attempt("ceilings", partial(_locked, [host, other])) if kind == "pinned" else []
        back.zero_()  # what the last kind brought must not pass for this one's
        host.copy_(pattern(count, torch.device("cpu")))  # locking touches, that is writes, every page
        try:
            up = _synced(device, partial(back.copy_, host, non_blocking=True))
            down = _synced(device, partial(other.copy_, there, non_blocking=True))
            for name, work, pair in (("host to device", up, (host, back)), ("device to host", down, (there, other))):
                seconds = repeated(world, work, longest_s)
                world.attempt("ceilings", partial(same, *pair))
                row = Row(f"{name}, {kind}", "GB/s", bytes=count, ranks=world.size, verified=True)
                yield row.rated(count / 1e9, seconds)
            if kind == "pinned":
                seconds = repeated(world, _both(device, (back, host), (other, there)), longest_s)
                world.attempt("ceilings", partial(same, host, back))
                world.attempt("ceilings", partial(same, there, other))
                row = Row("both directions, pinned", "GB/s", bytes=2 * count, ranks=world.size, verified=True)
                yield row.rated(2 * count / 1e9, seconds)
        finally:
            for lock in locks:
                lock.release()


def _locked(hosts: list[torch.Tensor]) -> list[PageLock]:
    return [PageLock(host) for host in hosts]


def _peers(world: World, longest_s: float) -> Iterator[Row]:
    """From device 0 to device 1 of rank 0's host, by rank 0; the others wait."""
    count = LINK_BYTES
    visible = torch.cuda.device_count()
    has_peer = visible > 1 and torch.cuda.can_device_access_peer(0, 1)
    (has_peer_there,) = world.broadcast_ints([int(has_peer)])
    if not has_peer_there:
        yield Row("peer to peer", "GB/s", reason="rank 0 sees no second device that it can reach directly")
        return
    if world.is_root:
        source, target = pattern(count, torch.device("cuda:0")), empty(count, torch.device("cuda:1"))

    def work() -> None:
        if world.is_root:
            target.copy_(source)
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)

    seconds = repeated(world, work, longest_s)
    world.attempt("ceilings", lambda: same(source.cpu(), target.cpu()) if world.is_root else None)
    yield Row("peer to peer", "GB/s", bytes=count, per="pair", verified=True).rated(count / 1e9, seconds)


def _both(
    device: torch.device, up: tuple[torch.Tensor, torch.Tensor], down: tuple[torch.Tensor, torch.Tensor]
) -> Callable[[], None]:
    first, second = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def work() -> None:
        for stream, (target, source) in ((first, up), (second, down)):
            with torch.cuda.stream(stream):
                target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)

    return work


def _synced(device: torch.device, copy: Callable[[], object]) -> Callable[[], object]:
    if device.type == "cpu":
        return copy

    def work() -> None:
        copy()
        torch.cuda.synchronize(device)

    return work


def pattern(count: int, device: torch.device) -> torch.Tensor:
    """Bytes that differ from place to place: 251 is prime, so that no shift by a power of two goes unseen."""
    return torch.arange(251, dtype=torch.uint8, device=device).repeat(-(-count // 251))[:count]


def empty(count: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.uint8, device=device)  # touched: page faults are no copy's


def same(source: torch.Tensor, target: torch.Tensor) -> None:
    if not torch.equal(source.cpu(), target.cpu()):
        raise ValueError("a copy differs from what was copied")
