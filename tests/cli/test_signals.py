"""A person or a scheduler ends the run in mid-measure: it ends within seconds, and what was measured stands."""

from __future__ import annotations

import signal

import pytest
from helpers import ALONE, Launcher, control_codes, mpirun, start, torchrun

pytestmark = pytest.mark.usefixtures("in_tmp")
# The first cell is over at once, the second goes on for minutes.
WORDS = [
    *("-m", "workload=square", "workload.n=300", "split=m", "collect=gather", "measure.warmup=1"),
    *(
        "measure.min_samples=1",
        "measure.max_samples=1,1000000",
        "measure.max_time_s=1000",
        "measure.target_rel_ci=1e-9",
    ),
]


@pytest.mark.parametrize(
    ("make", "number", "to_all"),
    [
        (lambda: ALONE, signal.SIGINT, False),
        (lambda: ALONE, signal.SIGTERM, False),
        (lambda: ALONE, signal.SIGUSR1, False),
        (lambda: torchrun(2), signal.SIGTERM, False),
        (lambda: torchrun(2), signal.SIGINT, True),
        (lambda: mpirun(2), signal.SIGINT, False),
    ],
    ids=["alone-SIGINT", "alone-SIGTERM", "alone-SIGUSR1", "torchrun-SIGTERM", "torchrun-ctrl-C", "mpirun-SIGINT"],
)
def test_a_run_that_is_interrupted_ends_and_keeps_what_it_has(
    make: object, number: signal.Signals, to_all: bool
) -> None:
    assert callable(make)
    launcher: Launcher = make()
    running = start(WORDS, launcher)
    running.await_records(1)
    running.await_text(" ok ")  # the row of the first cell: the second begins
    running.await_quiet_s(1.5)
    running.signal(number, to_all=to_all)
    seconds = running.await_gone(15)
    assert seconds < 8
    result = running.wait()
    assert result.returncode != 0
    assert result.statuses == ["ok", "skipped"], [record["reason"] for record in result.records]
    assert result.records[1]["reason"].startswith("interrupted by SIG")
    assert result.records[1]["config"]["measure"]["max_samples"] == 1000000
    own = [line for line in result.stderr.splitlines() if line.startswith("distbench: ")]
    assert len(own) == 1, result.stderr
    assert "interrupted by SIG" in own[0]
    assert result.stderr.count("run.resume=multirun/") == 1
    assert not control_codes(result.stdout)
