"""A sweep that ended early goes on: no cell twice, none missing, and nothing measured again."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers import ALONE, Launcher, end_all, mpirun, read_records, run, run_ok, start, torchrun

pytestmark = pytest.mark.usefixtures("in_tmp")
SIZES = [32, 48, 64, 80]
# Cells of about a second: there is time to strike in the middle of one.
SLOW = ["measure.warmup=1", "measure.max_samples=1000000", "measure.max_time_s=1.5", "measure.target_rel_ci=0.000001"]
SWEEP = ["-m", "workload=square", "split=m", "collect=gather", *SLOW, "workload.n=" + ",".join(map(str, SIZES))]


def ok_sizes(records: list[dict[str, Any]]) -> list[int]:
    return [record["config"]["workload"]["n"] for record in records if record["status"] == "ok"]


def test_a_sweep_killed_as_a_whole_is_completed(in_tmp: Path) -> None:
    running = start(SWEEP, torchrun(2))
    running.await_records(2)
    running.await_quiet_s(0.5)
    end_all(running.mark)
    running.await_gone(10)
    before, (folder,) = read_records(in_tmp)
    with (folder / "results.jsonl").open("ab") as file:
        file.write(b'{"cell": "half a li')  # as if it had been struck while writing
    result = start([*SWEEP, f"run.resume={folder.relative_to(in_tmp)}"], torchrun(2))
    seen = result.await_gone(90)
    assert seen < 90
    lines = (folder / "results.jsonl").read_bytes().split(b"\n")
    records = [json.loads(text) for text in lines if text.startswith(b"{") and text.endswith(b"}")]
    assert records[: len(before)] == before  # nothing that stood is touched
    assert sorted(ok_sizes(records)) == SIZES
    assert [path.name for path in (in_tmp / "multirun").glob("*/*")] == [folder.name]
    assert result.stdout().count("  kept ") == len(before)


def test_failed_cells_run_again_and_count_as_they_end(in_tmp: Path) -> None:
    words = ["-m", "workload=square", "workload.n=32,33", "split=m", "measure=quick"]
    first = run([*words, "collect=none,reduce"])
    assert (first.returncode, first.statuses) == (1, ["ok", "failed"] * 2)
    (folder,) = first.folders
    again = run([*words, "collect=none,reduce", f"run.resume={folder}"])
    assert (again.returncode, again.statuses) == (1, ["ok", "failed"] * 2 + ["failed"] * 2)
    good = run_words([*words, "collect=none", f"run.resume={folder}/results.jsonl"])
    assert good.returncode == 0
    assert good.stdout.count("  kept ") == 2
    assert len(read_records(in_tmp)[0]) == 6


def run_words(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "distbench", *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_cell_that_failed_and_is_now_ok_counts_as_ok(in_tmp: Path) -> None:
    words = ["workload=square", "workload.n=32", "measure=quick"]
    (folder,) = run_ok(words).folders
    path = folder / "results.jsonl"
    record = json.loads(path.read_text()) | {"status": "failed", "reason": "lost", "result": None}
    record["environment"]["distbench"] = "0.0.1"
    path.write_text(json.dumps(record) + "\n")
    told = run_words([*words, f"run.resume={folder}"])
    assert told.returncode == 0, told.stderr
    assert "note: records of" in told.stdout
    assert "distbench 0.0.1" in told.stdout
    assert [record["status"] for record in read_records(in_tmp)[0]] == ["failed", "ok"]


def test_an_adaptive_sweeper_is_told_the_rates_that_stand(in_tmp: Path) -> None:
    words = ["-m", "workload=square", "measure=quick", "hydra/sweeper=optuna", "hydra.sweeper.direction=maximize"]
    words += ["hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=1", "workload.n=choice(48)"]
    first = run(words)
    assert first.statuses == ["ok"] * 3
    (folder,) = first.folders
    last = first.records[-1]["result"]["tflops"]  # the same cell three times: its last record stands
    assert run_words([*words, f"run.resume={folder}"]).returncode == 0
    assert len(read_records(in_tmp)[0]) == 3
    best = (folder / "optimization_results.yaml").read_text()
    assert float(best.partition("best_value:")[2]) == last


@pytest.mark.parametrize("rank", [0, 1])
def test_a_restarted_world_goes_on_by_itself(in_tmp: Path, rank: int) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max-restarts=3"]
    running = start(SWEEP, Launcher("alone", 1), program=[*words[1:], "-m", "distbench"], env={"LOGLEVEL": "ERROR"})
    running.await_records(1)
    running.await_text(" ok ")
    running.await_quiet_s(0.7)
    os.kill(running.pid_of_rank(rank), signal.SIGKILL)
    result = running.wait(120)
    (folder,) = result.folders
    assert folder.is_relative_to(in_tmp / "multirun")
    # Where rank 0 lived, it left a failed record of the cell that it was in, which the next world leaves alone.
    assert set(Counter(record["cell"] for record in result.records).values()) == {1}
    assert [record["config"]["workload"]["n"] for record in result.records] == SIZES
    assert result.statuses.count("failed") <= (1 if rank else 0)
    assert (result.returncode == 0) == ("failed" not in result.statuses)


@pytest.mark.parametrize(
    "make", [lambda: ALONE, lambda: torchrun(2), lambda: mpirun(2)], ids=["alone", "torchrun", "mpirun"]
)
def test_the_command_that_an_interrupted_run_prints_completes_it(in_tmp: Path, make: Any) -> None:
    launcher: Launcher = make()
    running = start(SWEEP, launcher)
    running.await_records(1)
    running.await_text(" ok ")
    running.await_quiet_s(0.7)
    running.signal(signal.SIGINT, to_all=launcher.name != "mpirun")
    assert running.await_gone(15) < 10
    lines = [line for line in running.stderr().splitlines() if "run.resume=" in line]
    assert len(lines) == 1, running.stderr()
    assert shlex.split(lines[0])[-1].startswith("run.resume=multirun/")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": "", "LOGLEVEL": "ERROR"}
    told = subprocess.run(
        ["bash", "-c", lines[0]], env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    assert told.returncode == 0, f"{lines[0]}\n{told.stdout}\n{told.stderr}"
    records, folders = read_records(in_tmp)
    assert len(folders) == 1
    assert sorted(ok_sizes(records)) == SIZES
    assert [record["status"] for record in records].count("skipped") <= 1
