"""Whatever the command line says, the answer is one line or a run; never a traceback, never a hang.

In-process through the configuration door (many words), and the command itself (few, for they take seconds).
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from helpers import ALONE, run
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from overrides import NUMBERS, WORDS, keys, words
from rows import ALL, SEED, tell_row

from distbench.compose import Refused, compose_single
from distbench.config import Config

DOOR = 1000 if ALL else 250
RUNS = 40 if ALL else 20
SMALL = [*("workload=square", "workload.n=32", "measure=quick", "measure.max_time_s=0.2", "run.timeout_s=20")]


def test_the_door_refuses_in_one_line_or_lets_a_config_through() -> None:
    told = {"refused": 0, "let through": 0}

    @seed(SEED)
    @settings(
        max_examples=DOOR, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False
    )
    @given(st.lists(words(), min_size=1, max_size=3))
    def door(arguments: list[str]) -> None:
        try:
            config = compose_single(arguments)
        except Refused as refused:
            told["refused"] += 1
            line = str(refused)
            assert line, arguments
            assert len(line.splitlines()) == 1, (arguments, line)
        else:
            told["let through"] += 1
            assert config is None or isinstance(config, Config), arguments

    door()
    print(f"seed {SEED}: {told}")
    tell_row(
        "words",
        (
            "the configuration door",
            str(DOOR),
            f"{told['refused']} refused in a line, {told['let through']} let through",
        ),
    )


@pytest.mark.timeout(900)
def test_the_command_refuses_in_one_line_or_runs_and_verifies(tmp_path: Path) -> None:
    chosen = random.Random(SEED)
    told = {0: 0, 1: 0, 2: 0}
    for number in range(RUNS):
        word = f"{chosen.choice(keys())}={chosen.choice(NUMBERS + WORDS)}"
        if word.startswith("run.dry_run="):
            continue  # any number but 0 is true, and then nothing is measured
        folder = tmp_path / str(number)
        folder.mkdir()
        result = run([*SMALL, word], ALONE, timeout_s=120, cwd=folder)
        about = f"seed {SEED}: {word!r}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stderr, about
        assert result.returncode in told, about
        told[result.returncode] += 1
        if result.returncode == 2:
            lines = [line for line in result.stderr.splitlines() if line]
            assert len(lines) == 1, about
            assert re.match(r"distbench: .", lines[0]), about
            assert not result.records, about
        elif result.returncode == 0:
            assert [(it["status"], it["verification"]["ok"]) for it in result.records] == [("ok", True)], about
        else:  # composes, but not on this machine (a size that does not fit, no GPU)
            assert [it["status"] for it in result.records] == ["failed"], about
    print(f"seed {SEED}: {told}")
    seen = f"{told[2]} refused in a line, {told[0]} ran and verified, {told[1]} failed with a record"
    tell_row("words", ("the command", str(RUNS), seen))
