"""hydra/launcher=torchrun: a launch per cell and repeat, one results.jsonl, and no launch's death ends the sweep."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import Running, marked, run, start, validate

pytestmark = pytest.mark.usefixtures("in_tmp")
BY_TORCHRUN = ["-m", "hydra/launcher=torchrun", "hydra.launcher.nproc_per_node=2", "workload=square", "split=m"]
LONG = ["measure.min_samples=1", "measure.max_time_s=1000", "measure.target_rel_ci=1e-9"]


def records_of(folder: Path) -> list[dict[str, Any]]:
    """The sweep's own; each launch's lie below it."""
    (path,) = folder.glob("multirun/*/*/results.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        validate(record)
    return records


def test_each_cell_is_launched_as_often_as_asked_for_and_a_bad_one_is_a_record(in_tmp: Path) -> None:
    result = run([*BY_TORCHRUN, "hydra.launcher.repeats=2", "workload.n=32,0", "measure=quick"])
    assert (result.returncode, result.stderr) == (1, "")
    records = records_of(in_tmp)
    assert [(r["config"]["workload"]["n"], r["repeat"], r["status"]) for r in records] == [
        (32, 0, "ok"),
        (32, 1, "ok"),
        (0, 0, "failed"),
        (0, 1, "failed"),
    ]
    assert records[0]["cell"] == records[1]["cell"]
    assert records[0]["world"]["size"] == 2
    pids = [rank["pid"] for record in records[:2] for rank in record["world"]["ranks"]]
    assert len(set(pids)) == 4  # each launch is a fresh one


def agents(running: Running) -> list[int]:
    """torchrun's processes."""
    found = []
    for pid in marked(running.mark):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"torch.distributed.run" in words:
            found.append(pid)
    return found


def await_measuring(running: Running, folder: str) -> None:
    marks = f"multirun/*/*/{folder}/.hydra/config.yaml"
    running._await(lambda: any(running.cwd.glob(marks)), f"no {folder}", 60)
    running.await_quiet_s(2)


def test_a_launch_that_is_killed_leaves_a_failed_record_and_the_next_cell_runs(in_tmp: Path) -> None:
    running = start([*BY_TORCHRUN, "workload.n=32", "measure.max_samples=1000000,5", *LONG])
    await_measuring(running, "0/launch-0")
    (agent,) = agents(running)
    ranks = [running.pid_of_rank(0), running.pid_of_rank(1)]
    for pid in (agent, *ranks):
        os.kill(pid, signal.SIGKILL)
    result = running.wait(90)
    assert result.returncode == 1
    first, second = records_of(in_tmp)
    assert (first["status"], second["status"]) == ("failed", "ok")
    assert first["reason"].startswith("torchrun was ended by SIGKILL and left no record")
    assert first["config"]["measure"]["max_samples"] == 1000000


def test_an_interrupted_sweep_ends_its_launch_and_is_completed_by_the_command_that_it_prints(in_tmp: Path) -> None:
    running = start([*BY_TORCHRUN, "workload.n=32,48", *LONG, "measure.max_samples=1000000", "measure.max_time_s=5"])
    await_measuring(running, "0/launch-0")
    running.signal(signal.SIGINT)
    assert running.await_gone(20) < 15
    assert [record["status"] for record in records_of(in_tmp)] == ["skipped"]
    (line,) = [text for text in running.stderr().splitlines() if "run.resume=" in text]
    words = [sys.executable, *shlex.split(line)[1:]]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "LOGLEVEL": "ERROR"}
    told = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert told.returncode == 0, told.stderr
    assert [record["status"] for record in records_of(in_tmp)] == ["skipped", "ok", "ok"]


def test_the_leading_process_needs_no_torch() -> None:
    program = "import distbench.__main__, distbench.launchers.by_torchrun, sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["hydra/launcher=torchrun"], "add -m"),
        (["-m", "hydra/launcher=torchrun", "hydra.launcher.repeats=0"], "hydra.launcher.repeats=0"),
        (["-m", "hydra/launcher=torchrun", "+hydra.launcher.nproc=2"], "hydra.launcher.nproc=2"),
    ],
)
def test_wrong_settings_are_refused(in_tmp: Path, words: list[str], told: str) -> None:
    result = run(words)
    assert result.returncode == 2
    assert told in result.stderr
    assert "Traceback" not in result.stderr
