"""The scripts in benchmarks/ run: smallest sizes, one pair; what they measure is not judged here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("script", "words", "lines"),
    [
        ("dtype_rates.py", ["--turns=2", "--n=32", "--dtypes=float64,tf32,int8"], 4),
        ("dtype_rates.py", ["--batched", "--turns=2", "--dtypes=float32"], 2),
        ("collect_paths.py", ["--rows=2000"], 3),
        ("two_ranks.py", [], 4),
        ("telemetry_cost.py", [], 2),
    ],
)
def test_a_benchmark_runs_and_tells_its_ratios(tmp_path: Path, script: str, words: list[str], lines: int) -> None:
    command = [sys.executable, str(FOLDER / script), "--pairs=1", *words]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=200, env=os.environ | {"LOGLEVEL": "ERROR"}
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    ratios = [line for line in ended.stdout.splitlines() if " median " in line]
    assert len(ratios) == lines, ended.stdout + ended.stderr
    assert ended.returncode == int(any(": MISS" in line for line in ratios))
