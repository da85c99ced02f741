"""experiment=health on real ranks, one of which is really slowed, stopped or wrong.

Catches an outlier that the statistics miss, a cause that the telemetry does not tell, and a bad rank with exit status 0.
Samples are long (tens of milliseconds): the kernel's scheduler lets shorter ones slip through between a competitor's turns.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import Launcher, Result, missing, plain, require, run, start, torchrun

from distbench.health.verdicts import bad_ranks

HERE = Path(__file__).parent
SMALL = ["+experiment=health", "workload.n=256", "threads=1", "measure.max_time_s=1", "measure.min_time_s=0.3"]
# Others may be at work on the machine that runs the tests: only what at least doubles a time counts.
LONG = ["+experiment=health", "workload.n=1024", "threads=1", "measure.max_time_s=8", "health.spread=0.7"]


def on(core: int, *before: str) -> list[str]:
    return [*before, "taskset", "-c", str(core)]


@pytest.fixture
def two_cores(in_tmp: Path) -> tuple[int, int]:
    require("taskset")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        missing("needs two cores")
    return cores[0], cores[1]


@contextmanager
def busy(core: int, count: int = 1) -> Iterator[None]:
    """So many processes that compute on that core, each a session: the kernel shares a core among sessions first."""
    words = [*on(core), sys.executable, "-c", "while True: pass"]
    spinners = [subprocess.Popen(words, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def verdict(result: Result, rank: int) -> dict[str, Any]:
    """What the record says of a rank, where the products are right and the exit status tells of a bad rank."""
    (record,) = result.records
    assert record["status"] == "ok", record["reason"]
    told: dict[str, Any] = record["health"][rank]
    assert result.returncode == (1 if bad_ranks(record) else 0), result.stdout
    for item in record["health"]:
        for reason in item["reasons"]:
            assert f"{reason['name']}: {reason['text']}" in result.stdout
    return told


def slowed(rank: int, launcher: Launcher, prefixes: list[list[str]]) -> tuple[dict[str, Any], Result]:
    """What is said of a rank that is slowed. Other work on the machine may slow the others as much: three tries at most."""
    for number in range(3):
        folder = Path(f"try{number}")
        folder.mkdir()
        result = run(LONG, launcher, prefixes=prefixes, cwd=folder.absolute(), timeout_s=150)
        told = verdict(result, rank)
        if told["verdict"] == "compute_slow":
            break
    return told, result


def text(told: dict[str, Any], name: str) -> str:
    return next(reason["text"] for reason in told["reasons"] if reason["name"] == name)


def test_ranks_alike_are_well_and_agree_bit_for_bit(in_tmp: Path) -> None:
    lenient = [f"health.{key}=900" for key in ("slow", "spread", "stalls", "late", "late_starts", "link")]
    result = run([*SMALL, *lenient], torchrun(3))
    assert (result.returncode, result.stderr) == (0, "")
    (record,) = result.records
    assert [item["verdict"] for item in record["health"]] == ["ok"] * 3
    assert len({item["numbers"]["digest"] for item in record["health"]}) == 1
    assert [item["numbers"]["compared_with"] for item in record["health"]] == [2, 2, 2]
    assert sorted(link["ranks"] for link in record["links"]) == [[0, 1], [0, 2], [1, 2]]
    assert "health of 3 ranks: 3 ok" in result.stdout


def test_alone_there_is_nothing_to_compare_with_and_it_says_so(in_tmp: Path) -> None:
    result = run(SMALL)
    told = verdict(result, 0)
    assert (told["verdict"], result.returncode) == ("unknown", 0)
    assert "start more ranks, or measure one with workload=ceilings" in text(told, "unknown")


@pytest.mark.timeout(500)
def test_of_two_ranks_the_niced_one_with_a_competitor_is_named(two_cores: tuple[int, int]) -> None:
    free, shared = two_cores
    with busy(shared, 8):
        told, result = slowed(1, plain(2), [on(free), on(shared, "nice", "-n", "10")])
    assert told["verdict"] == "compute_slow"
    assert "of two ranks the slower is named" in text(told, "compute_slow")
    assert "other work took" in text(told, "compute_slow")
    assert f"rank 1 (host {os.uname().nodename}, cpu)" in bad_ranks(result.records[0])[-1]


@pytest.mark.timeout(500)
def test_of_three_ranks_the_one_off_the_median_is_named(two_cores: tuple[int, int]) -> None:
    common, shared = two_cores
    with busy(shared, 8):
        told, _ = slowed(1, plain(3), [on(common), on(shared, "nice", "-n", "10"), on(common)])
    assert told["verdict"] == "compute_slow"
    assert "longer than the median of 3 equal devices" in text(told, "compute_slow")
    assert "other work took" in text(told, "compute_slow")


@pytest.mark.timeout(500)
def test_ranks_with_fewer_cores_are_named_with_their_share(two_cores: tuple[int, int]) -> None:
    """Bound wrongly: four ranks on one core, and one has a core for itself."""
    own, crowded = two_cores
    _, result = slowed(4, plain(5), [on(own), *[on(crowded)] * 4])
    for rank in (1, 2, 3, 4):
        told = verdict(result, rank)
        assert told["verdict"] == "compute_slow"
        assert "its share of the cores that it may run on is 0.25, the others' 1" in text(told, "compute_slow")


def test_a_rank_that_is_stopped_now_and_then_is_named_though_its_median_is_fine(in_tmp: Path) -> None:
    running = start(LONG, torchrun(2))
    running.await_text("rank  host")
    stopped = running.pid_of_rank(1)
    while running.processes[0].poll() is None:
        try:
            for number, pause_s in ((signal.SIGSTOP, 0.2), (signal.SIGCONT, 0.15)):
                os.kill(stopped, number)
                time.sleep(pause_s)
        except ProcessLookupError:
            break
    result = running.wait(120)
    told = verdict(result, 1)
    assert told["verdict"] == "compute_slow"
    assert result.returncode == 1
    assert "it stood still in" in text(told, "compute_slow") or "longer than" in text(told, "compute_slow")
    assert "is in bad health: compute_slow" in result.stderr  # torchrun's report


@pytest.mark.parametrize("ranks", [3, 2])
def test_a_wrong_last_bit_that_the_tolerance_lets_through_is_a_wrong_result(in_tmp: Path, ranks: int) -> None:
    result = run(SMALL, torchrun(ranks), program=[str(HERE / "worker_health.py")])
    assert result.returncode == 1
    (record,) = result.records
    assert (record["status"], record["result"]) == ("wrong", None)
    assert record["verification"]["ok"] is True  # the verification alone would have let it pass
    wrong = [item["rank"] for item in record["health"] if item["verdict"] == "wrong_result"]
    if ranks == 3:
        assert wrong == [1]
        assert "rank 1" in record["reason"]
        assert "differs in its bits from that of 2 equal devices" in record["reason"]
    else:  # two cannot tell which of them is right
        assert wrong == [0, 1]
        assert "no majority tells whose is right" in record["reason"]
    assert record["reason"] in result.stdout


def test_a_product_that_the_verification_finds_wrong_is_that_ranks(in_tmp: Path) -> None:
    worker = str(HERE / "worker_main.py")
    result = run([*SMALL, "workload.seed=119"], torchrun(2), program=[worker])
    assert result.returncode == 1
    (record,) = result.records
    assert record["status"] == "wrong"
    assert [item["verdict"] for item in record["health"]] == ["unknown", "wrong_result"]


@pytest.mark.parametrize(
    ("word", "told"),
    [("split=m", "split=m"), ("drive=loop", "drive=loop"), ("health.slow=0", "health.slow=0"), ("health.rounds=0", "")],
)
def test_what_cannot_be_judged_is_refused(in_tmp: Path, word: str, told: str) -> None:
    result = run([*SMALL, word])
    assert (result.returncode, result.records) == (2, [])
    assert result.stderr.startswith(f"distbench: {told}")
