"""An adaptive sweeper searches: the rate is its objective, a cell that failed is a failed trial, and the best is the best."""

from __future__ import annotations

import pytest
import yaml
from helpers import ALONE, run


@pytest.mark.usefixtures("in_tmp")
def test_the_example_finds_the_best_square_and_passes_over_a_cell_that_fails() -> None:
    words = ["-m", "+experiment=best_square", "workload.n=choice(-1,16,256)", "hydra.sweeper.n_trials=8"]
    words += ["measure.warmup=1", "measure.min_samples=3", "measure.max_samples=3"]
    result = run(words, ALONE, timeout_s=200)
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    told = [(r["config"]["workload"]["n"], r["status"], r["result"]) for r in result.records]
    assert len(told) == 8
    assert {status for n, status, _ in told if n == -1} == {"failed"}
    rates = {n: max(r["tflops"] for m, _, r in told if m == n) for n in (16, 256)}
    (folder,) = result.folders
    best = yaml.safe_load((folder / "optimization_results.yaml").read_text())
    assert best["best_params"]["workload.n"] == max(rates, key=lambda n: rates[n]) == 256
    assert best["best_value"] == pytest.approx(rates[256])
