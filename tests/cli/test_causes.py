"""Guards on real runs that have a real cause: other work, a machine that gets slower, ranks that are not alike."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import Launcher, plain, require, require_root, run, run_ok

CORE = str(min(os.sched_getaffinity(0)))
PINNED = ("taskset", "--cpu-list", CORE)
SQUARE = ["workload=square", "workload.n=512", "threads=1", "measure.target_rel_ci=0.001"]


@pytest.fixture(autouse=True)
def _taskset(in_tmp: Path) -> None:
    require("taskset")


@contextmanager
def competitors() -> Iterator[Callable[[signal.Signals], None]]:
    """Four processes that compute on the run's core; yields what signals them all. Each has a session of its own: the
    kernel shares a core out by session first."""
    command = [*PINNED, sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command, start_new_session=True) for _ in range(4)]
    try:
        yield lambda number: [process.send_signal(number) for process in processes] and None
    finally:
        for process in processes:
            process.kill()
            process.wait()


def warned(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {warning["name"]: warning for warning in record["warnings"]}


def test_other_work_on_the_core_makes_it_a_busy_machine() -> None:
    with competitors():
        result = run_ok([*SQUARE, "measure.max_time_s=2"], Launcher("alone", prefix=PINNED))
    (record,) = result.records
    busy = warned(record)["busy"]
    assert 0.5 < busy["value"] < 1  # four fifths, where nothing else runs
    assert busy["text"] in result.stdout
    cpu = record["telemetry"][0]["cpu"]
    assert cpu["own_cores"] + cpu["others_cores"] == pytest.approx(cpu["busy_cores"], abs=1e-6)
    assert cpu["preempted"] > 10


@pytest.mark.parametrize(("name", "on_s", "off_s", "lasts_s"), [("bimodal", 1.0, 0.5, 5), ("drift", 100.0, 5.0, 12)])
def test_a_core_that_is_taken_by_turns_or_midway_makes_two_groups_or_a_drift(
    name: str, on_s: float, off_s: float, lasts_s: int
) -> None:
    """Competitors take four fifths of the core: every other half second, or from the middle of the measuring on. Where the
    machine has other work at the same time, that may hide it: a second try."""
    record = competed(name, on_s, off_s, lasts_s)
    if name not in warned(record):
        record = competed(name, on_s, off_s, lasts_s)
    assert name in warned(record), (record["warnings"], record["unchecked"], record["samples"]["span_s"])


def competed(name: str, on_s: float, off_s: float, lasts_s: int) -> dict[str, Any]:
    """The record of a run on a core that competitors leave alone for off_s seconds and take for on_s, and so on."""
    ended = threading.Event()
    begun = set(Path.cwd().glob("outputs/*/*/.hydra"))

    def alternate(tell: Callable[[signal.Signals], None]) -> None:
        while set(Path.cwd().glob("outputs/*/*/.hydra")) == begun and not ended.wait(0.05):
            pass  # until the run composes: what it imports before is not to be slowed
        while not ended.is_set():
            for number, seconds in ((signal.SIGSTOP, off_s), (signal.SIGCONT, on_s)):
                tell(number)
                ended.wait(seconds)

    with competitors() as tell:
        tell(signal.SIGSTOP)
        turns = threading.Thread(target=alternate, args=(tell,))
        turns.start()
        try:
            lasts = [f"measure.max_time_s={lasts_s}", "measure.warmup=1", f"guard.{GUARD[name]}=0.1"]
            (record,) = run([*SQUARE, "workload.n=1024", *lasts], Launcher("alone", prefix=PINNED)).records
        finally:
            ended.set()
            turns.join()
            tell(signal.SIGCONT)
    assert record["status"] == "ok", record["reason"]
    return record


GUARD = {"bimodal": "mode_gap", "drift": "drift"}


def test_ranks_with_unequal_threads_are_named_in_the_table_and_the_record() -> None:
    prefixes = [("env", f"OMP_NUM_THREADS={count}") for count in (1, 2)]
    result = run(["workload=square", "workload.n=128", "measure=quick"], plain(2), prefixes=prefixes)
    (record,) = result.records
    assert [rank["threads"] for rank in record["world"]["ranks"]] == [1, 2]
    text = warned(record)["unequal_threads"]["text"]
    assert "1 to 2 threads" in text
    assert text in result.stdout
    assert [state["rank"] for state in record["telemetry"]] == [0, 1]


def test_a_cgroup_that_runs_out_of_its_quota_is_named() -> None:
    require_root()
    mount = next((path for path in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")) if path.is_dir()), None)
    group = (mount or Path("/nowhere")) / f"distbench-{os.getpid()}"
    try:
        group.mkdir()
        v1 = (group / "cpu.cfs_quota_us").exists()
        (group / ("cpu.cfs_quota_us" if v1 else "cpu.max")).write_text("50000" if v1 else "50000 100000")
    except OSError as error:
        group.is_dir() and group.rmdir()
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        join = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
        (record,) = run([*SQUARE, "measure.max_time_s=2"], Launcher("alone", prefix=join)).records
    finally:
        deadline = time.monotonic() + 5
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        group.rmdir()
    assert 0.5 < warned(record)["throttled"]["value"] <= 1
