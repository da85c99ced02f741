"""hydra/launcher=submitit_slurm on a real Slurm: each cell is a batch job whose tasks, on two nodes, form one world."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers import run_words
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
