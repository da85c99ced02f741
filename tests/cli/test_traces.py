"""profile=torch under torchrun: one trace of both ranks on one clock, and the same reported samples as without."""

from __future__ import annotations

import json
from pathlib import Path

from helpers import run_ok, torchrun

WORDS = ["workload=square", "workload.n=512", "collect=gather", "measure.min_samples=5", "measure.max_samples=5"]


def test_the_merged_trace_has_both_ranks_at_the_same_time(in_tmp: Path) -> None:
    (plain,) = run_ok(WORDS, torchrun(2)).records
    run = run_ok([*WORDS, "profile=torch", "shards_per_device=2"], torchrun(2))
    (record,) = [told for told in run.records if told["trace"] is not None]
    assert plain["trace"] is None
    assert len(record["samples"]["span_s"]) == len(plain["samples"]["span_s"]) == 5
    trace = record["trace"]
    assert len(trace["files"]) == 3
    (path,) = in_tmp.rglob(trace["files"][0])
    assert all((path.parent / name).is_file() for name in trace["files"])
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"rank 0", "rank 1"}
    for index in range(trace["samples"]):
        own = [e for e in events if e["name"] == f"sample {index}" and e.get("cat") == "user_annotation"]
        assert sorted(e["pid"] for e in own) == [0, 1]
        # The gather needs both ranks within the sample: on a common clock neither ends before the other starts.
        slack_us = 2e6 * trace["clock_error_s"] + 1000
        assert max(e["ts"] for e in own) < min(e["ts"] + e["dur"] for e in own) + slack_us
    for rank in (0, 1):
        told = {e["name"] for e in events if e["pid"] == rank}
        assert {f"gemm {rank}", f"collect {rank}", f"shard {rank}.0", f"shard {rank}.1"} <= told
    assert trace["of"] == "ranges"
    assert trace["gap_s"] >= 0
