"""Cells leave nothing behind: after every cell each rank's memory is back where it was after the first."""

from __future__ import annotations

import pytest
from helpers import run, torchrun

pytestmark = [pytest.mark.usefixtures("in_tmp"), pytest.mark.timeout(900)]
WORDS = [
    *("-m", "workload=square", "workload.m=12000", "workload.n=64", "workload.k=1024", "workload.dtype=float64"),
    *("measure.warmup=1", "measure.min_samples=1", "measure.max_samples=1"),
    *("split=m,k", "path=auto,p2p,shared"),
    "collect=none,host,gather,all_gather,reduce,reduce_scatter,all_reduce",
]
SHARD_BYTES = 12000 * 1024 * 8 // 2  # of A: what one forgotten operand would add
TOLERANCE_BYTES = 24 << 20


def test_memory_comes_back_after_every_cell_of_a_sweep_of_all_collects() -> None:
    result = run(WORDS, torchrun(2), timeout_s=600)
    measured = [record for record in result.records if record["status"] == "ok"]
    assert len(measured) == 13, [record["reason"] for record in result.records]
    ends = [record["memory"]["end_bytes"] for record in measured]
    assert SHARD_BYTES > TOLERANCE_BYTES
    for rank in (0, 1):
        grown = [end[rank] - ends[1][rank] for end in ends[2:]]  # the first cells load what all of them use
        assert max(grown) < TOLERANCE_BYTES, grown
        cells = [record["memory"] for record in measured[2:]]
        assert max(told["end_bytes"][rank] - told["start_bytes"][rank] for told in cells) < TOLERANCE_BYTES
