"""A step that fails on one rank: the cell is failed on all of them, with that rank's reason, and the next cell is right.

Catches ranks that run on while others wait in a collective, a reason that names a victim instead of the cause, a broken
group that the next cell meets, and a wrong product that is given a rate.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from faults import FAULTS, MESSAGE
from helpers import run, start, torchrun

RANKS = 3
HERE = Path(__file__).parent
Told = list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, marked_module: str) -> Told:
    """Per rank, what became of each cell."""
    folder = tmp_path_factory.mktemp("faults")
    worker = str(HERE / "worker_faults.py")
    result = start([str(folder)], torchrun(RANKS), program=[worker], cwd=folder, mark=marked_module).wait(90)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def _of(told: Told, after: int) -> list[tuple[int, dict[str, Any]]]:
    return [(rank, cell) for rank, cells in enumerate(told) for cell in cells if cell["after"] == after]


@pytest.mark.parametrize(
    "seed", FAULTS, ids=lambda seed: f"{FAULTS[seed].step}-rank{FAULTS[seed].rank}-run{FAULTS[seed].run}"
)
def test_a_fault_on_one_rank_fails_the_cell_on_all_and_names_it(told: Told, seed: int) -> None:
    fault = FAULTS[seed]
    for rank, cell in _of(told, seed):
        if cell["seed"] != seed:
            continue
        where = f"rank {rank} after {cell['path']}: {cell['reason']}"
        assert cell["seconds"] < 15, where  # the time-outs are 60 and 600 s
        assert cell["result"] is None, where
        if fault.step == "corrupt":
            assert cell["status"] == "wrong", where
            assert cell["verification"]["ok"] is False, where
            assert cell["verification"]["max_error"] > cell["verification"]["tolerance"], where
            continue
        assert cell["status"] == "failed", where
        assert f"rank {fault.rank} (host {os.uname().nodename}, pid " in cell["reason"], where
        assert f"), {fault.stage}: " in cell["reason"], where
        assert ("out of memory" if fault.step == "memory" else MESSAGE) in cell["reason"], where
        others = [f"rank {other} (" for other in range(RANKS) if other != fault.rank]
        assert not any(other in cell["reason"] for other in others), f"names a rank that only followed: {where}"


def test_the_cell_after_a_fault_is_right(told: Told) -> None:
    cells = [cell for cells in told for cell in cells if cell["seed"] == 0]
    assert len(cells) == RANKS * len([cell for cell in told[0] if cell["seed"] != 0])
    bad = [f"after {cell['after']}, {cell['path']}: {cell['reason']}" for cell in cells if cell["status"] != "ok"]
    assert not bad


def test_all_ranks_tell_the_same(told: Told) -> None:
    stories = [[(cell["status"], cell["reason"]) for cell in cells] for cells in told]
    assert stories.count(stories[0]) == RANKS


def test_the_command_goes_on_after_a_failed_and_a_wrong_cell_and_exits_1(in_tmp: Path) -> None:
    small = ["workload=square", "workload.n=48", "split=m", "collect=gather", "measure=quick", "measure.warmup=1"]
    worker = str(HERE / "worker_main.py")
    code, stdout, stderr, records = run(["-m", *small, "workload.seed=0,107,2,119,4"], torchrun(2), program=[worker])
    assert code == 1
    assert [record["status"] for record in records] == ["ok", "failed", "ok", "wrong", "ok"], stderr
    failed, wrong = records[1], records[3]
    assert f"rank 1 (host {os.uname().nodename}, pid " in failed["reason"]
    assert MESSAGE in failed["reason"]
    assert wrong["reason"].startswith("wrong result: ")
    assert wrong["samples"] is None
    assert wrong["verification"]["ok"] is False
    assert "  wrong   workload.seed=119" in stdout
    assert MESSAGE in stderr  # torchrun's report, where the error file's reason stands
