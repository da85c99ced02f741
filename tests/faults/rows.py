"""What the fault tests saw, and the page that a full run (DISTBENCH_FAULTS=all) makes of it."""

from __future__ import annotations

import os
import random
from pathlib import Path

ALL = os.environ.get("DISTBENCH_FAULTS") == "all"
SEED = int(os.environ.get("DISTBENCH_SEED") or random.SystemRandom().randrange(10**6))
"""Chooses what a run that is not full looks at; every such test prints it."""
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
ROWS: dict[str, list[tuple[str, ...]]] = {}
TITLES = {
    "ranks": (
        "One rank fails",
        "Three ranks over gloo run a sweep of three cells; the fault comes in rank 1 unless the fault says rank 0, in the "
        "second cell, at the stage. Every run has run.timeout_s=5; stuck has run.step_timeout_s=3 too. The end is counted "
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
    ROWS.setdefault(table, []).append(row)


def write_page(version: str) -> None:
    """docs/reliability.md, from the rows of this session."""
    lines = [
        "# What happens when something breaks",
        "",
        f"Written by `make test-faults` (distbench {version}); every row is a run with the real fault in it, and the tests",
        "fail where a run outlives run.timeout_s + 5 s, leaves a process, names nobody or loses a record.",
    ]
    for table, (title, text, columns) in TITLES.items():
        if table in ROWS:
            lines += ["", f"## {title}", "", text, ""]
            lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
            lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in ROWS[table]]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(lines) + "\n")
