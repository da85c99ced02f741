"""A world that never becomes complete: what is missing is said within run.timeout_s, on each side of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import Launcher, refusal, start

SILENT = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "3"}
TIMEOUT_S = 3


@pytest.mark.usefixtures("in_tmp")
def test_ranks_that_never_come_are_named(tmp_path: Path) -> None:
    port = Launcher("env", 3).environments()[0]["MASTER_PORT"]
    words = ["workload=square", "workload.n=32", f"run.timeout_s={TIMEOUT_S}"]
    # Ranks 0 and 2 of three, and side by side with them a rank 1 whose rank 0 never comes.
    together = [start(words, env={**SILENT, "MASTER_PORT": port, "RANK": rank}) for rank in ("0", "2")]
    other_port = Launcher("env", 3).environments()[0]["MASTER_PORT"]
    lonely = start(words, env={**SILENT, "MASTER_PORT": other_port, "RANK": "1"})
    results = [running.wait(40) for running in (*together, lonely)]
    assert all(result.returncode not in (0, None) for result in results)
    assert "2 of 3 ranks arrived" in refusal(results[0])
    assert "missing: 1" in refusal(results[0])
    assert f"no answer from rank 0 for 3 s (run.timeout_s), in stage join: 127.0.0.1:{other_port}" in results[2].stderr
    assert all(result.records == [] for result in results)
