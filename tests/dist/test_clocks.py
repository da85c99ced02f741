"""Ranks whose clocks are far apart: spans stay sane, and the error of the offset stands in the record.

A time namespace gives one rank a CLOCK_MONOTONIC that is 1000 s ahead, as another host would have. Catches spans of
±1000 s, an offset of the wrong sign, and ranks that wait 1000 s for an announced start.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from helpers import missing, plain, require, require_root, run

AHEAD = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", "1000")


@pytest.fixture
def _time_namespace() -> None:
    require("unshare")
    require_root()
    if subprocess.run([*AHEAD, "true"], capture_output=True).returncode != 0:
        missing("this kernel gives no time namespaces")


@pytest.mark.usefixtures("_time_namespace")
@pytest.mark.parametrize("ahead", [0, 1], ids=["rank0_ahead", "rank1_ahead"])
def test_ranks_with_clocks_1000_s_apart_give_sane_spans(in_tmp: Path, ahead: int) -> None:
    prefixes = [AHEAD if rank == ahead else () for rank in range(2)]
    arguments = ["workload=square", "workload.n=256", "split=m", "collect=gather", "measure=quick"]
    # window: the announced instant has to be told in each rank's own time; with barrier nothing would show a wrong offset
    arguments += ["measure.start=window", "measure.max_samples=30", "measure.min_samples=30"]
    code, _, stderr, records = run(arguments, plain(2), prefixes=prefixes)
    assert (code, stderr) == (0, "")
    (record,) = records
    samples = record["samples"]
    assert 0 < samples["clock_error_s"] < 0.1
    assert len({rank["clock"] for rank in record["world"]["ranks"]}) == 2
    for span_s in samples["span_s"]:
        assert 0 < span_s < 10
    slowest = [max(times) for times in zip(*samples["rank_s"], strict=True)]
    for span_s, rank_s in zip(samples["span_s"], slowest, strict=True):
        assert span_s >= rank_s - 1e-9  # a span covers each rank's own time, whatever the offset is
    assert record["result"]["start_skew_s"] < 0.1 + samples["clock_error_s"]
    assert record["result"]["setup_s"] < 60
