"""distbench on a real Slurm of two nodes: srun with a task per rank or a torchrun per node, and as batch jobs.

Catches a world that does not form across nodes, job values taken for the step's, and batch scripts that lose an exit
status, a signal or the results of a job that is requeued.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import RESULTS, read_records, run_words, validate
from slurm import Slurm

SMALL = ["workload=square", "workload.n=96", "collect=all_gather", "measure=quick", "measure.max_time_s=0.3"]
PYTHON = str(Path(sys.executable).parent)
LAUNCH = Path(__file__).resolve().parents[2] / "launch"


def ranks_of(record: dict[str, Any]) -> list[tuple[str, int]]:
    return [(rank["host"], rank["local_rank"]) for rank in record["world"]["ranks"]]


@pytest.mark.usefixtures("in_tmp")
def test_srun_starts_the_ranks_and_nobody_sets_an_address(slurm: Slurm) -> None:
    words = slurm.on_login("srun", "--nodes=2", "--ntasks=4", sys.executable, "-m", "distbench", *SMALL)
    result = run_words(words, env=slurm.env)
    assert result.returncode == 0, result.stderr
    (record,) = result.records
    assert record["world"]["launcher"] == "slurm"
    assert ranks_of(record) == [("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)]
    assert "4 ranks (slurm)" in result.stdout


@pytest.mark.usefixtures("in_tmp")
def test_srun_with_uneven_nodes_and_one_node(slurm: Slurm) -> None:
    words = ["srun", "--nodes=2", "--ntasks=3", sys.executable, "-m", "distbench", *SMALL]
    (record,) = run_words(slurm.on_login(*words), env=slurm.env).records
    assert sorted(ranks_of(record)) == [("n0", 0), ("n0", 1), ("n1", 0)]
    words = ["srun", "--nodes=1", "--ntasks=2", "--nodelist=n1", sys.executable, "-m", "distbench", *SMALL]
    records = run_words(slurm.on_login(*words), env=slurm.env).records
    assert ranks_of(records[-1]) == [("n1", 0), ("n1", 1)]


@pytest.mark.usefixtures("in_tmp")
def test_srun_with_slurms_own_pmi_is_still_slurm(slurm: Slurm) -> None:
    words = ["srun", "--mpi=pmi2", "--nodes=2", "--ntasks=2", sys.executable, "-m", "distbench", *SMALL]
    (record,) = run_words(slurm.on_login(*words), env=slurm.env).records
    assert record["world"]["launcher"] == "slurm"


@pytest.mark.usefixtures("in_tmp")
def test_srun_starts_a_torchrun_on_each_node(slurm: Slurm) -> None:
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=2", "--rdzv_backend=c10d"]
    torchrun += ["--rdzv_endpoint=n0:29400", "--rdzv_id=test", "-m", "distbench"]
    words = slurm.on_login("srun", "--nodes=2", "--ntasks-per-node=1", sys.executable, *torchrun, *SMALL)
    result = run_words(words, env=slurm.env | {"LOGLEVEL": "ERROR"})
    assert result.returncode == 0, result.stderr
    (record,) = result.records
    assert record["world"]["launcher"] == "torchrun"
    assert sorted(ranks_of(record)) == [("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)]


@pytest.mark.parametrize(("script", "launcher"), [("slurm.sbatch", "slurm"), ("slurm-torchrun.sbatch", "torchrun")])
def test_the_batch_scripts_measure_a_sweep(slurm: Slurm, in_tmp: Path, script: str, launcher: str) -> None:
    job = slurm.submit(LAUNCH / script, arguments=["-m", *SMALL, "workload.n=32,96"])
    state = slurm.await_job(job, 120)
    told = (in_tmp / f"slurm-{job}.out").read_text()
    assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), told
    records, _ = read_records(in_tmp)
    for record in records:
        validate(record)
    assert [record["status"] for record in records] == ["ok", "ok"]
    assert {record["world"]["launcher"] for record in records} == {launcher}
    assert {host for host, _ in ranks_of(records[0])} == {"n0", "n1"}
    assert (in_tmp / "outputs" / f"job-{job}" / RESULTS).exists()


def test_a_batch_job_that_fails_says_so_in_its_status(slurm: Slurm, in_tmp: Path) -> None:
    job = slurm.submit(LAUNCH / "slurm.sbatch", arguments=["workload.n=none", "workload=square"])
    state = slurm.await_job(job)
    assert state["JobState"] == "FAILED"
    assert "distbench: workload.n" in (in_tmp / f"slurm-{job}.out").read_text()


def test_a_batch_script_itself_is_a_world_of_one_and_says_so(slurm: Slurm, in_tmp: Path) -> None:
    script = in_tmp / "alone.sbatch"
    script.write_text(f"#!/bin/sh\n{sys.executable} -m distbench {' '.join(SMALL)}\n")
    job = slurm.submit(script, "--nodes=2", "--ntasks-per-node=2")
    assert slurm.await_job(job)["JobState"] == "COMPLETED"
    ((record,), _) = read_records(in_tmp)
    assert (record["world"]["launcher"], record["world"]["size"]) == ("single", 1)
    assert any(f"Slurm job {job} has 4 tasks" in note for note in record["world"]["notes"])
    assert "note: Slurm job" in (in_tmp / f"slurm-{job}.out").read_text()
