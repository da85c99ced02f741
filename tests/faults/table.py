"""Fault × stage × launcher: what is run, what must come of it, and the row that docs/reliability.md shows."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import inject
from helpers import Result, Running, mpirun, start, torchrun

TIMEOUT_S = 5
ALLOWED_S = TIMEOUT_S + 5
RANKS = 3
STAGES = ("join", "fill", "verify", "warm up", "measure", "combine", "record")
LAUNCHERS = ("torchrun", "mpirun")
ENDED_BY_A_VOTE = ("exception", "out of memory")
"""The rank lives and the ranks vote: the cell is failed, the sweep goes on. At the join and between cells nothing votes."""
LOST = ("SIGKILL", "SIGSTOP", "exit 0", "stuck", "launcher SIGKILL")
HARMLESS = ("slow", "late")
FAULTS = (*ENDED_BY_A_VOTE, *LOST, *HARMLESS)
SIZES = (48, inject.N, 80)
MPIRUNS_PATIENCE = {"OMPI_MCA_odls_base_sigkill_timeout": "2"}
"""Seconds from its SIGTERM to its SIGKILL, 1 by itself: on a loaded machine a rank's last words take longer."""
WORKER = str(Path(__file__).parent / "worker.py")
WORDS = [
    *("-m", "workload=square", "split=m", "collect=gather", "measure.warmup=2", "measure.min_samples=10"),
    *("measure.max_samples=10", f"workload.n={','.join(map(str, SIZES))}", f"run.timeout_s={TIMEOUT_S}"),
]


@dataclass(frozen=True)
class Case:
    fault: str
    stage: str
    launcher: str
    victim: int = 1

    @property
    def shown(self) -> str:
        return self.fault if self.victim else f"{self.fault} of rank 0"

    def __str__(self) -> str:
        return f"{self.fault}-{self.stage}-{self.launcher}-rank{self.victim}".replace(" ", "_")


@dataclass
class Ended:
    case: Case
    seconds: float
    """From the fault until no process of the run was alive."""
    result: Result
    struck: bool

    def row(self) -> tuple[str, ...]:
        case = self.case
        return (case.shown, case.stage, case.launcher, self.happened(), f"{self.seconds:.1f}")

    def happened(self) -> str:
        """In words, from what the run left: the status, its records, the reason."""
        told = self.told()
        told = re.sub(r"\(host \S+ pid \d+\)", "(host, pid)", told)
        told = re.sub(r" at [\w.]+:\w[\w ]*? (?=within|for)|pid \d+", lambda it: " " if " at" in it[0] else "pid", told)
        cells = ", ".join(self.result.statuses) or "none began"
        return f"exit {self.result.returncode}; cells: {cells}" + (f"; {told}" if told else "")

    def told(self) -> str:
        """The reason: of the failed record, else of the lines on stderr the one that names the rank."""
        reasons = [record["reason"] for record in self.result.records if record["status"] != "ok"]
        # Not at a line's start only: mpirun passes on what the ranks write as it comes, amid another's half line.
        lines = re.findall(r"distbench: (.*)", self.result.stderr)
        named = [line for line in lines if f"rank {self.case.victim} (" in line] or lines
        spoken = [re.sub(r"; rank \d+ ends$", "", line) for line in named]
        return (reasons or spoken or [""])[0]


def all_cases() -> list[Case]:
    cases = [Case(f, s, launcher) for launcher in LAUNCHERS for f in FAULTS for s in STAGES if _exists(f, s)]
    # Rank 0 serves the store under mpirun and keeps the records: its loss is another thing than a follower's.
    return cases + [
        Case(f, s, launcher, 0)
        for launcher in LAUNCHERS
        for f in ("SIGKILL", "SIGSTOP")
        for s in ("join", "measure", "record")
    ]


def cases_at(stage: str) -> list[Case]:
    """Every fault at one stage (a late start is at the join whatever the stage)."""
    return [case for case in all_cases() if case.stage == stage or (case.fault == "late" and stage != "join")]


def _exists(fault: str, stage: str) -> bool:
    return stage == "join" if fault == "late" else not (fault == "stuck" and stage == "join")


def begin(case: Case, folder: Path, mark: str) -> Running:
    launcher = torchrun(RANKS) if case.launcher == "torchrun" else mpirun(RANKS)
    words = [*WORDS, "run.step_timeout_s=6"] if case.fault == "stuck" else WORDS
    fault = f"{case.fault}:{case.stage}:{case.victim}"
    env = {"DISTBENCH_TEST_FAULT": fault, **MPIRUNS_PATIENCE}
    return start(words, launcher, program=[WORKER], cwd=folder, mark=mark, env=env)


def end(case: Case, running: Running) -> Ended:
    running.await_gone(90)
    gone_at = time.time()
    struck = running.cwd / inject.STRUCK_AT
    began_at = float(struck.read_text()) if struck.exists() else gone_at - (time.monotonic() - running.began)
    return Ended(case, gone_at - began_at, running.wait(600), struck.exists())


def check(ended: Ended) -> None:
    """Fails where the promise of docs/reliability.md is not kept."""
    case, result = ended.case, ended.result
    about = f"{case}: {ended.happened()}\n{result.stdout}\n--- stderr\n{result.stderr}"
    assert case.fault == "late" or ended.struck, f"the fault did not come: {about}"
    too_slow = case.fault == "slow" and case.stage == "join"  # a rank must join within run.timeout_s
    if case.fault in HARMLESS and not too_slow:
        assert result.returncode == 0, about
        assert result.statuses == ["ok"] * len(SIZES), about
        return
    # run.step_timeout_s, once more where the others' collective ends by it first: that counts as progress
    told_s = 2 * 6 if case.fault == "stuck" else 0
    assert ended.seconds < ALLOWED_S + told_s + (inject.SLOW_S if too_slow else 0), about
    assert result.returncode != 0, about
    earlier = {"join": 0, "record": 2}.get(case.stage, 1)
    assert result.statuses[:earlier] == ["ok"] * earlier or (case.stage == "record" and case.victim == 0), about
    if case.fault == "launcher SIGKILL" and case.launcher == "mpirun" and case.stage in ("join", "record"):
        return  # no cell is in flight to be recorded, and what is said goes through mpirun, which is dead
    named = "the launcher of rank" if case.fault == "launcher SIGKILL" else f"rank {case.victim} ("
    reason = ended.told()
    assert named in reason, about
    assert os.uname().nodename in reason, about
    if case.victim != 0 and case.stage != "record":  # after its last vote a rank may be a stage ahead
        assert case.stage in reason, about
    if case.fault in ENDED_BY_A_VOTE:
        assert ("out of memory" if case.fault == "out of memory" else inject.MESSAGE) in result.stderr + reason, about
    if case.fault in ENDED_BY_A_VOTE and case.stage not in ("join", "record"):
        assert result.statuses == ["ok", "failed", "ok"], about
    elif case.victim != 0 and case.stage not in ("join", "record"):
        assert result.statuses == ["ok", "failed"], about  # rank 0 lived to write it
