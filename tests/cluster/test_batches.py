"""Batch jobs as they live: several steps in one job, values of the job around a step's, and a job that runs out of time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import read_records, validate
from slurm import Slurm

SMALL = ["workload=square", "workload.n=64", "measure=quick", "measure.max_time_s=0.3"]
LAUNCH = Path(__file__).resolve().parents[2] / "launch"


def run_batch(slurm: Slurm, folder: Path, lines: str, *options: str) -> list[dict[str, Any]]:
    """Submit a script of those lines and wait for its good end; its records. `distbench` there is this one."""
    script = folder / "job.sbatch"
    called = f"{sys.executable} -m distbench {' '.join(SMALL)}"
    script.write_text(f"#!/bin/sh\n{lines.replace('distbench', called)}\n")
    job = slurm.submit(script, "--output=log", *options)
    state = slurm.await_job(job, 120)
    assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), (folder / "log").read_text()
    records, _ = read_records(folder)
    for record in records:
        validate(record)
    return records


def hosts_of(record: dict[str, Any]) -> list[str]:
    return [rank["host"] for rank in record["world"]["ranks"]]


def test_two_steps_of_a_job_at_once_are_two_worlds(slurm: Slurm, in_tmp: Path) -> None:
    step = "srun --overlap --nodes=2 --ntasks=2 distbench"
    lines = f"{step} hydra.run.dir=runs/a & a=$!\n{step} hydra.run.dir=runs/b || exit\nwait $a"
    records = run_batch(slurm, in_tmp, lines, "--nodes=2", "--ntasks=2")
    assert [(record["status"], hosts_of(record)) for record in records] == [("ok", ["n0", "n1"])] * 2


def test_a_steps_numbers_and_nodes_win_over_its_jobs(slurm: Slurm, in_tmp: Path) -> None:
    lines = "srun --nodes=1 --ntasks=2 --nodelist=n1 distbench"
    (record,) = run_batch(slurm, in_tmp, lines, "--nodes=2", "--ntasks=4")
    assert hosts_of(record) == ["n1", "n1"]


@pytest.mark.parametrize("name", ["slurm.sbatch", "slurm-torchrun.sbatch"])
def test_a_job_out_of_time_is_queued_again_and_measures_what_is_missing(slurm: Slurm, in_tmp: Path, name: str) -> None:
    """The real signal of --signal: with a limit of a minute it comes half a minute after the start, or sooner."""
    cells = ["-m", "workload=square", "workload.n=32,48,64,96", "measure.min_samples=5", "measure.target_rel_ci=1e-9"]
    cells += ["measure.max_time_s=8", "measure.max_samples=1000000"]
    options = ("--time=1", "--signal=B:USR1@35", "--ntasks-per-node=1", "--output=log")
    job = slurm.submit(LAUNCH / name, *options, arguments=cells, env={"NPROC": "1"})
    state = slurm.await_job(job, 240)
    log = (in_tmp / "log").read_text()
    assert state["JobState"] == "COMPLETED", f"{state}\n{log}"
    restarts = int(state["Restarts"])  # on a busy machine more than one attempt may run out of time
    assert restarts >= 1, log
    records, folders = read_records(in_tmp)
    assert len(set(folders)) == 1
    done = [record["config"]["workload"]["n"] for record in records if record["status"] == "ok"]
    assert sorted(done) == [32, 48, 64, 96], log  # none missing, no cell twice
    cut = [record["reason"] for record in records if record["status"] != "ok"]
    assert len(cut) <= restarts, cut
    assert all("interrupted by SIGTERM" in reason for reason in cut), cut
