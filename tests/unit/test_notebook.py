"""What the table of experiment=cpu_vs_gpu is computed from."""

from __future__ import annotations

from typing import Any

import pytest

from distbench.show.notebook import notebook_table
from distbench.stats import line_fit, timeit


def test_neighbouring_samples_are_a_repeat_and_the_spread_is_between_repeats() -> None:
    # means of the repeats: 2 and 6; their mean 4, each 2 away; the seventh sample is of no repeat
    assert timeit([1.0, 3.0, 5.0, 7.0, 99.0], 2, 2) == (4.0, 2.0)
    assert timeit([1.0, 3.0, 5.0], 2, 2) is None


def test_a_line_is_found_and_the_largest_distance_is_a_share_of_the_last_time() -> None:
    assert line_fit([3.0, 5.0, 7.0, 9.0]) == pytest.approx((2.0, 0.0))
    # through (1, 1), (2, 2), (3, 6): slope 5/2, mean 3, residuals 1/2, -1, 1/2
    assert line_fit([1.0, 2.0, 6.0]) == pytest.approx((2.5, 1 / 6))
    assert line_fit([1.0, 2.0]) is None


def looped(engine: str, called_s: float) -> dict[str, Any]:
    """A record of a loop of 3 runs, 2 s each."""
    workload = {"batch": 2, "m": 10, "n": 20, "k": 30, "dtype": "float64", "fill": "normal", "upload": "none"}
    loop = {"cumulative_s": [2.0, 4.0, 6.0], "unsynchronised_s": [called_s] * 3, "copy_s": None, "timeit_s": None}
    kernels = {"libraries": ["MKL 2024.2", "oneDNN 3.7.1"], "capability": "AVX2", "threads": 4}
    pools = [{"internal_api": "openblas", "version": "0.3", "num_threads": 4, "architecture": "Haswell"}]
    return {
        "config": {"measure": {"loop": 3}, "workload": workload, "engine": engine, "device": "cpu"},
        "world": {"ranks": [{"threads": 4}]},
        "work": {"flop": 24000},
        "result": {"best_s": 2.0, "loop": loop},
        "environment": {"thread_pools": pools, "torch_kernels": kernels},
    }


def test_the_table_has_each_operand_the_share_of_the_call_alone_and_every_librarys_kernels() -> None:
    lines = notebook_table([looped("numpy", 2.0), looped("torch", 0.5)])
    # float64: A 2 x 10 x 30, B 2 x 30 x 20, C 2 x 10 x 20
    assert all(line.endswith("4.8 kB    9.6 kB    3.2 kB") for line in lines[2:4])
    assert "its share of a run with the wait: numpy float64 100.00%, torch CPU float64 25.00%" in lines
    assert "openblas 0.3: 4 threads, kernels Haswell" in lines
    assert "torch: MKL 2024.2 and oneDNN 3.7.1: 4 threads, kernels AVX2" in lines


def test_records_of_another_experiment_make_no_table() -> None:
    assert notebook_table([{"config": {"measure": {"loop": 0}}}]) == []
