"""Whatever the command line says, the answer is one line or a run; never a traceback, never a hang.

In-process through the configuration door (many words), and the command itself (few, for they take seconds).
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from overrides import words
from rows import ALL, SEED, tell_row

from distbench.compose import Refused, compose_single
from distbench.config import Config

DOOR = 1000 if ALL else 250


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
