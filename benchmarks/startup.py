"""What starting costs: the way to the first cell's fill, and the way from cell to cell of a sweep.

start   From the start of torchrun to rank 0's first fill (square n=64), against a bare script under torchrun that imports
        torch and joins the same gloo world; 2 and 3 ranks.
sweep   20 cells of square n=64 (measure=quick), against the same sweep of an empty job under Hydra's own launcher. What a
        cell must do is allowed on top: its set-up, first runs, verification and samples. Both are timed inside the process,
        from Hydra's start to its end. The table shows where a cell's time goes after composition ("hydra") and what is
        left beside the empty sweep and what a cell must do. The second ratio allows of the samples only their spans,
        without the way to each start.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from _pairs import parser, quiet_environment, ratios, show_machine, take_turns, tell, torchrun

ROLES = str(Path(__file__).with_name("_roles.py"))
CELL = ("workload=square", "workload.n=64", "measure=quick", "device=cpu")
CELLS = 20
SWEEP = ("--multirun", *CELL, f"workload.seed=range({CELLS})")
BESIDE = ("hydra", "begin", "compose", "record")
"""Stages that a cell's set-up, warm-up, verification and samples do not include."""


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--parts", default="start,sweep", help="which parts to run (default start,sweep)")
    options.add_argument("--start-ranks", default="2,3", help="worlds of the start (default 2,3)")
    options.add_argument("--sweep-ranks", default="1,2", help="worlds of the sweep (default 1,2)")
    arguments = options.parse_args()
    show_machine()
    met = []
    if "start" in arguments.parts:
        met += [start(int(ranks), arguments.pairs) for ranks in arguments.start_ranks.split(",")]
    if "sweep" in arguments.parts:
        met += [sweep(int(ranks), arguments.pairs) for ranks in arguments.sweep_ranks.split(",")]
    return 0 if all(met) else 1


def start(ranks: int, pairs: int) -> bool:
    """distbench's way to the first fill ÷ the bare script's way into the world."""
    from distbench.stats import median

    sides = {
        "distbench": partial(_told, torchrun(ranks, ROLES, "fill", *CELL)),
        "bare": partial(_told, torchrun(ranks, ROLES, "join")),
    }
    taken = {side: [int(text) / 1e9 for text in texts] for side, texts in take_turns(sides, pairs).items()}
    print(f"{ranks} ranks: " + ", ".join(f"{side} {median(times):.3f} s" for side, times in taken.items()))
    return tell(f"{ranks} ranks, start to fill ÷ bare join", ratios(taken["distbench"], taken["bare"]), high=1.25)


def sweep(ranks: int, pairs: int) -> bool:
    """distbench's sweep ÷ (the empty sweep + what its cells must do)."""
    from distbench.stats import median

    launcher = torchrun(ranks) if ranks > 1 else [sys.executable]
    sides = {
        "distbench": partial(_told, [*launcher, ROLES, "sweep", *SWEEP]),
        "empty": partial(_told, [sys.executable, ROLES, "empty", *SWEEP]),
    }
    taken = take_turns(sides, pairs)
    ours = [json.loads(text) for text in taken["distbench"]]
    empty_s = [float(text) for text in taken["empty"]]
    total_s = [one["total"] for one in ours]
    name = f"{ranks} rank{'s' * (ranks > 1)}"
    print(f"{name}, {CELLS} cells: distbench {median(total_s):.3f} s, empty {median(empty_s):.3f} s; per cell:")
    for stage in ours[0]["stages"]:
        times = [one["stages"].get(stage, 0.0) for one in ours]
        print(f"  {stage:<20}{median(times) / CELLS * 1e3:9.1f} ms")
    must_s = [sum(s for stage, s in one["stages"].items() if stage not in BESIDE) for one in ours]
    rest_s = [total - empty - must for total, empty, must in zip(total_s, empty_s, must_s, strict=True)]
    print(f"  {'beside both':<20}{median(rest_s) / CELLS * 1e3:9.1f} ms")
    bare_s = [must - one["stages"]["measure"] + one["spans"] for must, one in zip(must_s, ours, strict=True)]
    met = tell(f"{name}, sweep ÷ (empty + what its cells must do)", ratios(total_s, _sums(empty_s, must_s)), high=1.2)
    tell("  the same, of the samples only their spans", ratios(total_s, _sums(empty_s, bare_s)))
    return met


def _sums(*columns: Sequence[float]) -> list[float]:
    return [sum(values) for values in zip(*columns, strict=True)]


def _told(command: list[str]) -> str:
    """Run a role to its end in an empty folder; what it told."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told"
        environment = quiet_environment() | {"BENCH_TOLD": str(told), "BENCH_START_NS": str(time.monotonic_ns())}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode or not told.exists():
            sys.exit(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return told.read_text()


if __name__ == "__main__":
    sys.exit(main())
