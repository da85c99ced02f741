"""What the benchmarks share: sides that take turns, the ratio of each pair, and its verdict against a goal."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

T = TypeVar("T")


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every script has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--pairs", type=int, default=30, help="pairs of runs (default 30)")
    return made


def take_turns(sides: dict[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Every side once a round, the order reversed every second round (ABBA), so that drift falls on all alike.

    One round more is run first and not kept.
    """
    kept: dict[str, list[T]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name in sides if turn % 2 else reversed(sides):
            taken = sides[name]()
            if turn:
                kept[name].append(taken)
    return kept


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """One ratio per pair."""
    return [above / below for above, below in zip(numerators, denominators, strict=True)]


def tell(name: str, paired: Sequence[float], low: float | None = None, high: float | None = None) -> bool:
    """Print the median ratio, its 95 % interval, the goal and PASS or MISS; returns whether the median meets the goal.

    Without `low` and `high` there is no goal: the ratio is shown for comparison.
    """
    from distbench.stats import median, median_interval

    middle, interval = median(paired), median_interval(paired)
    met = (low is None or middle >= low) and (high is None or middle <= high)
    goal = " and ".join(f"{sign} {bound:g}" for sign, bound in (("≥", low), ("≤", high)) if bound is not None)
    told = f"{name:<54} median {middle:.4f}  95 % "
    told += "(needs 6 pairs)" if interval is None else f"{interval[0]:.4f} … {interval[1]:.4f}"
    told += f"  {len(paired)} pairs  "
    if goal:
        told += f"goal {goal}: {'PASS' if met else 'MISS'}"
        if interval is not None and any(
            interval[0] < bound < interval[1] for bound in (low, high) if bound is not None
        ):
            told += " (the interval reaches over the goal)"
    else:
        told += "for comparison"
    print(told, flush=True)
    return met


def show_machine() -> None:
    """The line above a table: what ran, on what, and how busy the machine was with other work."""
    import torch

    cores = len(os.sched_getaffinity(0))
    print(f"torch {torch.__version__}, {cores} cores, load {os.getloadavg()[0]:.2f}")


def torchrun(ranks: int, *arguments: str) -> list[str]:
    """The command line that starts `arguments` (a script, or -m and a module) as `ranks` ranks."""
    return [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", *arguments]


def quiet_environment() -> dict[str, str]:
    """This environment, without torchrun's banner."""
    return os.environ | {"LOGLEVEL": "ERROR"}


def as_ranks(ranks: int) -> None:
    """Start this script again as `ranks` ranks of torchrun and leave with status 1 if a line says MISS; returns in a rank.

    The ranks themselves end with 0: torchrun adds a page of its own to any other status.
    """
    if "RANK" in os.environ:
        return
    with subprocess.Popen(
        torchrun(ranks, *sys.argv), env=quiet_environment(), stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        missed = False
        for line in run.stdout:
            print(line, end="", flush=True)
            missed |= ": MISS" in line
    sys.exit(run.returncode or int(missed))


def join() -> Any:
    """The world that this process belongs to, formed the way distbench's main forms it."""
    from distbench.alive import Watch
    from distbench.launch import detect
    from distbench.world import World

    launch = detect(os.environ)
    watch = Watch(launch, 60.0, 1800.0)
    watch.start()
    world = World(launch, watch)
    world.join()
    return world


class _Ready(Exception):
    """Thrown where measuring would begin."""


def ready_cell(world: Any, config: Any, like: Any = None) -> Any:
    """A cell taken through its own stages up to measuring: placed, filled, connected, verified and warm.

    like: another cell of the same problem, whose A and B it uses. The cell offers its own `a`, `b` and `c` [batch, rows,
    columns] and `measure(between)`, which measures as the cell itself would, as often as one likes, and returns the
    Samples; after each sample, outside its window, it calls `between`.
    """
    from distbench.cell import Cell

    class ReadyCell(Cell):
        def _fill(self, plan: Any, place: Any) -> None:
            super()._fill(plan, place)
            (unit,) = self.units
            if like is not None:
                unit.a, unit.b = like.a, like.b
            self.a, self.b = unit.a, unit.b

        def _measured(self, timed: Any, place: Any) -> Any:
            raise _Ready

        @property
        def c(self) -> Any:
            return self.units[0].collect.shard

        def measure(self, between: Callable[[], None] = lambda: None) -> Any:
            def phases_ns() -> list[int]:
                told = self.timed.phases_ns()
                between()
                return told

            return super()._measured(replace(self.timed, phases_ns=phases_ns), self.place)

    cell = ReadyCell(world, config, lambda event, detail: None)
    with suppress(_Ready):
        cell.run()
    return cell


def exactly(samples: int) -> Any:
    """Measure settings that keep this many samples, whatever they say."""
    from distbench.config import Measure

    return Measure(min_samples=samples, max_samples=samples, max_time_s=600.0)
