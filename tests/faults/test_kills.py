"""kill -9 of everything at random instants of a sweep: nothing that was recorded is lost, and resuming completes it."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest
from helpers import ALONE, Launcher, end_all, marked, start, torchrun
from rows import ALL, SEED, tell_row

from distbench import record

KILLS = {"alone": 40, "torchrun": 10} if ALL else {"alone": 8, "torchrun": 2}
SIZES = (40, 41, 42, 43, 44, 45)
WORDS = ["-m", "workload=square", f"workload.n={','.join(map(str, SIZES))}", "measure=quick", "measure.max_time_s=0.3"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("launcher", [ALONE, torchrun(2)], ids=lambda it: it.name)
def test_a_sweep_that_is_killed_again_and_again_is_completed(
    in_tmp: Path, launcher: Launcher, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = random.Random(SEED)
    partial = sweeps = kills = 0
    while kills < KILLS[launcher.name]:
        sweeps += 1
        folder = in_tmp / f"sweep{sweeps}"
        words = [*WORDS, f"hydra.sweep.dir={folder}"]
        while True:
            known = folder.exists() and any(folder.iterdir())
            mark = uuid.uuid4().hex
            arguments = [*WORDS, f"run.resume={folder}"] if known else words
            running = start(arguments, launcher, cwd=in_tmp, mark=mark)
            if kills == KILLS[launcher.name]:
                running.wait(120)
                break
            at = time.monotonic() + chosen.uniform(0.5, 6)
            while time.monotonic() < at and any(process.poll() is None for process in running.processes):
                time.sleep(0.01)
            if all(process.poll() is not None for process in running.processes):
                break  # it was faster than the kill
            _kill(mark)
            running.await_gone(20)
            kills += 1
            partial += _check(folder / record.RESULTS)
        lines = _lines(folder / record.RESULTS)
        done = Counter(told["config"]["workload"]["n"] for told in lines if told["status"] == "ok")
        about = f"seed {SEED}, sweep {sweeps}, {kills} kills: {done}\n{running.stderr()}"
        assert sorted(done) == list(SIZES), about
        assert set(done.values()) == {1}, about
    print(f"seed {SEED}: {kills} kills over {sweeps} sweeps, {partial} partial last lines")
    told = f"every line a record; {partial} partial last lines, named and skipped"
    tell_row("kills", (launcher.name, str(kills), told, f"{sweeps} sweeps complete, no cell twice, none missing"))


def _kill(mark: str) -> None:
    """SIGKILL to everything, until nothing new shows (a launcher may be starting ranks)."""
    while marked(mark):
        end_all(mark)


def _lines(path: Path) -> list[dict[str, object]]:
    """All records in order; what is no record must be a killed run's half line, and readers leave it out."""
    told = []
    for line in path.read_bytes().split(b"\n"):
        try:
            told.append(json.loads(line))
        except ValueError:
            continue
    return told


def _check(path: Path) -> int:
    """Every line but the last is a record or an earlier kill's half line; returns 1 if the last line is partial."""
    if not path.exists():
        return 0
    *lines, last = path.read_bytes().split(b"\n")
    broken = [line for line in lines if line and not _is_json(line)]
    assert all(line.startswith(b'{"schema"') for line in broken), broken
    record.read(path)
    return int(bool(last))


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
