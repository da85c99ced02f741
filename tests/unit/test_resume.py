"""Which cells of an earlier run stand, what run.resume may name, and the command line that goes on."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from distbench import __version__, record, resume
from distbench.compose import Refused, compose_single, resumed_folder
from distbench.launch import Launch

ALONE = Launch("single", 0, 1, 0, 1)


def line(cell: str, status: str, version: str = __version__, schema: int = record.SCHEMA) -> str:
    told = {"cell": cell, "status": status, "schema": schema, "environment": {"distbench": version}}
    return json.dumps(told) + "\n"


def written(folder: Path, *lines: str) -> Path:
    (folder / record.RESULTS).write_text("".join(lines))
    return folder


def test_ok_stands_and_everything_else_runs_again(tmp_path: Path) -> None:
    told = [line("a", "ok"), line("b", "failed"), line("c", "wrong"), line("d", "skipped")]
    past = resume.past_of(written(tmp_path, *told))
    assert [bool(past.standing(cell)) for cell in "abcde"] == [True, False, False, False, False]


def test_a_cells_last_record_counts(tmp_path: Path) -> None:
    past = resume.past_of(written(tmp_path, line("a", "failed"), line("a", "ok"), line("b", "ok"), line("b", "failed")))
    assert past.standing("a") is not None
    assert past.standing("b") is None


def test_a_restarted_world_leaves_what_its_launch_recorded_but_not_older_failures(tmp_path: Path) -> None:
    old = line("a", "failed") + line("b", "ok")
    own = line("c", "failed") + line("a", "skipped")
    past = resume.past_of(written(tmp_path, old, own), since=len(old))
    assert [(past.standing(cell) or {}).get("status") for cell in "abcd"] == ["skipped", "ok", "failed", None]
    only_old = resume.past_of(written(tmp_path, old), since=len(old))
    assert only_old.standing("a") is None


def test_a_broken_last_line_is_a_cell_that_runs(tmp_path: Path) -> None:
    past = resume.past_of(written(tmp_path, line("a", "ok"), line("b", "ok")[:25]))
    assert past.standing("a") is not None
    assert past.standing("b") is None


@pytest.mark.parametrize(
    ("version", "schema", "said"), [(__version__, 1, False), ("0.0.1", 1, True), (__version__, 9, True)]
)
def test_records_by_another_version_or_schema_are_said(tmp_path: Path, version: str, schema: int, said: bool) -> None:
    note = resume.past_of(written(tmp_path, line("a", "ok", version, schema))).note()
    assert (note is not None) == said
    if note is not None:
        assert f"distbench {version}, schema {schema}" in note


def test_the_folder_or_its_results_file_may_be_named(tmp_path: Path) -> None:
    written(tmp_path, line("a", "ok"))
    assert resume.folder_of(str(tmp_path)) == tmp_path
    assert resume.folder_of(str(tmp_path / record.RESULTS)) == tmp_path


def test_a_run_that_was_killed_before_its_first_record_can_be_named(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    assert resume.past_of(resume.folder_of(str(tmp_path))).standing("a") is None


@pytest.mark.parametrize(
    "words", [["run.resume=nowhere"], ["run.resume=."], ["-m", "run.resume=a,b"], ["run.resume=3"]]
)
def test_what_is_no_runs_folder_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(Refused, match=r"^run\.resume=.+: [^\n]+$"):
        compose_single(words)


@pytest.mark.parametrize(
    "name",
    ["multirun/2026-12-02/14-00-00-1", "a b", "x=1,y", "it's", "back\\slash", "end\\", "(p)", "2026", "ü", "$HOME"],
)
def test_the_command_that_goes_on_names_the_folder_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / name
    folder.mkdir(parents=True)
    written(folder, line("a", "ok"))
    monkeypatch.setattr(sys, "argv", ["distbench", "-m", "workload.n=1,2", "run.resume=older"])
    words = shlex.split(resume.command(ALONE, folder))
    assert words[:5] == ["python", "-m", "distbench", "-m", "workload.n=1,2"]
    assert len(words) == 6
    assert resumed_folder(words[3:]) == folder


def test_repeats_of_a_cell_are_kept_apart(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = [{"cell": "a", "repeat": 0}, {"cell": "a", "repeat": 1}, {"cell": "a"}]
    content = "".join(json.dumps(item) + "\n" for item in told).encode()
    assert record.parse(content) == [{"cell": "a"}, {"cell": "a", "repeat": 1}]
