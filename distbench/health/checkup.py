"""The part of experiment=health that all ranks do together: links and digests measured, and the verdicts put on the record."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distbench.config import Config
from distbench.health import links, verdicts
from distbench.place import Place
from distbench.unit import Unit
from distbench.world import World

if TYPE_CHECKING:
    import torch

_CHUNK = 1 << 26


@dataclass(frozen=True)
class Checkup:
    """What was measured beside the samples; the same on all ranks."""

    links: list[dict[str, Any]]
    digests: list[str]
    """Of each rank's C."""


def measured(world: World, config: Config, place: Place, units: list[Unit]) -> Checkup:
    """After the last sample, outside of any window; all ranks call it together. Raises CellFailed."""
    own = world.attempt("health", lambda: digest(_result(units[0])))
    return Checkup(links.measured(world, config, place) if world.size > 1 else [], world.gather_json(own))


def examined(told: dict[str, Any], checkup: Checkup, config: Config) -> dict[str, Any]:
    """The record with `health` and `links`. Where results differ in their bits: status wrong, and no result."""
    if told["status"] != "ok":
        return told | {"links": checkup.links}
    judged = verdicts.judged(told, checkup.links, checkup.digests, config.health, config.guard)
    told = told | {"health": judged, "links": checkup.links}
    if reason := verdicts.wrong_bits(judged):
        told |= {"status": "wrong", "reason": f"wrong result: {reason}", "result": None}
    return told


def digest(c: torch.Tensor) -> str:
    """SHA-256 of a tensor's elements in the order of its axes, by their bytes."""
    import torch

    told = hashlib.sha256()
    flat = c.contiguous().reshape(-1).view(torch.uint8)
    for first in range(0, len(flat), _CHUNK):
        told.update(flat[first : first + _CHUNK].cpu().numpy().data)
    return told.hexdigest()


def _result(unit: Unit) -> torch.Tensor:
    assert unit.collect is not None
    return unit.collect.shard if unit.collect.held is None else unit.collect.held
