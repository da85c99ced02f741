"""The commands of the README and of the issue, as typed: they run, say what they found and leave records that fit.

Each `run_ok` also holds that stderr is empty, that piped output has no control codes, and that the records fit the schema.
"""

from __future__ import annotations

import json
import subprocess
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from helpers import ALONE, MODULE, Launcher, mpirun, read_records, run, run_ok, start, torchrun

pytestmark = pytest.mark.usefixtures("in_tmp")
QUICK = ["measure=quick", "measure.warmup=1"]
SQUARE = ["workload=square", *QUICK]


def _shards(record: dict[str, Any], axis: str) -> list[int]:
    return [rank["shard"][axis] for rank in record["world"]["ranks"]]


def test_the_default_under_torchrun(in_tmp: Path) -> None:
    result = run_ok(["workload.m=3001", "measure.max_time_s=1"], torchrun(3))
    (record,) = result.records
    config = record["config"]
    assert (config["workload"]["name"], config["split"], config["collect"]) == ("gallery_small", "m", "gather")
    assert config["path"] == "collective"  # a gather is by the collective unless asked otherwise
    assert (config["device"], config["backend"], record["autos"]) == ("cpu", "gloo", ["path", "device", "backend"])
    assert record["world"]["launcher"] == "torchrun"
    assert _shards(record, "m") == [1001, 1000, 1000]
    flop = 2 * 3001 * 256 * 512
    moved = 8 * (3001 * 512 + 512 * 256 + 3001 * 256)
    assert (record["work"]["flop"], record["work"]["bytes"], record["work"]["flop_per_term"]) == (flop, moved, 2)
    outcome, samples = record["result"], record["samples"]
    assert outcome["tflops"] == pytest.approx(flop / outcome["time_s"] / 1e12)
    assert len(samples["rank_s"]) == 3
    assert {len(times) for times in samples["rank_s"]} == {len(samples["span_s"])}
    assert outcome["best_s"] == min(samples["span_s"])
    assert "workload.m=3001" in record["environment"]["command"]
    (folder,) = result.folders
    assert folder.is_relative_to(in_tmp / "outputs")
    assert (folder / ".hydra" / "config.yaml").is_file()
    assert str((folder / "results.jsonl").relative_to(in_tmp)) in result.stdout
    assert "verified" in result.stdout


def test_a_sweep_of_split_and_gathers_under_torchrun(in_tmp: Path) -> None:
    words = ["workload.n=64,65", "split=m,n", "collect=gather,all_gather"]
    result = run_ok(["-m", "workload=square", *words, "measure=quick"], torchrun(3))
    cells = [(r["config"]["workload"]["n"], r["config"]["split"], r["config"]["collect"]) for r in result.records]
    assert cells == list(product((64, 65), ("m", "n"), ("gather", "all_gather")))
    assert len({record["cell"] for record in result.records}) == 8
    (folder,) = result.folders
    assert folder.is_relative_to(in_tmp / "multirun")
    assert result.stdout.count("  ok ") == 8
    assert [_shards(r, "m") for r in result.records if r["config"]["split"] == "m"][-1] == [22, 22, 21]


def test_a_sweep_of_the_reductions_of_a_k_split_under_torchrun() -> None:
    words = ["split=k", "collect=reduce,reduce_scatter,all_reduce"]
    result = run_ok(["-m", "workload=square", "workload.n=65", *words, "measure=quick"], torchrun(3))
    assert [record["config"]["collect"] for record in result.records] == ["reduce", "reduce_scatter", "all_reduce"]
    assert _shards(result.records[0], "k") == [22, 22, 21]


def test_fewer_rows_than_ranks_and_uneven_rows_by_both_engines_under_mpirun() -> None:
    words = ["workload.n=64", "workload.m=2,7", "engine=torch,numpy", "collect=gather"]
    result = run_ok(["-m", *SQUARE, *words], mpirun(3))
    assert {record["world"]["launcher"] for record in result.records} == {"openmpi"}
    assert [_shards(record, "m") for record in result.records] == [[1, 1, 0]] * 2 + [[3, 2, 2]] * 2
    assert [record["config"]["engine"] for record in result.records] == ["torch", "numpy"] * 2


def test_batched_by_both_engines_alone() -> None:
    result = run_ok(["-m", "workload=batched", "engine=numpy,torch", *QUICK, "measure.max_time_s=1"])
    assert [record["work"]["flop"] for record in result.records] == [2 * 20 * 1000 * 1000 * 200] * 2
    assert {record["world"]["launcher"] for record in result.records} == {"single"}


def test_a_plan_for_4096_ranks_is_exact_and_leaves_nothing(in_tmp: Path) -> None:
    m, n, k = 123_456_789_013, 255, 511  # 2·m·n·k is no float64
    words = [f"workload.m={m}", f"workload.n={n}", f"workload.k={k}", "collect=none", "device=cpu"]
    result = run_ok([*words, "run.dry_run=true", "run.world=4096"])
    assert f"{2 * m * n * k} FLOP" in result.stdout
    assert f"{8 * (m * k + k * n + m * n)} of A, B and C" in result.stdout
    assert "4096 ranks" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if line.strip()[:1].isdecimal()]
    largest, smallest = -(-m // 4096), m // 4096
    assert (rows[0][0], int(rows[0][2]), int(rows[0][5])) == ("0", largest, 2 * largest * n * k)
    assert (rows[-1][0], int(rows[-1][2])) == ("4095", smallest)
    assert result.folders == []
    assert [path.name for path in in_tmp.iterdir() if not path.name.startswith(".told")] == []


def test_a_run_never_takes_a_folder_that_exists(in_tmp: Path) -> None:
    # As if another run had started in the same second, whichever of the next seconds that will be.
    now = time.time()
    taken = [time.strftime("%Y-%m-%d/%H-%M-%S", time.localtime(now + second)) for second in range(60)]
    for name in taken:
        (in_tmp / "outputs" / name).mkdir(parents=True)
    (folder,) = run_ok([*SQUARE, "workload.n=32"]).folders
    name = folder.relative_to(in_tmp / "outputs")
    assert str(name) not in taken
    assert str(name).removesuffix("-1") in taken


def test_runs_that_start_together_keep_their_results_apart(in_tmp: Path) -> None:
    runs = [start(["-m", *SQUARE, f"workload.n={32 + index}"], cwd=in_tmp) for index in range(2)]
    assert [running.wait(60).returncode for running in runs] == [0, 0]
    found = sorted(in_tmp.glob("multirun/*/*/results.jsonl"))
    assert len(found) == 2
    sizes = {json.loads(path.read_text())["config"]["workload"]["n"] for path in found}
    assert sizes == {32, 33}


def test_an_adaptive_sweeper_forms_one_folder(in_tmp: Path) -> None:
    words = ["hydra/sweeper=optuna", "hydra.sweeper.direction=maximize", "hydra.sweeper.n_trials=3"]
    words += ["hydra.sweeper.n_jobs=1", "workload.n=choice(32,48,64)"]
    result = run(["-m", *SQUARE, *words], torchrun(2))
    told = [line for line in result.stderr.splitlines() if "A new study created" not in line]  # optuna's own
    assert (result.returncode, told) == (0, [])
    assert result.statuses == ["ok"] * 3
    (folder,) = result.folders
    assert folder.is_relative_to(in_tmp / "multirun")
    assert (folder / "optimization_results.yaml").is_file()


def test_a_reader_that_leaves_does_not_end_the_sweep(in_tmp: Path) -> None:
    command = [*ALONE.commands(MODULE)[0], "-m", *SQUARE, "workload.n=32,33"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=in_tmp, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("distbench ")
        process.stdout.close()  # as head -1 does
        told = process.stderr.read()
    assert (process.returncode, told) == (0, "")
    assert [record["status"] for record in read_records(in_tmp)[0]] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("launcher", "word"),
    [(ALONE, "--version"), (ALONE, "--help"), (torchrun(2), "--help")],
    ids=["one", "two", "ranks"],
)
def test_a_question_about_the_command_is_answered_once(launcher: Launcher, word: str) -> None:
    told = run_ok([word], launcher).stdout
    assert told.count("distbench 0." if word == "--version" else "Exit status") == 1
