"""experiment=health and experiment=peak on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers import ALONE, run, torchrun

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
VISIBLE = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(torch.cuda.device_count())))}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_agree_bit_for_bit_and_are_named_with_uuid_and_bus(in_tmp: Path, ranks: int) -> None:
    """On one GPU the ranks share it over gloo, and their times are not judged; on several they are a rank each over NCCL."""
    if ranks > 2 and torch.cuda.device_count() < ranks:
        pytest.skip("fewer GPUs")
    lenient = [f"health.{key}=900" for key in ("slow", "spread", "stalls", "late", "late_starts", "link")]
    words = ["+experiment=health", "workload.n=4096", "measure.min_time_s=1", *lenient]
    result = run(words, ALONE if ranks == 1 else torchrun(ranks), env=VISIBLE, timeout_s=200)
    assert result.returncode == 0, result.stderr
    (record,) = result.records
    assert record["config"]["workload"]["dtype"] == "bfloat16"
    assert len({item["numbers"]["digest"] for item in record["health"]}) == 1
    for item in record["health"]:
        assert item["device_uuid"]
        assert item["pci"].count(":") == 2
        assert item["verdict"] == ("ok" if 1 < ranks <= torch.cuda.device_count() else "unknown")
    assert len(record["links"]) == ranks * (ranks - 1) // 2


def test_the_peak_search_beats_the_bare_squares_and_has_waves(in_tmp: Path) -> None:
    words = ["+experiment=peak", "peak.time_s=60", "peak.largest=8192", "workload.dtype=bfloat16,int8"]
    result = run(words, env=VISIBLE, timeout_s=280)
    assert (result.returncode, set(result.statuses)) == (0, {"ok"}), result.stderr
    (folder,) = result.folders
    for told in json.loads((folder / "peak.json").read_text()):
        own = [item for item in result.records if item["config"]["workload"]["dtype"] == told["dtype"]]
        rates = {item["config"]["workload"]["name"]: 0.0 for item in own}
        for item in own:
            name = item["config"]["workload"]["name"]
            rates[name] = max(rates[name], item["result"]["tflops"])
        assert told["best"]["tflops"] == max(rates.values())
        assert {"peak_square", "peak_whole_waves", "peak_wave"} <= rates.keys()
        assert ("peak_odd" in rates) == (told["dtype"] == "bfloat16")  # int8 has no odd sizes
