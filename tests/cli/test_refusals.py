"""What cannot be done is said in one line, with the right exit status, and never costs the cells that can be done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import ALONE, Launcher, control_codes, mpirun, refusal, require, run, start, torchrun

pytestmark = pytest.mark.usefixtures("in_tmp")
SQUARE = ["workload=square", "measure=quick", "measure.warmup=1"]


@pytest.fixture
def poisoned(in_tmp: Path) -> dict[str, str]:
    """An environment in which importing torch fails."""
    package = in_tmp / "poison" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    return {"PYTHONPATH": str(package.parent)}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["workload.m=-1"], "workload.m=-1"),
        (["workload.m=0"], "workload.m=0"),
        (["workload.m=1.5"], "workload.m=1.5"),
        (["workload.m=many"], "workload.m=many"),
        (["workload.mm=3"], "workload.mm"),
        (["workload=sqare"], "square"),
        (["wrkload=square"], "wrkload"),
        (["workload.dtype=float31"], "float32"),
        (["split=x"], "split=x"),
        (["split=m", "collect=reduce"], "collect=reduce"),
        (["collect=gather", "path=in_place"], "path=in_place"),
        (["engine=numpy", "workload.dtype=bfloat16"], "workload.dtype=bfloat16"),
        (["measure.warmup=0"], "measure.warmup=0"),
        (["run.timeout_s=0"], "run.timeout_s=0"),
        (["run.timeout_s=soon"], "run.timeout_s=soon"),
        (["run.world=4"], "run.world=4"),
        (["--nonsense"], "--nonsense"),
        (["workload.m"], "workload.m"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_word_alone_is_one_line_and_costs_no_torch(
    poisoned: dict[str, str], words: list[str], told: str
) -> None:
    result = run(words, env=poisoned)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert told in refusal(result)


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_a_question_about_the_command_costs_no_torch(poisoned: dict[str, str], word: str) -> None:
    assert run([word], env=poisoned).returncode == 0


def test_a_refusal_reaches_mpiruns_exit_status() -> None:
    result = run(["workload.m=-1"], mpirun(3))
    assert result.returncode == 2
    assert refusal(result).startswith("workload.m=-1: ")
    assert result.folders == []


def test_a_refusal_stands_in_torchruns_report() -> None:
    result = run(["workload.m=-1"], torchrun(3))
    assert result.returncode == 1  # torchrun's, whatever a rank's was
    reason = refusal(result)
    assert reason.startswith("workload.m=-1: ")
    assert result.stderr.count(reason) == 2, result.stderr  # distbench's line and the report
    assert "exitcode  : 2" in result.stderr
    assert result.folders == []


def test_impossible_cells_of_a_sweep_fail_alone_wherever_they_stand() -> None:
    result = run(["-m", *SQUARE, "workload.n=0,32,-1,33,1.5"])
    assert result.returncode == 1
    assert result.statuses == ["failed", "ok", "failed", "ok", "failed"]
    reasons = [record["reason"] for record in result.records if record["status"] == "failed"]
    for reason, value in zip(reasons, ("0", "-1", "1.5"), strict=True):
        assert reason.startswith(f"workload.m={value}: ") or reason.startswith(f"workload.n={value}: ")
    assert len({record["cell"] for record in result.records}) == 5
    assert result.stderr == ""
    assert not control_codes(result.stdout)


def test_cells_that_only_the_machine_refuses_fail_alone_under_torchrun() -> None:
    result = run(["-m", *SQUARE, "workload.n=32", "device=cuda,cpu,cuda"], torchrun(2))
    assert result.returncode == 1
    assert result.statuses == ["failed", "ok", "failed"]
    assert "no CUDA device on rank 0, 1" in result.records[0]["reason"]


def test_a_cell_that_does_not_fit_says_what_would() -> None:
    for launcher, status in ((ALONE, 2), (torchrun(2), 1)):  # torchrun's own status is 1 whatever its ranks' was
        result = run(["workload.m=1e12", "collect=none"], launcher)
        assert result.returncode == status
        assert "the largest m that fits is " in refusal(result)
        assert result.records == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["workload.n=32,many,33"], "workload.n=many"),
        (["workload=square,sqare"], "sqare"),
        (["workload.nn=1,2"], "workload.nn"),
        (["+workload.nn=1,2"], "workload.nn"),
        (["split=m,q"], "split=q"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_composed_refuses_the_sweep_before_its_first_cell(words: list[str], told: str) -> None:
    result = run(["-m", *SQUARE, *words])
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert told in refusal(result)
    assert result.records == []


def test_the_gpu_experiment_without_a_gpu_says_so_in_one_line() -> None:
    result = run(["+experiment=gpu"])
    assert result.returncode == 2
    assert refusal(result).startswith("device=cuda: no CUDA device on rank 0")
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.records == []


def test_after_a_failure_stop_on_failure_skips_the_rest() -> None:
    result = run(["-m", *SQUARE, "run.stop_on_failure=true", "workload.n=32,0,33"])
    assert result.returncode == 1
    assert result.statuses == ["ok", "failed", "skipped"]


@pytest.mark.parametrize(("words", "parent"), [([], "outputs"), (["-m"], "multirun")], ids=["single", "sweep"])
def test_a_folder_that_cannot_be_made_is_one_line(in_tmp: Path, words: list[str], parent: str) -> None:
    (in_tmp / parent).write_text("a file in the way; root ignores modes")
    result = run([*words, *SQUARE, "workload.n=32"])
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert parent in refusal(result)


def test_a_disk_that_is_full_in_mid_sweep_ends_it_in_one_line_and_keeps_what_it_has(in_tmp: Path) -> None:
    require("bash")
    small = Launcher("alone", prefix=("bash", "-c", 'ulimit -f 8; exec "$0" "$@"'))  # 8 kB a file: a record or two
    running = start(["-m", *SQUARE, "workload.n=" + ",".join(map(str, range(32, 40)))], small)
    assert running.await_gone(60) < 60
    (path,) = in_tmp.glob("multirun/*/*/results.jsonl")
    *whole, broken = path.read_text().split("\n")
    assert broken != ""
    assert {json.loads(line)["status"] for line in whole} == {"ok"}
    assert len(whole) >= 1
    line, *how_to_go_on = running.stderr().splitlines()
    assert line.startswith("distbench: cannot write ")
    assert "results.jsonl" in line
    assert f"run.resume={path.parent.relative_to(in_tmp)}" in how_to_go_on[-1]
    assert running.processes[0].wait() not in (0, None)
