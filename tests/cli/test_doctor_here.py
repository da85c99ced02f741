"""distbench doctor on this machine: in time, in one line a finding, with real causes that it must find, on all ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import MARK, mpirun, plain, run, torchrun

CORES = sorted(os.sched_getaffinity(0))
DOCTOR = ["doctor"]

pytestmark = pytest.mark.usefixtures("in_tmp")


def findings(stdout: str) -> dict[str, list[dict[str, object]]]:
    told = json.loads(stdout)
    assert told["ok"] == all(item["level"] != "wrong" for item in told["findings"])
    by_check: dict[str, list[dict[str, object]]] = {}
    for item in told["findings"]:
        by_check.setdefault(item["check"], []).append(item)
    return by_check


def test_every_check_answers_within_ten_seconds_and_leaves_no_folder(in_tmp: Path) -> None:
    result = run([*DOCTOR, "--json"])
    assert result.stderr == ""
    told = findings(result.stdout)
    from distbench.doctor import CHECKS

    assert set(told) == set(CHECKS)
    assert result.returncode == int(any(item["level"] == "wrong" for items in told.values() for item in items))
    assert not [item for items in told.values() for item in items if "could not be checked" in str(item["text"])]
    assert not (in_tmp / "outputs").exists()
    assert result.seconds < (10 if os.getloadavg()[0] < len(CORES) else 25)


def test_a_finding_is_a_line_with_its_remedy_and_verbose_shows_them_all() -> None:
    short, long = (run([*DOCTOR, *words]).stdout.splitlines() for words in ([], ["--verbose"]))
    assert short[0].startswith("distbench doctor: ")
    assert len(long) > len(short)
    for line in long[1:]:
        level = line.split()[0]
        assert level in ("wrong", "slow", "note", "ok")
        assert "→" in line or level in ("note", "ok"), line


def test_other_work_is_found_by_name_and_makes_the_status_1() -> None:
    code = "while True: pass"
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, MARK: os.environ[MARK]}) as spinner:
        try:
            result = run([*DOCTOR, "--json"])
        finally:
            spinner.kill()
    (busy,) = [item for item in findings(result.stdout)["busy"] if "other work" in str(item["text"])]
    assert (result.returncode, busy["level"]) == (1, "wrong")
    assert f"pid {spinner.pid}" in str(busy["text"])


def test_threads_and_kernels_that_the_environment_forces_are_found() -> None:
    if len(CORES) < 2:
        pytest.skip("one core: one thread is right")
    told = findings(run([*DOCTOR, "--json"], env={"OMP_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Haswell"}).stdout)
    assert told["threads"][0]["level"] == "slow"
    assert any("OPENBLAS_CORETYPE=Haswell" in str(item["text"]) for item in told["kernels"])


def test_under_torchrun_all_ranks_answer_and_rank_0_alone_speaks() -> None:
    result = run([*DOCTOR, "--json"], torchrun(2), timeout_s=120)
    told = json.loads(result.stdout)
    assert told["ranks"] == 2
    assert [item["ranks"] for item in told["findings"] if item["check"] == "huge pages"] == [[0, 1]]
    assert next(item["ranks"] for item in told["findings"] if item["check"] == "engines") == [0]


def test_under_mpirun_more_ranks_than_cores_are_found() -> None:
    result = run([*DOCTOR], mpirun(len(CORES) + 1), timeout_s=120)
    assert result.returncode != 0
    assert f"{len(CORES) + 1} ranks on {len(CORES)} core" in result.stdout


def test_ranks_that_are_not_alike_are_told_with_where_they_differ() -> None:
    prefixes = [("env", f"OMP_NUM_THREADS={count}") for count in (1, 2)]
    result = run(DOCTOR, plain(2), prefixes=prefixes, timeout_s=120)
    assert result.returncodes == [1, 0]
    assert "threads: 1 on rank 0; 2 on rank 1" in result.stdout
    assert "OMP_NUM_THREADS: 1 on rank 0; 2 on rank 1" in result.stdout


def test_a_wrong_option_is_refused_and_rank_0_alone_says_so() -> None:
    result = run([*DOCTOR, "--jsn"], plain(2))
    assert result.returncodes == [2, 0]
    assert result.stderr.count("unrecognized arguments: --jsn") == 1
