"""The data group's collectives over sizes, with the bandwidths that nccl-tests defines (its PERFORMANCE.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from distbench.ceilings.rows import Budget, Row, repeated
from distbench.config import Config, Device
from distbench.place import Place
from distbench.shims import all_gather_into, reduce_scatter_into
from distbench.world import World

_SIZES = (1 << 12, 1 << 18, 1 << 24)
_LARGEST_ON_GPU = 1 << 28
_LARGE = 1 << 16

FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda p: 2 * (p - 1) / p,
    "all_gather": lambda p: (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "gather": lambda p: (p - 1) / p,
    "reduce": lambda p: 1.0,
    "broadcast": lambda p: 1.0,
}
"""busbw ÷ algbw in a group of p ranks; algbw is bytes ÷ time, with the bytes of the whole (all ranks' parts) where there
are parts."""


def collectives(world: World, config: Config, place: Place, budget: Budget) -> Iterator[Row]:
    """GB/s (algbw) of the slowest rank's time, float32; nothing in a world of one."""
    if world.size == 1:
        return
    device = place.own[0][1]
    sizes = (*_SIZES, _LARGEST_ON_GPU) if place.device is Device.cuda else _SIZES
    longest_s = max(0.05, budget.left_s() / (len(sizes) * len(FACTORS)))
    for wanted in sizes:
        for name in FACTORS:
            yield collective_row(world, str(place.backend), device, name, wanted, longest_s)


def collective_row(world: World, backend: str, device: torch.device, name: str, wanted: int, longest_s: float) -> Row:
    p = world.size
    part = max(1, wanted // 4 // p)
    count = part * p
    row = Row(name, "GB/s", dtype="float32", bytes=4 * count, ranks=p, per="group")
    own = torch.full((part,), float(world.rank + 1), device=device)
    whole = torch.zeros(count, device=device)
    call, prepare = _call(world, backend, name, own, whole)
    inner = 1 if wanted > _LARGE else 10

    def work() -> None:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    row.rated(4 * count / 1e9, repeated(world, work, longest_s, inner))
    assert row.value is not None
    row.busbw = row.value * FACTORS[name](p)
    world.attempt("ceilings", prepare)
    world.attempt("ceilings", work)
    world.attempt("ceilings", lambda: _check(world, name, own, whole))
    row.verified = True
    return row


def _call(
    world: World, backend: str, name: str, own: torch.Tensor, whole: torch.Tensor
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """(the operation, what gives its operands their first values again: sums grow with each repetition)."""
    slots = list(whole.view(world.size, -1).unbind(0)) if world.is_root else None

    def group() -> Any:
        return world.data(backend)

    def first_values() -> None:
        own.fill_(world.rank + 1)
        # zeros let sums stay finite over the repetitions; what is checked afterwards starts from ranks' own numbers
        whole.fill_(0 if name in ("gather", "all_gather") else world.rank + 1)

    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group()),
        "all_gather": lambda: all_gather_into(whole, own, group()),
        "reduce_scatter": lambda: reduce_scatter_into(own, whole, group()),
        "gather": lambda: dist.gather(own, slots, dst=0, group=group()),
        "reduce": lambda: dist.reduce(whole, 0, group=group()),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group()),
    }
    return calls[name], first_values


def _check(world: World, name: str, own: torch.Tensor, whole: torch.Tensor) -> None:
    p = world.size
    total = torch.tensor(float(p * (p + 1) // 2))
    parts = torch.arange(1.0, p + 1).repeat_interleave(own.numel())
    if name == "reduce_scatter":
        told, expected = own.cpu(), total.expand(own.numel())
    elif name in ("reduce", "gather") and not world.is_root:
        return
    else:
        told = whole.cpu()
        expected = {"broadcast": torch.ones(()), "gather": parts, "all_gather": parts}.get(name, total).expand(
            len(told)
        )
    if not torch.equal(told, expected):
        raise ValueError(f"{name} of {4 * whole.numel()} bytes brought wrong numbers")
