"""What the fault tests saw, and the page that a full run (DISTBENCH_FAULTS=all) makes of it."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

ALL = os.environ.get("DISTBENCH_FAULTS") == "all"
SEED = int(os.environ.get("DISTBENCH_SEED") or random.SystemRandom().randrange(10**6))
"""Chooses what a run that is not full looks at; every such test prints it."""
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
KEPT = Path(__file__).parents[2] / "build" / "faults.json"
"""The rows of earlier runs: a full run may be made table by table."""
TOLD = {"ranks": 2, "kills": 2}
"""How many columns at the end of a row are what was seen; those before name the case."""
TITLES = {
    "ranks": (
        "One rank fails",
        "Three ranks over gloo run a sweep of three cells; the fault comes in rank 1 unless the fault says rank 0, in the "
        "second cell, at the stage. Every run has run.timeout_s=5; stuck has run.step_timeout_s=6 too. The end is counted "
        "from the fault until no process of the run is alive, so for slow (7 s) and exception it holds the rest of the sweep.",
        ("fault", "stage", "launcher", "what happened", "end, s"),
    ),
    "disk": ("The disk", "One process.", ("fault", "what happened")),
    "kills": (
        "Everything killed",
        "SIGKILL to every process of a sweep at random instants.",
        ("launcher", "kills", "what was left", "after resuming"),
    ),
    "words": ("The command line", "Random overrides of every key.", ("where", "tried", "what happened")),
}


def tell_row(table: str, row: tuple[str, ...]) -> None:
    """Keep a row of a full run; it takes the place of an earlier run's row of the same case."""
    if not ALL:
        return
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    known = len(TITLES[table][2]) - TOLD.get(table, 1)
    kept.setdefault(table, {})[" ".join(row[:known])] = list(row)
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps(kept))


def write_page(version: str, order: list[str]) -> None:
    """docs/reliability.md, from the rows of this full run and, for cases that it has not run, of earlier ones."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    lines = [
        "# What happens when something breaks",
        "",
        f"Written by `make test-faults` (distbench {version}); every row is a run with the real fault in it, and the tests",
        "fail where a run outlives run.timeout_s + 5 s (stuck: 12 s more; slow at the join: 7 s more; the other slow and late",
        "runs must end well), leaves a process, names nobody or loses a record. The seconds of late are from the run's start.",
    ]
    for table, (title, text, columns) in TITLES.items():
        found: dict[str, list[str]] = kept.get(table, {})
        if not found:
            continue
        keys = sorted(found, key=lambda key: order.index(key) if key in order else len(order))
        lines += ["", f"## {title}", "", text, ""]
        lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in found[key]) + " |" for key in keys]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(lines) + "\n")
