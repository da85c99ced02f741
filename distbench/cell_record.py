"""A cell's record, put together from what is known about the cell so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distbench import anatomy, cores, record
from distbench.ceilings import store
from distbench.collects import resolve_path
from distbench.config import Drive, Path, Split, as_dict
from distbench.measure import Samples
from distbench.show.peaks import share_of_peak
from distbench.summary import samples_of

if TYPE_CHECKING:
    from distbench.cell import Cell


def of(
    cell: Cell,
    status: str,
    reason: str | None,
    samples: Samples | None = None,
    result: dict[str, Any] | None = None,
    verification: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The cell's record, whatever became of it."""
    ranks = [] if cell.place is None else [dict(rank) for rank in cell.place.ranks]
    if cell.plan is not None:
        for rank in ranks:
            rank["parts"] = [part | {"shard": cell.plan.rank(part["part"]).shard.sizes()} for part in rank["parts"]]
            rank["shard"] = _together([part["shard"] for part in rank["parts"]], cell.config.split)
    resolved = _resolved(cell)
    return {
        "schema": record.SCHEMA,
        "cell": cell.identity,
        "time": record.now(),
        "status": status,
        "reason": reason,
        "config": resolved,
        "autos": [key for key in ("path", "device", "backend") if getattr(cell.config, key).value == "auto"],
        "world": {
            "size": cell.world.size,
            "launcher": cell.world.launch.launcher,
            "backend": None if cell.place is None else str(cell.place.backend),
            "ranks": ranks,
            "notes": list(cell.world.launch.notes) if cell.place is None else cell.place.notes,
            "collect": cell.units[0].collect.notes() if cell.units and cell.units[0].collect is not None else {},
        },
        "work": None if cell.plan is None else cell.plan.work(),
        "samples": None
        if samples is None
        else samples_of(samples)
        | {"mode": vars(cell.mode)}
        # Threads, and several devices' events on one device, make phases that overlap: their sum is no device time.
        | {"phases_overlap": cell.config.drive is not Drive.process or resolved["path"] == Path.pipelined.value},
        "result": result,
        "verification": verification,
        "telemetry": cell.telemetry,
        "trace": cell.trace,
        "limits": cell.limits,
        "ceilings": cell.ceilings,
        "health": None,
        "links": None,
        "warnings": [],
        "unchecked": [],
        "environment": record.environment()
        | {"command": record.command(cell.world.launch)}
        | {"settings": cell.settings, "thread_pools": cores.thread_pools(), "torch_kernels": cores.torch_kernels()},
    }


def under_ceilings(cell: Cell, told: dict[str, Any]) -> dict[str, Any]:
    """The record with the result's share of the measured ceiling, and of the datasheet's peak. Rank 0's counts."""
    if told["status"] != "ok" or not cell.world.is_root:
        return told
    here = store.machine(told["world"]["ranks"])
    place = store.folder(cell.config.ceilings.folder)
    if cell.ceilings is not None:
        told["ceilings_kept"] = store.keep([place, cell.folder], here, cell.ceilings)
        own = {"identity": store.identity(here), "time": record.now(), "ceilings": cell.ceilings}
        told["ceiling"] = store.compared(own, told)
    else:
        told["ceiling"] = store.compared(store.kept(place, store.identity(here)), told)
    share = None if told["ceiling"] is None else told["ceiling"]["share"]
    told["result"] |= {"ceiling_share": share, "datasheet_share": share_of_peak(told)}
    told["anatomy"] = anatomy.anatomy(told)
    return told


def _resolved(cell: Cell) -> dict[str, Any]:
    """The configuration with its autos replaced by what they came to."""
    resolved: dict[str, Any] = as_dict(cell.config)
    if cell.place is not None:
        device, path = cell.place.device, resolve_path(cell.config, cell.place.device)
        resolved |= {"device": str(device), "backend": str(cell.place.backend), "path": str(path)}
    return resolved


def _together(shards: list[dict[str, int]], split: Split) -> dict[str, int]:
    """The sizes of neighbouring shards as one; of none, all zero."""
    if not shards:
        return {"batch": 0, "m": 0, "n": 0, "k": 0}
    sizes = dict(shards[0])
    if split is not Split.none:
        sizes[split.value] = sum(shard[split.value] for shard in shards)
    return sizes
