"""Every legal split × collect × path × dtype × engine in worlds of 1 to 4: what each rank holds is the product.

Catches a shard in the wrong place, a stale or unwritten row, a padded row that was not trimmed, a sum with a term missing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cases import Key, cases, key_of, keys
from helpers import start, torchrun

WORKER = str(Path(__file__).with_name("worker_collects.py"))


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids=lambda size: f"world{size}")
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, marked_module: str
) -> dict[int, list[dict[str, Any]]]:
    """Per rank, what it said of each case: one launch for all."""
    folder = tmp_path_factory.mktemp("collects")
    launcher = torchrun(request.param)
    result = start([str(folder)], launcher, program=[WORKER], cwd=folder, mark=marked_module).wait(120)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return {rank: json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(request.param)}


@pytest.mark.parametrize("key", keys(), ids="-".join)
def test_each_rank_holds_its_part_of_the_product(told: dict[int, list[dict[str, Any]]], key: Key) -> None:
    expected = sum(1 for case in cases() if key_of(case) == key)
    for rank, lines in told.items():
        own = [line for line in lines if tuple(line["key"]) == key]
        assert len(own) == expected
        wrong = [f"rank {rank}: {line['case']}: {line['error']}" for line in own if line["error"]]
        assert not wrong, "\n".join(wrong[:5])
