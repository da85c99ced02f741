"""The comparison: pairs and refusals on real records, the numbers on series whose answer is known."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distbench.show.compare.main import main as compare
from distbench.show.compare.verdict import Estimate, estimate, holm, log_median_error, loss, verdict

RECORDS = Path(__file__).resolve().parents[1] / "records"
Record = dict[str, Any]
Change = Callable[[Record], Any]


def records(name: str = "square-1-rank") -> list[Record]:
    return [json.loads(line) for line in (RECORDS / f"{name}.jsonl").read_text().splitlines()]


def slower(item: Record, factor: float) -> None:
    """The record with every span so much longer."""
    samples, result = item["samples"], item["result"]
    samples["span_s"] = [value * factor for value in samples["span_s"]]
    result["time_s"] *= factor
    result["tflops"] /= factor


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Compares square-1-rank with itself changed; returns the exit status and what --format json says."""

    def of(change: Change, *words: str, base: str = "square-1-rank", launches: int = 1) -> tuple[int, Any]:
        for side in ("base", "new"):
            shutil.rmtree(tmp_path / side, ignore_errors=True)  # of an earlier comparison in the same test
            for launch in range(launches):
                folder = tmp_path / side / str(launch)
                folder.mkdir(parents=True, exist_ok=True)
                items = records(base)
                for item in items:
                    slower(item, 1 + 0.002 * launch)  # launches differ a little
                    if side == "new":
                        change(item)
                (folder / "results.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
        status = compare([str(tmp_path / "base"), str(tmp_path / "new"), "--format", "json", *words])
        out = capsys.readouterr().out
        return status, json.loads(out)

    return of


def words_of(answer: Any) -> list[str]:
    return [cell["verdict"] for cell in answer["cells"]]


def test_a_run_and_itself_is_neither_faster_nor_slower(told: Any) -> None:
    status, answer = told(lambda item: None)
    assert status == 0
    assert set(words_of(answer)) <= {"SAME", "UNSURE"}
    assert [cell["told"]["ratio"] for cell in answer["cells"]] == [1.0] * 4


def test_five_launches_a_side_tell_the_same_from_three_percent(told: Any) -> None:
    status, answer = told(lambda item: None, launches=5)
    assert (status, answer["verdict"], words_of(answer)) == (0, "SAME", ["SAME"] * 4)
    status, answer = told(lambda item: slower(item, 1.035), launches=5)
    assert (status, answer["verdict"], words_of(answer)) == (1, "SLOWER", ["SLOWER"] * 4)
    for cell in answer["cells"]:
        assert cell["told"]["low"] < 1.035 < cell["told"]["high"]
        assert cell["loss"] == pytest.approx(0.035)
    status, answer = told(lambda item: slower(item, 1 / 1.035), launches=5)
    assert (status, answer["verdict"]) == (0, "FASTER")


def test_slower_within_the_threshold_is_said_and_does_not_fail(told: Any) -> None:
    status, answer = told(lambda item: slower(item, 1.02), launches=5)
    assert status == 0
    assert words_of(answer) == ["SLOWER"] * 4
    status, _ = told(lambda item: slower(item, 1.02), "--threshold", "1%", launches=5)
    assert status == 1


def test_one_launch_a_side_finds_a_large_change_and_leaves_a_small_one_open(told: Any) -> None:
    assert words_of(told(lambda item: slower(item, 1.04))[1]) == ["UNSURE"] * 4
    status, answer = told(lambda item: slower(item, 1.5))
    assert (status, words_of(answer)) == (1, ["SLOWER"] * 4)
    assert "one launch a side" in " ".join(answer["notes"])


def test_a_rate_is_better_higher(told: Any) -> None:
    status, answer = told(lambda item: slower(item, 1.5), "--metric", "rate")
    assert (status, words_of(answer)) == (1, ["SLOWER"] * 4)
    assert answer["cells"][0]["told"]["ratio"] == pytest.approx(1 / 1.5)
    assert answer["cells"][0]["loss"] == pytest.approx(0.5)
    status, answer = told(lambda item: slower(item, 1 / 1.5), "--metric", "rate")
    assert (status, words_of(answer)) == (0, ["FASTER"] * 4)


def disturbed(item: dict[str, Any]) -> None:
    """Every sample but the fastest takes half as long again."""
    spans = item["samples"]["span_s"]
    item["samples"]["span_s"] = [span if span == min(spans) else 1.5 * span for span in spans]


def test_the_fastest_samples_see_through_other_work_and_one_launch_has_too_few(told: Any) -> None:
    status, answer = told(disturbed, "--metric", "best", launches=5)
    assert (status, words_of(answer)) == (0, ["SAME"] * 4)
    assert told(disturbed, launches=5)[0] == 1
    status, answer = told(lambda item: slower(item, 1.035), "--metric", "best", launches=5)
    assert (status, words_of(answer)) == (1, ["SLOWER"] * 4)
    answer = told(lambda item: slower(item, 1.5), "--metric", "best")[1]
    assert words_of(answer) == ["UNSURE"] * 4
    assert answer["cells"][0]["told"]["high"] is None
    assert "one launch a side and fewer than 6 values in it: no interval" in answer["notes"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda item: item["config"]["workload"].update(fill="zeros"), "workload.fill: normal against zeros"),
        (lambda item: item["world"].update(size=2), "world: 1 against 2"),
        (lambda item: item["config"].update(split="n"), "split: m against n"),
        (lambda item: item["config"].update(engine="cupy"), "engine: torch against cupy"),
        (lambda item: item["config"].update(drive="loop"), "drive: process against loop"),
        (lambda item: item["config"]["measure"].update(cache="cold"), "measure.cache: hot against cold"),
        (lambda item: item["config"]["measure"].update(inner="auto"), "measure.inner: 1 against auto"),
    ],
)
def test_what_is_not_the_same_measurement_is_refused_by_name_unless_allowed(
    told: Any, change: Change, says: str
) -> None:
    status, answer = told(change)
    assert status == 2
    assert answer["cells"] == []
    assert any(says in text for differences in answer["refused"] for text in differences), answer["refused"]
    key = says.partition(":")[0]
    status, answer = told(change, "--allow", f"{key},start")
    assert (status, len(answer["cells"]), answer["refused"]) == (0, 4, [])
    status, answer = told(change, "--force")
    assert (len(answer["cells"]), answer["refused"]) == (4, [])
    assert says in answer["cells"][0]["reason"]


def test_another_dtype_is_refused(told: Any) -> None:
    def change(item: Record) -> None:
        dtypes = {"float64": "float8_e4m3fn", "float32": "tf32", "bfloat16": "bfloat16", "float16": "float16"}
        item["config"]["workload"]["dtype"] = dtypes[item["config"]["workload"]["dtype"]]

    status, answer = told(change)
    assert status == 2
    assert len(answer["cells"]) == 2
    assert any("workload.dtype: float" in text for each in answer["refused"] for text in each)


def test_how_samples_were_started_must_agree_between_ranks(told: Any) -> None:
    status, answer = told(lambda item: item["samples"].update(start="barrier"), base="square-3-ranks")
    assert status == 2
    assert answer["refused"][0] == ["start: window against barrier"]


def test_what_an_automatic_layout_came_to_must_agree_where_both_sides_know_it(
    told: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, answer = told(lambda item: item["work"].update(layout="nt"))
    assert (status, len(answer["cells"])) == (0, 4)  # the older records do not tell
    for path in (tmp_path / "base").glob("*/results.jsonl"):
        items = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(item | {"work": item["work"] | {"layout": "nn"}}) + "\n" for item in items))
    assert compare([str(tmp_path / "base"), str(tmp_path / "new")]) == 2
    assert compare([str(tmp_path / "base"), str(tmp_path / "new"), "--allow", "layout"]) == 0
    capsys.readouterr()
    told(lambda item: item.update(status="failed", reason="x", work=None))
    assert compare([str(tmp_path / "base"), str(tmp_path / "new")]) == 1  # a cell that fails now has no layout


def test_another_schema_is_unusable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    item = records()[0] | {"schema": 2}
    (tmp_path / "results.jsonl").write_text(json.dumps(item) + "\n")
    assert compare([str(RECORDS / "square-1-rank.jsonl"), str(tmp_path)]) == 2
    assert "schema 2" in capsys.readouterr().err


def test_runs_with_nothing_in_common_are_unusable(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare([str(RECORDS / "square-1-rank.jsonl"), str(RECORDS / "gallery-3-ranks.jsonl")]) == 2
    told = capsys.readouterr()
    assert "no cell in common" in told.err
    assert told.out == ""


def test_how_long_was_measured_and_the_seed_do_not_matter(told: Any) -> None:
    def change(item: Record) -> None:
        item["config"]["measure"]["max_time_s"] = 1.0
        item["config"]["workload"]["seed"] = 7
        item["config"]["run"]["timeout_s"] = 5.0
        item["config"]["health"] = {"slow": 0.5}

    status, answer = told(change)
    assert (status, len(answer["cells"])) == (0, 4)


def test_a_cell_that_fails_now_fails_the_comparison(told: Any) -> None:
    def change(item: Record) -> None:
        if item["config"]["workload"]["dtype"] == "float32":
            item.update(status="failed", reason="out of memory", result=None, samples=None)

    status, answer = told(change)
    assert (status, answer["verdict"]) == (1, "FAILED")
    assert [cell["reason"] for cell in answer["cells"] if cell["verdict"] == "FAILED"] == [
        "NEW is failed: out of memory"
    ]


def test_other_work_is_compared_by_its_rate_only(told: Any) -> None:
    change = lambda item: item["work"].update(flop=2 * item["work"]["flop"])  # noqa: E731
    assert words_of(told(change)[1]) == ["UNSURE"] * 4
    assert words_of(told(change, "--metric", "rate")[1]) == ["FASTER"] * 4


def test_cells_of_one_side_only_are_told(told: Any) -> None:
    def change(item: Record) -> None:
        if item["config"]["workload"]["dtype"] == "float32":
            item["config"]["workload"] |= {"m": 1, "n": 2, "k": 3}

    _, answer = told(change)
    assert (answer["only_base"], answer["only_new"], len(answer["cells"])) == (1, 1, 3)


def test_what_changed_besides_is_told(told: Any) -> None:
    _, answer = told(lambda item: item["environment"].update(torch="9.9"))
    assert any("torch differs: 2.11.0+cu130 against 9.9" in note for note in answer["notes"])


def test_the_terminal_says_the_rule_the_verdict_and_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(RECORDS / "square-1-rank.jsonl")
    assert compare([path, path]) == 0
    out = capsys.readouterr().out
    assert "Holm" in out
    assert "exit 0" in out
    assert "bfloat16" in out


@pytest.mark.parametrize("text", ["0", "100%", "x", "-1%", "nan"])
def test_a_threshold_is_a_share(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        compare(["a", "b", f"--threshold={text}"])
    assert ended.value.code == 2
    assert "a share more than 0 and less than 1" in capsys.readouterr().err


# --- the numbers -----------------------------------------------------------------------------------------------------


def wandering(rng: np.random.Generator, count: int, launch: float, reach: float = 0.9) -> list[float]:
    """Times that wander (each remembers the last) around a level of the launch's own."""
    told, at = [], 0.0
    for noise in rng.normal(0, 0.02, count):
        at = reach * at + noise
        told.append(float(np.exp(launch + at)))
    return told


def test_the_error_of_a_median_counts_that_samples_wander() -> None:
    """Against the truth: the spread of the medians of many such series. Taken as independent it would be 4 times too small."""
    rng = np.random.default_rng(1)
    series = [wandering(rng, 200, 0.0) for _ in range(150)]
    truth = float(np.std([np.log(np.median(values)) for values in series]))
    guesses = [log_median_error(values) for values in series[:40]]
    assert 0.6 * truth < float(np.median(guesses)) < 1.5 * truth
    assert log_median_error([1.0] * 5) == float("inf")


def test_the_interval_of_launches_covers_the_truth_95_times_in_100() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(300):
        sides = [[wandering(rng, 30, rng.normal(0, 0.05)) for _ in range(4)] for _ in range(2)]
        told = estimate(sides[0], sides[1], 0.02)
        covered += told.low <= 1.0 <= told.high
    assert 0.92 <= covered / 300 <= 0.99


def test_more_launches_on_one_side_lend_their_spread_to_the_other() -> None:
    many = [[1.0] * 10, [1.02] * 10, [0.98] * 10, [1.01] * 10]
    told = estimate(many, [[1.05] * 10], 0.02)
    assert told.low < 1 < told.high
    assert told.ratio == pytest.approx(1.05, rel=0.01)
    assert estimate(many, [[1.3] * 10], 0.02).low > 1


def test_launches_that_agree_to_the_last_digit_differ_only_if_they_do() -> None:
    assert estimate([[1.0] * 6] * 3, [[1.0] * 6] * 3, 0.02).p == 1.0
    assert estimate([[1.0] * 6] * 3, [[2.0] * 6] * 3, 0.02).p == 0.0


def test_holms_rule_multiplies_the_smallest_by_their_number() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("ratio", "low", "high", "p", "higher", "word"),
    [
        (1.1, 1.05, 1.15, 0.01, False, "SLOWER"),
        (1.1, 1.05, 1.15, 0.01, True, "FASTER"),
        (0.9, 0.85, 0.95, 0.01, False, "FASTER"),
        (1.0, 0.98, 1.02, 0.9, False, "SAME"),
        (1.0, 0.90, 1.10, 0.9, False, "UNSURE"),
        (1.1, 1.05, 1.15, 0.2, False, "UNSURE"),  # its own interval is clear of 1, but among many cells that happens
    ],
)
def test_the_word(ratio: float, low: float, high: float, p: float, higher: bool, word: str) -> None:
    assert verdict(Estimate(ratio, low, high, p, ""), p, 0.03, higher) == word


def test_the_loss_is_in_time_for_rates_too() -> None:
    assert loss(1.05, False) == pytest.approx(0.05)
    assert loss(1 / 1.05, True) == pytest.approx(0.05)
    assert loss(0.5, False) == -0.5
