"""Runs that were recorded, as the verbs read them: from a folder or a results file, without torch."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from distbench import record
from distbench.config import Config, as_dict

Record = dict[str, Any]


class Unusable(Exception):
    """What was named holds no records that can be used. The message is one line for a person."""


@dataclass(frozen=True)
class Run:
    """The records of one launch, in order."""

    name: str
    path: Path
    """The results file."""
    records: list[Record]


def refusing(work: Callable[[], int]) -> int:
    """`work()`, with what is unusable as one line on stderr and exit status 2."""
    try:
        return work()
    except Unusable as error:
        print(f"distbench: {error}", file=sys.stderr)
        return 2


def load(named: list[Path]) -> list[Run]:
    """Every run under the folders and files named. Raises Unusable where one holds none."""
    return [_read(file) for path in named for file in results_files(path)]


def results_files(path: Path) -> list[Path]:
    """The file itself, a run's folder's results.jsonl, those of the runs below a folder, or the folder's own *.jsonl."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise Unusable(f"{path}: no such file or folder; name a run's folder or its {record.RESULTS}{_nearest(path)}")
    own = path / record.RESULTS
    below = [own] if own.is_file() else sorted(path.rglob(record.RESULTS)) or sorted(path.glob("*.jsonl"))
    if not below:
        raise Unusable(f"{path}: no {record.RESULTS} in it or below it; name a run's folder or its results file")
    return below


def _nearest(path: Path) -> str:
    """What lies where the path fails, so that a slip of the finger is seen."""
    import difflib

    parent = path.parent
    if not parent.is_dir():
        return ""
    close = difflib.get_close_matches(path.name, [entry.name for entry in parent.iterdir()], n=1)
    return f"; did you mean {parent / close[0]}?" if close else ""


def _read(path: Path) -> Run:
    try:
        found = record.read(path)
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}; name a run's folder or its results file") from None
    if not found:
        raise Unusable(f"{path}: no records in it; name a run's folder or its {record.RESULTS}")
    for item in found:
        _check(item, path)
    return Run(path.parent.name if path.name == record.RESULTS else path.stem, path, found)


def _check(item: Record, path: Path) -> None:
    """A record of this schema, as far as the verbs look. Raises Unusable."""
    if item.get("schema") != record.SCHEMA:
        raise Unusable(
            f"{path}: a record of schema {item.get('schema')}, and this distbench reads schema {record.SCHEMA}"
        )
    groups = ("config", "world", "environment")
    if not all(isinstance(item.get(name), dict) for name in groups) or not isinstance(
        item["config"].get("workload"), dict
    ):
        raise Unusable(f"{path}: the record of cell {item['cell']} lacks {', '.join(groups)} or a workload")
    if item.get("status") == "ok" and not (item.get("result") and item.get("samples") and item.get("work")):
        raise Unusable(f"{path}: the record of cell {item['cell']} is ok but has no result or no samples")


def per_rank(run: Run, item: Record) -> dict[str, Any]:
    """The cell's samples with what it keeps per rank, read from the file beside the results where it lies there.

    Raises nothing for a file that is gone or broken: what it held is then absent.
    """
    samples: dict[str, Any] = item["samples"] or {}
    name = samples.get("file")
    if not isinstance(name, str) or Path(name).name != name:  # only beside the results, wherever the record points
        return samples
    try:
        beside = json.loads((run.path.parent / name).read_text("utf-8"))
    except (OSError, ValueError):
        return samples
    return samples | beside if isinstance(beside, dict) else samples


def flat(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The configuration as (dotted key, value)."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


_FOLLOWS = ("upload", "path", "device", "backend", "threads", "drive")
"""Keys that often follow from the others (a path from its collect): not named where they do."""
_NOT_WHAT = re.compile(
    r"(run|guard|peak|ceilings)\.|measure\.(?!(mode|settle|cache|graph|inner)$)|health\.(?!check$)|workload\.(name|seed)$"
)
"""How often and how long was measured, and what judges a result; the state in which it was measured is a part of what."""


@cache
def _defaults() -> tuple[tuple[str, Any], ...]:
    """What a record that is older than a key was measured with."""
    return tuple(flat(as_dict(Config())))


def settings_of(item: Record) -> dict[str, Any]:
    """What is measured, by dotted key: the configuration less how it is run and sampled, the world, the start."""
    config = item["config"] | {"workload": workload_of(item)}
    told = {key: value for key, value in (*_defaults(), *flat(config)) if not _NOT_WHAT.match(key)}
    return told | {"world": item["world"]["size"]}


def workload_of(item: Record) -> dict[str, Any]:
    """The workload; in the record of a refused cell a size may still say `${workload.n}`, which is looked up."""
    told: dict[str, Any] = item["config"]["workload"]
    refers = {
        key: re.fullmatch(r"\$\{workload\.(\w+)\}", value) for key, value in told.items() if isinstance(value, str)
    }
    return told | {key: told.get(found[1], told[key]) for key, found in refers.items() if found}


def shape_of(item: Record) -> str:
    """`square 1024 x 1024 x 1024` (m, n, k), with a batch in front where there is one."""
    w = workload_of(item)
    batch = f"{w.get('batch')} x " if w.get("batch", 1) != 1 else ""
    return f"{w.get('name', '?')} {batch}{w.get('m')} x {w.get('n')} x {w.get('k')}"


def varying(items: list[Record]) -> list[str]:
    """The keys of `settings_of` whose values differ among the records, in order, less those that follow from others."""
    told = [settings_of(item) for item in items]
    seen: dict[str, set[str]] = {}
    for settings in told:
        for key, value in settings.items():
            seen.setdefault(key, set()).add(repr(value))
    keys = [key for key, values in seen.items() if len(values) > 1 or not all(key in settings for settings in told)]
    for key in [key for key in keys if key.rpartition(".")[2] in _FOLLOWS]:
        others = [other for other in keys if other != key]
        values_by: dict[str, set[str]] = {}
        for settings in told:
            values_by.setdefault(repr([settings.get(other) for other in others]), set()).add(repr(settings.get(key)))
        if all(len(values) == 1 for values in values_by.values()):
            keys = others
    return keys


def named(run: Run) -> list[tuple[Record, str]]:
    """Each record with what tells it from the others of its run."""
    keys = varying([item for item in run.records if item["status"] == "ok"])
    return [(item, label_of(item, keys) if keys else shape_of(item)) for item in run.records]


def named_together(runs: list[Run]) -> list[tuple[Run, Record, str]]:
    """`named` over runs, with the run's name in front where there are several."""
    several = len(runs) > 1
    return [(run, item, f"{run.name}: {name}" if several else name) for run in runs for item, name in named(run)]


def label_of(item: Record, keys: list[str]) -> str:
    """What tells a record from the others: its values of the keys; a square's three sizes as one."""
    told = settings_of(item)
    sizes = ["workload.m", "workload.n", "workload.k"]
    words = []
    if any(key in keys for key in sizes):
        m, n, k = (told.get(key) for key in sizes)
        words.append(f"n={n}" if m == n == k else f"{m} x {n} x {k}")
    for key in keys:
        if key not in sizes and told.get(key) is not None:
            value = told[key]
            name = key.rpartition(".")[2]
            words.append(f"{value}" if isinstance(value, str) else f"{name}={value}")
    return ", ".join(words) or shape_of(item)
