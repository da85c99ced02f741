"""The disk under the results: what cannot be kept is refused or said, and what was kept stays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from helpers import ALONE, refusal, require, require_root, run, start
from rows import tell_row

SMALL = ["workload=square", "measure=quick", "measure.max_time_s=0.1", "measure.warmup=1"]


def _on_tmpfs(folder: str, options: str) -> list[list[str]]:
    """Words that run a command with a small file system of its own at `folder`, and copy what is on it afterwards."""
    require_root()
    require("unshare")
    Path(folder).mkdir()
    script = f'mount -t tmpfs -o {options} none {folder} && "$@"; code=$?; cp -r {folder} copied; exit $code'
    return [["unshare", "--mount", "sh", "-c", script, "sh"]]


def test_a_folder_that_cannot_be_written_is_refused_before_measuring(in_tmp: Path) -> None:
    result = run([*SMALL, "workload.n=32"], ALONE, prefixes=_on_tmpfs("outputs", "ro"))
    reason = refusal(result)
    assert result.returncode == 2, result.stderr
    assert "Read-only file system" in reason
    assert "  measure" not in result.stdout
    tell_row("disk", ("results folder not writable", f"exit 2; {reason}"))


def test_a_full_disk_ends_the_sweep_and_keeps_what_is_on_it(in_tmp: Path) -> None:
    sizes = ",".join(str(n) for n in range(20, 60))
    result = run(["-m", *SMALL, f"workload.n={sizes}"], ALONE, prefixes=_on_tmpfs("multirun", "size=200k"))
    reason = refusal(result)
    assert result.returncode != 0
    assert "No space left" in reason
    (kept,) = Path("copied").glob("**/results.jsonl")
    *lines, _ = kept.read_bytes().split(b"\n")
    statuses = [json.loads(line)["status"] for line in lines]
    assert statuses
    assert set(statuses) == {"ok"}
    assert len(statuses) < 40
    tell_row("disk", ("disk full in a sweep", f"exit {result.returncode}; {len(statuses)} records stand; {reason}"))


def test_a_folder_that_is_removed_ends_the_run(in_tmp: Path) -> None:
    words = ["workload=square", "workload.n=40,41,42", "measure.max_time_s=4", "measure.target_rel_ci=1e-9"]
    running = start(["-m", *words, "measure.min_samples=1000000", "measure.max_samples=1000000"], ALONE)
    running.await_records(1)
    shutil.rmtree("multirun")
    result = running.wait(60)
    reason = refusal(result)
    assert result.returncode != 0
    assert "cannot write" in reason, reason
    assert "removed" in reason
    assert result.seconds < 20, "it went on measuring what cannot be kept"
    tell_row(
        "disk",
        ("results folder removed while running", f"exit {result.returncode}; {reason.replace(str(in_tmp), '…')}"),
    )


def test_runs_of_the_same_second_are_kept_apart(in_tmp: Path) -> None:
    runs = [start(["-m", *SMALL, f"workload.n={n},{n + 1}"], ALONE) for n in (30, 40, 50, 60)]
    results = [running.wait(120) for running in runs]
    assert [result.returncode for result in results] == [0] * 4, [result.stderr for result in results]
    files = sorted(in_tmp.glob("multirun/**/results.jsonl"))
    sizes = [[json.loads(line)["config"]["workload"]["n"] for line in path.read_text().splitlines()] for path in files]
    assert sorted(sizes) == [[n, n + 1] for n in (30, 40, 50, 60)]
    tell_row("disk", ("four sweeps started in the same second", "exit 0; four folders with two records each"))
