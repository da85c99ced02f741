"""Which cells of two sets of runs are the same measurement, and which only look like it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from distbench.show.runs import Record, Run, label_of, per_rank, settings_of

_MOST_DIFFERENCES = 2
"""Cells that differ in more keys than this are not a pair that someone meant."""


@dataclass(frozen=True)
class Launch:
    """One launch of a cell: a run's record, its samples read in."""

    item: Record
    samples: dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """The launches of one cell on both sides."""

    base: list[Launch]
    new: list[Launch]
    differences: tuple[str, ...] = ()
    """`key: base's value against new's`, where they are not the same measurement."""


@dataclass
class Pairing:
    """All cells, each in one place."""

    pairs: list[Pair] = field(default_factory=list)
    refused: list[Pair] = field(default_factory=list)
    only_base: list[Launch] = field(default_factory=list)
    only_new: list[Launch] = field(default_factory=list)


def pair(base: list[Run], new: list[Run], allowed: set[str], force: bool = False) -> Pairing:
    """Pair cells whose settings agree in everything but `allowed`; the run and how long was measured do not matter.

    What is left over and differs in one or two keys is refused, saying which; with `force` it is paired all the same.
    Several launches of one cell, in one run (`repeat`) or in several, are its repeats.
    """
    olds, news = _cells(base, allowed), _cells(new, allowed)
    found = Pairing()
    for key in [key for key in olds if key in news]:
        each = Pair(olds.pop(key), news.pop(key))
        came_to = [
            (name, of(each.base), of(each.new)) for name, of in _CAME_TO.items() if not _is_allowed(name, allowed)
        ]
        differences = tuple(
            f"{name}: {' and '.join(old)} against {' and '.join(now)}"
            for name, old, now in came_to
            if old and now and old != now
        )
        (found.refused if differences and not force else found.pairs).append(Pair(each.base, each.new, differences))
    for key, launches in list(olds.items()):
        near = [(len(different), other) for other in news if (different := _differing(key, other))]
        if not near or min(near)[0] > _MOST_DIFFERENCES:
            found.only_base += launches
            continue
        other = min(near)[1]
        told = tuple(f"{name}: {old} against {now}" for name, old, now in _differing(key, other))
        (found.pairs if force else found.refused).append(Pair(launches, news.pop(other), told))
    found.only_new += [launch for launches in news.values() for launch in launches]
    return found


Key = tuple[tuple[str, str], ...]


def _cells(runs: list[Run], allowed: set[str]) -> dict[Key, list[Launch]]:
    cells: dict[Key, list[Launch]] = {}
    for run in runs:
        for item in run.records:
            told = {name: str(value) for name, value in settings_of(item).items() if not _is_allowed(name, allowed)}
            cells.setdefault(tuple(sorted(told.items())), []).append(Launch(item, per_rank(run, item)))
    return cells


def _starts(launches: list[Launch]) -> list[str]:
    """How samples were started, where ranks wait for each other; empty for one rank, or where nothing was measured."""
    told = {
        str(launch.samples.get("start")) for launch in launches if launch.samples and launch.item["world"]["size"] > 1
    }
    return sorted(told)


def _layouts(launches: list[Launch]) -> list[str]:
    """What workload.layout came to, where the cell got so far: another version may choose another for auto."""
    return sorted({layout for launch in launches if (layout := (launch.item.get("work") or {}).get("layout"))})


_CAME_TO = {"start": _starts, "workload.layout": _layouts}
"""What the configuration leaves open, and must agree where both sides tell."""


def _is_allowed(name: str, allowed: set[str]) -> bool:
    return name in allowed or name.rpartition(".")[2] in allowed


def _differing(key: Key, other: Key) -> list[tuple[str, str, str]]:
    """(name, this key's value, the other's) where they differ; a name that one lacks is a difference too."""
    old, now = dict(key), dict(other)
    return [
        (name, old.get(name, "absent"), now.get(name, "absent"))
        for name in sorted(old.keys() | now.keys())
        if old.get(name) != now.get(name)
    ]


def name_of(launch: Launch, keys: list[str]) -> str:
    return label_of(launch.item, keys)
