"""What bounds a query, by real ranks that measure the limits beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import run, torchrun


def test_two_ranks_tell_what_bounds_a_query_and_a_copy_that_is_not_made_is_none(in_tmp: Path) -> None:
    query = ["workload=gallery_small", "workload.m=20000", "split=m", "collect=host", "path=pageable,shared"]
    env = {"XDG_CACHE_HOME": str(in_tmp / "cache")}
    measure = ["measure=quick", "measure.limits=true", "measure.loop=3"]
    result = run(["--multirun", *query, *measure], torchrun(2), env=env, timeout_s=300)
    assert (result.returncode, result.statuses) == (0, ["ok"] * 2), result.stderr
    copied, shared = ({p["name"]: p for p in record["anatomy"]["phases"]} for record in result.records)
    for record, phases in zip(result.records, (copied, shared), strict=True):
        times, span_s = record["result"]["phases_s"], record["result"]["time_s"]
        rates = {row["name"]: row["value"] for row in record["limits"]["rows"]}
        assert record["limits"]["reason"] is None
        assert set(rates) == {"GEMM alone", "memory copy"}
        gemm = phases["gemm"]
        assert gemm["rate"] == pytest.approx(record["work"]["flop"] / times["gemm"] / 1e12)
        assert (gemm["limit"], gemm["limit_name"]) == (rates["GEMM alone"], "GEMM alone")
        assert record["anatomy"]["page_faults_per_run"] == record["result"]["loop"]["page_faults_per_run"]
        sentence = record["anatomy"]["sentence"]
        assert sentence.startswith("bound by the ")
        largest = max(times, key=lambda name: times[name])
        if "uneven" not in sentence:
            assert f": {min(1.0, times[largest] / span_s):.0%} of the span" in sentence
    w = result.records[0]["config"]["workload"]
    assert copied["collect"]["bytes"] == 2 * 8 * w["m"] * w["n"]  # float64, read and written
    assert copied["collect"]["limit_name"] == "memory copy"
    assert (shared["collect"]["bytes"], shared["collect"]["rate"]) == (None, None)
    page = run(["report", "--format=md", str(result.folders[0])])
    assert all(record["anatomy"]["sentence"] in page.stdout for record in result.records)


def test_the_limits_of_a_collective_are_those_of_its_group(in_tmp: Path) -> None:
    words = [
        "workload=gallery_small",
        "workload.m=30000",
        "split=m",
        "collect=all_gather",
        "measure=quick",
        "measure.limits=true",
    ]
    result = run(words, torchrun(2), timeout_s=200)
    assert (result.returncode, result.statuses) == (0, ["ok"]), result.stderr
    (record,) = result.records
    collect = record["anatomy"]["phases"][-1]
    (row,) = [row for row in record["limits"]["rows"] if row["name"] == "all_gather"]
    assert (collect["limit"], collect["rate"]) == (row["busbw"], pytest.approx(record["result"]["busbw"]))
    assert "limit: " in result.stdout
    assert "of the span" in result.stdout
