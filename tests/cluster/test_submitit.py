"""hydra/launcher=submitit_slurm on a real Slurm: each cell is a batch job whose tasks, on two nodes, form one world."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from helpers import Launcher, run_words, start
from slurm import Slurm


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.timeout(600)
def test_each_cell_is_a_batch_job_of_two_nodes_and_a_bad_one_has_its_record(slurm: Slurm, in_tmp: Path) -> None:
    words = ["-m", "hydra/launcher=submitit_slurm", "hydra.launcher.nodes=2", "hydra.launcher.tasks_per_node=1"]
    words += ["workload=square", "workload.n=96,-1,97", "collect=all_gather", "measure=quick"]
    words += ["measure.max_time_s=0.3", "hydra.launcher.timeout_min=5"]
    result = run_words(slurm.on_login(sys.executable, "-m", "distbench", *words), env=slurm.env, timeout_s=500)
    assert result.returncode == 1, result.stderr
    told = {r["config"]["workload"]["n"]: (r["status"], r["world"]["size"], r["reason"]) for r in result.records}
    assert {n: status for n, (status, _, _) in told.items()} == {96: "ok", -1: "failed", 97: "ok"}, told
    for record in result.records:
        if record["status"] == "ok":
            assert sorted(rank["host"] for rank in record["world"]["ranks"]) == ["n0", "n1"]
    assert len(result.folders) == 1
    assert result.folders[0].is_relative_to(in_tmp / "multirun")


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.timeout(600)
def test_a_batch_job_that_is_killed_whole_fails_its_cell_though_accounting_is_off(slurm: Slurm, in_tmp: Path) -> None:
    words = ["-m", "hydra/launcher=submitit_slurm", "workload=square", "workload.n=96", "measure.max_time_s=500"]
    words += ["measure.max_samples=1000000", "measure.target_rel_ci=1e-9", "hydra.launcher.timeout_min=5"]
    command = slurm.on_login(sys.executable, "-m", "distbench", *words)
    running = start([], Launcher("words", 1, tuple(command)), env=slurm.env, program=())
    logs = "multirun/*/*/.submitit/*/*_log.out"
    running._await(lambda: any("rank  host" in path.read_text() for path in in_tmp.glob(logs)), "no rank", 120)
    time.sleep(1)
    job = next(in_tmp.glob(logs)).parent.name
    slurm.ask("scancel", "--signal=KILL", "--full", job)
    result = running.wait(180)
    assert result.returncode == 1
    assert result.statuses == ["failed"]
    assert "ended without a record" in result.records[0]["reason"]
