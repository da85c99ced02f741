"""What a machine can do, by real ranks: measured, kept, and told by the next run."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import ALONE, Launcher, refusal, run, run_ok, torchrun


@pytest.mark.parametrize("launcher", [ALONE, torchrun(2)], ids=["alone", "torchrun"])
def test_the_next_run_tells_its_share_of_what_was_measured(in_tmp: Path, launcher: Launcher) -> None:
    env = {"XDG_CACHE_HOME": str(in_tmp / "cache")}
    words = ["workload=ceilings", "measure=quick", "ceilings.budget_s=6"]
    measured = run_ok(words, launcher, env=env, timeout_s=200)
    (record,) = measured.records
    names = {row["name"] for row in record["ceilings"]}
    assert names >= {"memory copy", "GEMM", "clock"}
    assert ({"barrier", "all_reduce", "all_gather", "reduce_scatter", "gather", "reduce", "broadcast"} <= names) == (
        launcher.ranks > 1
    )
    for row in record["ceilings"]:
        assert row["value"] is not None, row
        if row["busbw"] is not None:
            factor = {"all_gather": 0.5, "reduce_scatter": 0.5, "gather": 0.5}.get(row["name"], 1.0)  # of two ranks
            assert row["busbw"] == pytest.approx(factor * row["value"])
    assert "what this machine can do" in measured.stdout
    assert len(list((in_tmp / "cache" / "distbench" / "ceilings").glob("*.json"))) == 1
    after = run_ok(["workload=square", "workload.n=512", "measure=quick", "hydra.run.dir=later"], env=env)
    told = after.records[-1] if after.records[-1]["config"]["workload"]["name"] == "square" else after.records[0]
    assert told["result"]["ceiling_share"] > 0
    assert "of the measured" in after.stdout


@pytest.mark.parametrize(
    "words", [["measure.graph=true"], ["measure.inner=2", "collect=gather"], ["measure.inner=1.5"]]
)
def test_a_mode_that_cannot_be_is_one_line_and_status_2(in_tmp: Path, words: list[str]) -> None:
    result = run(["workload=square", *words])
    assert result.returncode == 2
    assert refusal(result).startswith(words[0].partition("=")[0])
    assert not result.records
