"""Sweeps whose cells are launches of their own, by the real torchrun and the real submitit."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import psutil
import pytest
from helpers import marked, refusal, run, start, torchrun

pytestmark = [pytest.mark.usefixtures("in_tmp"), pytest.mark.timeout(900)]
SQUARE = ["workload=square", "measure.warmup=1", "measure.min_samples=1", "measure.max_samples=1"]
TORCHRUN = ["-m", "hydra/launcher=torchrun", "hydra.launcher.nproc_per_node=2", *SQUARE]
LONG = ["measure.max_samples=1000000", "measure.max_time_s=1000", "measure.target_rel_ci=1e-9"]
NO_TORCH = "raise ImportError('the leading process needs no torch')"


def test_launches_of_a_cell_are_repeated_and_a_bad_cell_has_its_record(in_tmp: Path) -> None:
    result = run([*TORCHRUN, "hydra.launcher.repeats=2", "workload.n=32,-1,48"], timeout_s=600)
    assert result.returncode == 1, result.stderr
    told = [(r["config"]["workload"]["n"], r.get("repeat"), r["status"]) for r in result.records]
    assert told == [(32, 0, "ok"), (32, 1, "ok"), (-1, None, "failed"), (48, 0, "ok"), (48, 1, "ok")]
    assert result.records[0]["cell"] == result.records[1]["cell"]
    pids = {rank["pid"] for record in result.records for rank in record["world"]["ranks"]}
    assert len(pids) == 8  # each launch is a fresh one
    (folder,) = result.folders
    assert folder.is_relative_to(in_tmp / "multirun")


def test_a_launch_killed_whole_fails_its_cell_and_ctrl_c_tells_the_command_that_goes_on(in_tmp: Path) -> None:
    running = start([*TORCHRUN, *LONG, "workload.n=32,48", "measure.max_samples=1000000"])
    log = "multirun/*/*/0/launch.log"
    running._await(lambda: any("rank  host" in path.read_text() for path in in_tmp.glob(log)), "no rank", 300)
    leader = running.processes[0].pid
    for pid in [pid for pid in marked(running.mark) if pid != leader]:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)
    running.await_records(1, 120)
    second = "multirun/*/*/1/launch.log"
    running._await(lambda: any("rank  host" in path.read_text() for path in in_tmp.glob(second)), "no rank", 300)
    running.signal(signal.SIGINT, to_all=True)
    running.await_gone(60)
    result = running.wait(900)
    assert result.returncode == 1
    assert result.statuses == ["failed", "skipped"], [record["reason"] for record in result.records]
    assert "SIGKILL" in result.records[0]["reason"]
    words = shlex.split(result.stderr.splitlines()[-1])
    assert words[:3] == ["python", "-m", "distbench"]
    quick = [word for word in words[3:] if word not in LONG] + ["hydra.launcher.nproc_per_node=2"]
    assert quick[-2].startswith("run.resume=multirun/")
    # The command as it is would measure for minutes: what it names is what counts here.
    assert {word for word in TORCHRUN if word not in quick} == set()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_resuming_runs_only_the_launches_that_are_missing(in_tmp: Path) -> None:
    first = run([*TORCHRUN, "workload.n=32"], timeout_s=300)
    assert first.statuses == ["ok"]
    folder = first.folders[0].relative_to(in_tmp)
    second = run([*TORCHRUN, "workload.n=32,48", f"run.resume={folder}"], timeout_s=300)
    assert (second.returncode, second.stderr) == (0, "")
    assert [r["config"]["workload"]["n"] for r in second.records] == [32, 48]
    assert " kept " in second.stdout


def test_local_batch_jobs_form_a_world_each_and_leave_one_file(in_tmp: Path) -> None:
    words = ["-m", "hydra/launcher=submitit_local", "hydra.launcher.tasks_per_node=2", *SQUARE, "workload.n=32,-1,48"]
    result = run(words, timeout_s=600)
    assert (result.returncode, result.stderr) == (1, "")
    told = [(r["config"]["workload"]["n"], r["status"], r["world"]["size"]) for r in result.records]
    assert told == [(32, "ok", 2), (-1, "failed", 2), (48, "ok", 2)]
    assert {r["world"]["launcher"] for r in result.records} == {"submitit"}
    assert len(result.folders) == 1
    assert shlex.split(result.records[0]["environment"]["command"])[3:] == words


def test_the_leading_process_needs_no_torch(in_tmp: Path) -> None:
    (in_tmp / "poison").mkdir()
    (in_tmp / "poison" / "torch.py").write_text(NO_TORCH)
    result = run([*TORCHRUN, "workload.n=-1"], env={"PYTHONPATH": str(in_tmp / "poison")})
    assert (result.returncode, result.stderr, result.statuses) == (1, "", ["failed"])


def test_a_launcher_that_starts_ranks_is_refused_by_a_rank() -> None:
    assert "starts the ranks itself" in refusal(run(["-m", "hydra/launcher=torchrun", *SQUARE], torchrun(2)))
