"""A rank that is killed or stopped in mid-measure: the run ends by itself, soon, and says which rank it was.

Catches a run that waits for ever in a collective, a stopped process that stays behind, and a reason that names nobody.
The runs are started one after another and end side by side, since most of their time is waiting.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers import Result, Running, end_all, plain, start, torchrun

TIMEOUT_S = 5
LAUNCHERS = {"torchrun": torchrun(2), "plain": plain(3)}  # three: one is neither rank 0 nor lost
CASES = [
    (launcher, number, victim)
    for number in (signal.SIGSTOP, signal.SIGKILL)  # the stopped ones wait for the time-out: they go first
    for launcher in LAUNCHERS
    for victim in (1, 0)
]
# Nearly all of a sample is inside the window, so that is where the signal falls and where the others wait.
LONG = [
    *("workload=square", "workload.n=1000", "workload.dtype=float64", "split=m", "collect=all_gather"),
    *("measure.warmup=1", "measure.min_samples=100000", "measure.max_samples=100000", "measure.max_time_s=300"),
]


@dataclass
class Ended:
    seconds: float
    """From the signal until no process of the run was alive."""
    result: Result


Case = tuple[str, signal.Signals, int]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Case, Future[Ended]]]:
    marks: list[str] = []
    with ThreadPoolExecutor(len(CASES)) as pool:
        futures = {case: _disturb(case, tmp_path_factory.mktemp("lost"), marks, pool) for case in CASES}
        yield futures
    left = [told for mark in marks for told in end_all(mark)]
    assert not left


def _disturb(case: Case, folder: Path, marks: list[str], pool: ThreadPoolExecutor) -> Future[Ended]:
    name, number, victim = case
    marks.append(uuid.uuid4().hex)
    running = start([*LONG, f"run.timeout_s={TIMEOUT_S}"], LAUNCHERS[name], cwd=folder, mark=marks[-1])
    running.await_text("  verify")  # the stage before measure is over
    time.sleep(0.5)
    os.kill(running.pid_of_rank(victim), number)
    return pool.submit(_until_gone, running)


def _until_gone(running: Running) -> Ended:
    seconds = running.await_gone(60)
    return Ended(seconds, running.wait(600))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1].name}-rank{case[2]}")
def test_a_lost_rank_ends_the_run_and_is_named(ended: dict[Case, Future[Ended]], case: Case) -> None:
    _, _, victim = case
    outcome = ended[case].result()
    result = outcome.result
    print(f"gone {outcome.seconds:.1f} s after the signal")
    assert outcome.seconds < TIMEOUT_S + 5, result.stderr
    assert all(code != 0 for code in result.returncodes), result.returncodes
    named = f"rank {victim} (host {os.uname().nodename}, pid "
    assert named in result.stderr
    if victim != 0:  # rank 0 was alive to write it
        (record,) = result.records
        assert record["status"] == "failed"
        assert named in record["reason"], record["reason"]
        assert "in stage measure" in record["reason"], record["reason"]
