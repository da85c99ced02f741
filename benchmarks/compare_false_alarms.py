"""How often `distbench compare` is wrong: the same run twice, and a run slowed by 3 % by a real cause.

    benchmarks/compare_false_alarms.py --launches 101 --slowed 15 --folder /tmp/launches

Every launch is a distbench process of its own, pinned to one core, before other work where the user may do that. First
the same command `--launches` times; each is compared with the next as one launch a side, and every ten as five
against five (in every way of dividing that alternates halves). Goal: FASTER or SLOWER in at most 5 of 100. Then `--slowed`
launches of each kind in turn, every second one beside a process of real-time priority on the same core that takes 3 % of
it, a slice in every 5 ms: what the scheduler gave it is measured (/proc/…/stat) and shown. Needs root. Goal: SLOWER.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from _pairs import show_machine

from distbench.show.compare.main import METRICS, compare
from distbench.show.compare.pairing import pair
from distbench.show.runs import load

CORE = max(os.sched_getaffinity(0))
WORDS = ("workload=square", "workload.n=1024", "threads=1", "measure.max_time_s=10", "device=cpu")
SAMPLES = ("measure.min_samples=60", "measure.max_samples=60")
SHARE = 0.03
COMPETITOR = """
import os, time
os.sched_setaffinity(0, {%d})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
began, next_s, spent = time.monotonic(), time.monotonic(), time.process_time()
while True:
    while time.process_time() - spent < %g * (time.monotonic() - began):
        pass
    next_s += 5e-3
    time.sleep(max(0.0, next_s - time.monotonic()))
"""


def main() -> int:
    options = _options()
    show_machine()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="distbench-launches-"))
    try:
        met = _same(folder / "same", options.launches)
        if options.slowed:
            met &= _slowed(folder, options.slowed)
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if met else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=101, help="of the same command (default 101: 100 pairs)")
    parser.add_argument("--slowed", type=int, default=15, help="launches of each kind, beside a competitor and without")
    parser.add_argument("--folder", type=Path, help="keep the records here; launches that are there already are used")
    return parser.parse_args()


def _launch(folder: Path) -> Path:
    if not _is_complete(folder):
        shutil.rmtree(folder, ignore_errors=True)
        words = [sys.executable, "-m", "distbench", *WORDS, *SAMPLES, f"hydra.run.dir={folder}"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, preexec_fn=_first_in_line)
    return folder


def _is_complete(folder: Path) -> bool:
    """Measured by an earlier run of this script, to the end."""
    path = folder / "results.jsonl"
    return path.is_file() and [item["status"] for item in load([path])[0].records] == ["ok"]


def _first_in_line() -> None:
    """Pinned, and ahead of the machine's other work where that is allowed."""
    os.sched_setaffinity(0, {CORE})
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, -20)


def _verdict(base: list[Path], new: list[Path], metric: str = "span") -> tuple[str, float]:
    """The verdict and NEW ÷ BASE of the one cell."""
    (told,) = compare(pair(load(base), load(new), set()), METRICS[metric], threshold=0.03, launch_spread=0.02)
    assert told.told is not None
    return told.verdict, told.told.ratio


def _tell(name: str, words: list[str], wanted: tuple[str, ...], least: float) -> bool:
    if not words:
        return True
    share = sum(word in wanted for word in words) / len(words)
    counts = ", ".join(f"{words.count(word)} {word}" for word in ("FASTER", "SLOWER", "SAME", "UNSURE"))
    met = share >= least
    print(f"{name:<44} {len(words)} comparisons: {counts}  goal ≥ {least:.0%} {' or '.join(wanted)}: ", end="")
    print("PASS" if met else "MISS", flush=True)
    return met


def _same(folder: Path, launches: int) -> bool:
    made = [_launch(folder / f"{number:04d}") for number in range(launches)]
    calm = ("SAME", "UNSURE")
    ones = [_verdict([made[at]], [made[at + 1]])[0] for at in range(launches - 1)]
    met = _tell("the same run, one launch a side", ones, calm, 0.95)
    fives: dict[str, list[str]] = {"span": [], "best": []}
    for at in range(0, launches - 9, 10):
        ten = made[at : at + 10]
        for step in range(5):  # five of ten neighbours against the other five, divided in five ways
            chosen = {(2 * place + (place * step) % 2) if step else 2 * place for place in range(5)}
            chosen = {(index + step) % 10 for index in chosen}
            sides = ([ten[i] for i in sorted(chosen)], [ten[i] for i in range(10) if i not in chosen])
            for metric, words in fives.items():
                words.append(_verdict(*sides, metric)[0])
    for metric, words in fives.items():
        met &= _tell(f"the same run, five launches a side, {metric}", words, calm, 0.95)
    return met


def _slowed(folder: Path, count: int) -> bool:
    alone, beside, shares = [], [], []
    for number in range(count):  # in turn, so that the machine's drift falls on both
        alone.append(_launch(folder / "alone" / f"{number:04d}"))
        with _competitor() as taken:
            beside.append(_launch(folder / "beside" / f"{number:04d}"))
            shares.append(taken())
    print(f"the competitor took {sorted(shares)[count // 2]:.1%} of the core")
    found: dict[str, str] = {}
    for metric in ("span", "best"):
        for size in (5, 10, count):
            for at in range(0, count - size + 1, size):
                word, ratio = _verdict(alone[at : at + size], beside[at : at + size], metric)
                print(f"  {size} launches a side, {metric}: {word}, {ratio:.4f}")
                found[metric] = word
    met = [_tell(f"3 % slower, {count} launches a side, {name}", [it], ("SLOWER",), 1.0) for name, it in found.items()]
    return all(met)


@contextmanager
def _competitor() -> Iterator[Callable[[], float]]:
    """A process that takes SHARE of the core; yields a call that says what it has taken of it so far."""
    with subprocess.Popen([sys.executable, "-c", COMPETITOR % (CORE, SHARE)]) as process:
        watched, began = psutil.Process(process.pid), time.monotonic()
        try:
            yield lambda: sum(watched.cpu_times()[:2]) / (time.monotonic() - began)
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
