"""Threads per rank: the cores that a rank may use, unless the user says otherwise; never what a launcher set by itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import Launcher, require, run_ok, torchrun

CORES = sorted(os.sched_getaffinity(0))[:4]
"""With four, torchrun's own OMP_NUM_THREADS=1 and a rank's share differ for two ranks; with two only for one."""
MASK = ("taskset", "--cpu-list", ",".join(map(str, CORES)))


@pytest.fixture(autouse=True)
def _taskset(in_tmp: Path) -> None:
    require("taskset")
    if len(CORES) < 2:
        pytest.skip("one core: every rank has one thread")


@pytest.mark.parametrize(
    ("launcher", "omp", "words", "threads"),
    [
        (torchrun(2, MASK), None, [], len(CORES) // 2),
        (torchrun(1, MASK), None, [], len(CORES)),
        (torchrun(2, MASK), "2", [], 2),
        (Launcher("alone", prefix=MASK), "1", [], 1),
        (Launcher("alone", prefix=MASK), "1", ["threads=2"], 2),
    ],
    ids=["two-ranks", "one-rank", "two-ranks-OMP=2", "alone-OMP=1", "alone-OMP=1-threads=2"],
)
def test_threads_are_the_ranks_share_unless_the_user_sets_them(
    launcher: Launcher, omp: str | None, words: list[str], threads: int
) -> None:
    env = {} if omp is None else {"OMP_NUM_THREADS": omp}
    (record,) = run_ok(["workload=square", "workload.n=64", "measure=quick", *words], launcher, env=env).records
    assert [rank["threads"] for rank in record["world"]["ranks"]] == [threads] * launcher.ranks
    assert all(rank["affinity"] == CORES for rank in record["world"]["ranks"])
    pools = record["environment"]["thread_pools"]
    assert {pool["num_threads"] for pool in pools} == {threads}, pools  # every BLAS that is loaded, not torch alone
    if launcher.ranks * threads > len(CORES):
        assert (record["samples"]["start"], record["samples"]["start_reason"]) == ("barrier", "more threads than cores")
