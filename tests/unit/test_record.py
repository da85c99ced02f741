"""The record: strict JSON, one line a cell, safe against what a run that was killed leaves behind."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from distbench import record
from distbench.record import Journal, finite, read, to_line


def cell(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {"cell": name, "status": "ok", "samples": None, **fields}


def strict(text: str) -> Any:
    """JSON without Python's NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_nan_and_infinity_become_null_at_any_depth() -> None:
    told = {"a": math.nan, "b": [math.inf, 1.0, (-math.inf, 2)], "c": {"d": [{"e": math.nan}]}, "f": "NaN"}
    line = to_line(told)
    assert strict(line) == {"a": None, "b": [None, 1.0, [None, 2]], "c": {"d": [{"e": None}]}, "f": "NaN"}


def test_finite_leaves_everything_else_as_it_is() -> None:
    told = {"text": "é", "true": True, "none": None, "whole": 10**30, "float": 0.1, "list": [1, 2.5]}
    assert finite(told) == told


def test_whole_numbers_and_floats_are_written_in_full() -> None:
    flop = 2 * (10**12 + 1) * 10001
    assert strict(to_line({"flop": flop, "time_s": 0.1 + 0.2})) == {"flop": flop, "time_s": 0.1 + 0.2}


def test_a_record_is_one_line_whatever_its_texts_hold() -> None:
    text = "a\nb\rc\x85d\u2028e\u2029f"
    line = to_line(cell(reason=text))
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert strict(line)["reason"] == text


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    records = [cell("a", value=1), cell("b", value=0.1), cell("c", reason="µ\u2028\x85 – ok")]
    for item in records:
        journal.append(item)
    assert journal.path == tmp_path / "results.jsonl"
    assert read(journal.path) == records
    assert len(journal.path.read_bytes().splitlines()) == 3


def test_a_cells_last_line_counts_in_the_place_of_its_first(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for name, value in (("a", 1), ("b", 2), ("a", 3)):
        journal.append(cell(name, value=value))
    assert [(item["cell"], item["value"]) for item in read(journal.path)] == [("a", 3), ("b", 2)]


@pytest.mark.parametrize("kept", [1, 10, -1], ids=["a byte", "some bytes", "all but the line's end"])
def test_half_a_line_is_skipped_and_does_not_spoil_the_next(tmp_path: Path, kept: int) -> None:
    """A run that is killed while it writes, and another that goes on in its folder."""
    journal = Journal(tmp_path)
    journal.append(cell("a", value=1))
    half = to_line(cell("b", value=2)).encode()[:-1][:kept]
    with journal.path.open("ab") as file:
        file.write(half)
    assert [item["cell"] for item in read(journal.path)] == ["a"]
    Journal(tmp_path).append(cell("c", value=3))
    assert [item["cell"] for item in read(journal.path)] == ["a", "c"]


def test_a_line_cut_within_a_character_is_skipped(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(cell("a"))
    with journal.path.open("ab") as file:
        file.write(b'{"cell": "b", "reason": "5 \xc2')
    assert [item["cell"] for item in read(journal.path)] == ["a"]


def test_a_command_line_that_is_not_utf_8_is_still_recorded(tmp_path: Path) -> None:
    command = b"workload.name=\xff".decode(errors="surrogateescape")  # what Python makes of such an argument
    journal = Journal(tmp_path)
    journal.append(cell("a", command=command))
    assert read(journal.path)[0]["command"] == command


def long_record(count: int) -> dict[str, Any]:
    values = [index / 7 for index in range(count)]
    samples = {
        "span_s": values[:100],
        "rank_s": [values, values],
        "phases_s": {"gemm": [values, values]},
        "dropped_late": 3,
    }
    return cell("abc", samples=samples, result={"time_s": 1.0, "p5_s": 0.5, "p95_s": 2.0})


def test_a_record_past_a_megabyte_has_its_per_rank_samples_in_a_file_that_it_names(tmp_path: Path) -> None:
    told = long_record(20_000)
    assert len(to_line(told)) > 1_000_000
    journal = Journal(tmp_path)
    journal.append(told)
    (line,) = journal.path.read_text().splitlines()
    assert len(line) < 1_000_000
    (back,) = read(journal.path)
    assert back["result"] == told["result"]  # the quantiles stay
    assert (back["samples"]["span_s"], back["samples"]["dropped_late"]) == (told["samples"]["span_s"], 3)
    assert "rank_s" not in back["samples"]
    beside = tmp_path / back["samples"]["file"]
    assert beside.parent == tmp_path
    assert strict(beside.read_text()) == {key: told["samples"][key] for key in ("rank_s", "phases_s")}
    assert len(told["samples"]["rank_s"][0]) == 20_000  # the record in memory is left alone


def test_a_long_records_series_of_telemetry_go_to_that_file_too(tmp_path: Path) -> None:
    state = {"looks": 2, "series": {"at_s": [0.1, 0.2]}, "gpu": None}
    journal = Journal(tmp_path)
    journal.append(long_record(20_000) | {"telemetry": [state, state]})
    (back,) = read(journal.path)
    assert back["telemetry"] == [{"looks": 2, "gpu": None}] * 2
    assert strict((tmp_path / back["samples"]["file"]).read_text())["telemetry_series"] == [{"at_s": [0.1, 0.2]}] * 2


def test_two_long_records_of_one_cell_have_a_file_each(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(long_record(20_000))
    journal.append(long_record(20_000))
    names = [json.loads(line)["samples"]["file"] for line in journal.path.read_text().splitlines()]
    assert len(set(names)) == 2


def test_a_short_record_keeps_its_samples(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(long_record(10))
    assert len(read(journal.path)[0]["samples"]["rank_s"][0]) == 10
    assert [file.name for file in tmp_path.iterdir()] == ["results.jsonl"]


def test_a_failed_cell_of_thousands_of_ranks_is_recorded_though_it_has_no_samples(tmp_path: Path) -> None:
    ranks = [{"rank": rank, "affinity": list(range(100))} for rank in range(4000)]
    journal = Journal(tmp_path)
    journal.append(cell("a", status="failed", world={"ranks": ranks}))
    assert len(read(journal.path)[0]["world"]["ranks"]) == 4000


def test_a_folder_that_is_gone_is_told_as_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"results\.jsonl"):
        Journal(tmp_path / "gone").append(cell())


def test_the_environment_says_what_the_numbers_were_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    record.environment.cache_clear()
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    monkeypatch.setenv("SECRET_TOKEN", "do not tell")
    told = record.environment()
    record.environment.cache_clear()
    assert {"distbench", "torch", "numpy", "python", "cuda", "nccl", "host", "cpu", "cores", "kernel"} <= told.keys()
    assert told["variables"]["OMP_PROC_BIND"] == "close"
    assert "do not tell" not in to_line(told)


def test_a_reader_names_the_line_that_is_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / record.RESULTS
    path.write_bytes(b'{"cell": "a"}\n{"cell": "b", "sta')
    assert read(path) == [{"cell": "a"}]
    told = capsys.readouterr().err
    assert f"{path}: line 2 is no record" in told
    assert told.count("\n") == 1


def test_records_that_were_removed_under_a_run_are_not_replaced_in_silence(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(cell("a"))
    journal.path.unlink()
    with pytest.raises(OSError, match="was removed"):
        journal.append(cell("b"))
    assert not journal.path.exists()
