"""The leading process of a sweep of launches: what it refuses, and how parts become one results.jsonl."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from helpers import validate

from distbench import record
from distbench.config import Config, as_dict, cell_id
from distbench.launch import Launch, detect
from distbench.launchers import chosen, misused
from distbench.launchers.batch import Rank
from distbench.launchers.sweep import Job, Sweep

ALONE = Launch("single", 0, 1, 0, 1)
TORCHRUN = "hydra/launcher=torchrun"


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    led = Sweep(["-m", TORCHRUN], None)
    led.open(tmp_path)
    led.launcher, led.world_size = "torchrun", 2
    yield led
    led.console.close()


def job(number: int = 0) -> Job:
    config = Config()
    return Job(number, ["workload.n=5"], as_dict(config), cell_id(config, 2), None, None, None)  # type: ignore[arg-type]


def part(folder: Path, cell: str, **more: Any) -> Path:
    folder.mkdir()
    told = {"cell": cell, "status": "ok", "reason": None, "samples": None}
    told["result"] = {"tflops": 2.0, "time_s": 1.0, "time_ci_s": None, "samples": 1}
    (folder / record.RESULTS).write_text(json.dumps(told | more) + "\n")
    return folder


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["-m", TORCHRUN], "torchrun"),
        (["-m", f"+{TORCHRUN}"], "torchrun"),
        (["-m", "hydra/launcher=basic"], None),
        (["-m", "hydra/launcher=submitit_local", "hydra/launcher=basic"], None),
        (["-m", "workload.n=1,2"], None),
    ],
)
def test_the_launcher_is_read_from_the_command_line(words: list[str], name: str | None) -> None:
    assert chosen(words) == name


@pytest.mark.parametrize(
    ("launch", "words", "told"),
    [
        (Launch("torchrun", 0, 2, 0, 2), ["-m"], "starts the ranks itself"),
        (ALONE, [], "add -m"),
        (ALONE, ["-m", "run.dry_run=true"], "run.dry_run=true"),
        (ALONE, ["--multirun"], None),
    ],
)
def test_a_launcher_that_cannot_be_used_is_refused_in_one_line(
    launch: Launch, words: list[str], told: str | None
) -> None:
    reason = misused("torchrun", launch, [TORCHRUN, *words])
    assert reason is None if told is None else told in str(reason)
    assert "\n" not in str(reason)


def test_a_task_of_a_local_batch_job_knows_its_rank_in_spite_of_slurms_variables() -> None:
    told = {f"SUBMITIT_LOCAL_{name}": value for name, value in (("GLOBALID", "1"), ("LOCALID", "1"), ("NTASKS", "3"))}
    launch = detect({**told, "SUBMITIT_LOCAL_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"})
    assert (launch.launcher, launch.rank, launch.world_size, launch.local_rank) == ("submitit", 1, 3, 1)
    assert launch.job


def test_what_a_batch_jobs_tasks_call_travels_as_a_pickle() -> None:
    back = pickle.loads(cloudpickle.dumps(Rank(["-m", "a=1"], [60.0, 1800.0])))
    assert (back.arguments, back.timeouts) == (["-m", "a=1"], [60.0, 1800.0])


def test_a_part_moves_into_the_sweeps_file_with_its_samples(sweep: Sweep, tmp_path: Path) -> None:
    folder = part(tmp_path / "0-1", job().cell, samples={"file": "samples-x.json"})
    (folder / "samples-x.json").write_text("{}")
    sweep.gather(job(), folder, "missing", 1)
    (told,) = record.read(tmp_path / record.RESULTS)
    assert (told["cell"], told["repeat"], told["status"]) == (job().cell, 1, "ok")
    assert (tmp_path / "samples-x.json").is_file()
    assert not (folder / record.RESULTS).exists()
    assert sweep.bad == []


def test_a_launch_without_a_record_has_one_that_says_so(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    sweep.gather(job(), tmp_path / "0", "the launch was ended by SIGKILL")
    (told,) = record.read(tmp_path / record.RESULTS)
    validate(told)
    assert (told["cell"], told["status"], told["reason"]) == (job().cell, "failed", "the launch was ended by SIGKILL")
    assert sweep.bad == ["the launch was ended by SIGKILL"]
    assert sweep.outcome(job()).return_value is None


def test_launches_of_a_cell_are_read_apart_and_their_median_is_the_objective(sweep: Sweep, tmp_path: Path) -> None:
    for repeat, tflops in enumerate((1.0, 5.0, 3.0)):
        result = {"tflops": tflops, "time_s": 1.0, "time_ci_s": None, "samples": 1}
        sweep.gather(job(), part(tmp_path / f"0-{repeat}", job().cell, result=result), "missing", repeat)
    assert [told["repeat"] for told in record.read(tmp_path / record.RESULTS)] == [0, 1, 2]
    assert sweep.outcome(job(), range(3)).return_value == 3.0
    assert sweep.outcome(job(), range(4)).return_value is None  # one has not run


def test_a_resumed_sweep_takes_what_a_leader_that_was_killed_left_in_parts(tmp_path: Path) -> None:
    part(tmp_path / "0", job().cell, schema=record.SCHEMA)
    sweep = Sweep(["-m", TORCHRUN], tmp_path)
    sweep.open(tmp_path)
    assert sweep.stands(job())
    assert len(record.read(tmp_path / record.RESULTS)) == 1
    assert not (tmp_path / "0" / record.RESULTS).exists()


def test_the_command_that_goes_on_names_the_folder(sweep: Sweep, tmp_path: Path) -> None:
    assert sweep.how_to_go_on() == f"python -m distbench -m {TORCHRUN} run.resume={tmp_path}"
