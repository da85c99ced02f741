"""What the report makes of records: which plots, what they hold, and that other files' faults are one line."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from distbench.record import read
from distbench.show.listing import first_sentence
from distbench.show.markdown import markdown
from distbench.show.report import curves, details
from distbench.show.report.attribution import middle_sample, where_time_went
from distbench.show.report.figures import text, thinned
from distbench.show.report.main import main as report
from distbench.show.report.page import page
from distbench.show.report.terminal import bar, follow, screen, spark
from distbench.show.runs import Run, Unusable, label_of, load, per_rank, shape_of, varying
from distbench.verbs import VERBS, unknown_word

RECORDS = Path(__file__).resolve().parents[1] / "records"
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "h200"
Record = dict[str, Any]


@pytest.fixture
def three() -> Run:
    """Four dtypes on three ranks of an H200."""
    (run,) = load([RECORDS / "square-3-ranks.jsonl"])
    return run


def sized(run: Run, *sizes: int, world: int = 3, tflops: float = 1.0) -> Run:
    """The run's first record at other sizes."""
    told = []
    for n in sizes:
        item = run.records[0]
        config = item["config"] | {"workload": item["config"]["workload"] | {"m": n, "n": n, "k": n}}
        made = {"cell": f"{n:08x}{world:04x}", "config": config, "work": {"flop": 2 * n**3, "bytes": 24 * n * n}}
        results = {"result": item["result"] | {"tflops": tflops}, "world": item["world"] | {"size": world}}
        told.append(item | made | results)
    return Run("sized", run.path, told)


def titles(*runs: Run) -> list[str]:
    return [figure.title for figure in curves.overview(list(runs))]


def test_only_the_plots_that_the_records_support(three: Run) -> None:
    assert titles(three) == ["Rate against dtype", "Roofline", "Where the time went"]
    one = Run("one", three.path, three.records[:1])
    assert titles(one) == ["Roofline", "Where the time went"]
    failed = copy.deepcopy(three.records[0]) | {"status": "failed", "reason": "x", "result": None, "samples": None}
    assert titles(Run("failed", three.path, [failed])) == []
    assert "Rate against size" in titles(sized(three, 64, 128))


def test_curves_are_named_by_what_they_were_grouped_by_whatever_comes_first(three: Run) -> None:
    runs = []
    for drive, sizes in (("process", (256, 512)), ("loop", (512, 256))):
        run = sized(three, *sizes)
        for item in run.records:
            item["config"] = item["config"] | {"drive": drive}
        runs.append(run)
    (figure,) = (figure for figure in curves.overview(runs) if figure.title == "Rate against size")
    assert [line["name"] for line in figure.data] == ["process", "loop"]
    assert all(line["x"] == pytest.approx([256, 512]) for line in figure.data)


def test_rates_over_worlds_have_their_efficiency_against_the_smallest(three: Run) -> None:
    runs = [sized(three, 64, world=world, tflops=tflops) for world, tflops in ((1, 1.0), (2, 1.8), (4, 3.0))]
    figures = {figure.title: figure for figure in curves.overview(runs)}
    (line,) = figures["Rate against ranks"].data
    assert line["x"] == [1, 2, 4]
    (line,) = figures["Scaling efficiency"].data
    assert line["name"].startswith("strong")
    assert line["y"] == pytest.approx([100, 90, 75])


def test_weak_scaling_is_the_same_work_per_rank(three: Run) -> None:
    runs = []
    for world, m in ((1, 64), (2, 128)):
        run = sized(three, 64, world=world, tflops=float(world))
        run.records[0]["config"]["workload"]["m"] = m
        run.records[0]["work"]["flop"] = 2 * m * 64 * 64
        runs.append(run)
    (figure,) = (figure for figure in curves.overview(runs) if figure.title == "Scaling efficiency")
    (line,) = figure.data
    assert line["name"].startswith("weak")
    assert line["y"] == pytest.approx([100, 100])


def test_a_roof_is_the_datasheets_and_the_slope_its_memory(three: Run) -> None:
    (figure,) = (figure for figure in curves.overview([three]) if figure.title == "Roofline")
    roof = next(trace for trace in figure.data if "bfloat16, NVIDIA H200" in trace["name"])
    assert max(roof["y"]) == pytest.approx(989.5)
    assert roof["y"][0] == pytest.approx(roof["x"][0] * 4.8)  # FLOP per byte times 4.8 TB/s
    points = [trace for trace in figure.data if trace["mode"] == "markers"]
    assert sum(len(trace["x"]) for trace in points) == 4


def test_ten_thousand_cells_are_drawn_as_few_points(three: Run) -> None:
    many = sized(three, *range(64, 10_064))
    for figure in curves.overview([many]):
        assert sum(len(trace["x"]) for trace in figure.data) < 2000, figure.title


def test_where_the_time_went_adds_up_to_the_span_of_the_rank_that_ended_last() -> None:
    samples = {
        "span_s": [10.0, 10.0, 99.0, 1.0],
        "rank_s": [[6.0, 6.0, 99.0, 1.0], [8.0, 8.0, 1.0, 1.0]],
        "start_s": [[0.0, 0.0, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0]],
        "phases_s": {"gemm": [[6.0] * 4, [5.0] * 4], "collect": [[0.0] * 4, [2.5] * 4]},
    }
    parts = where_time_went(samples)
    assert parts == {"start": 2.0, "GEMM": 5.0, "collect": 2.5, "rest": 0.5}
    assert sum(parts.values()) == 10.0
    assert middle_sample(samples) in (0, 1)
    assert where_time_went({"span_s": [1.0], "file": "gone.json"}) == {}


def test_the_time_of_real_records_is_accounted_for(three: Run) -> None:
    for item in three.records:
        parts = where_time_went(item["samples"])
        assert sum(parts.values()) == pytest.approx(item["result"]["time_s"], rel=0.02)


def test_a_timeline_needs_the_starts_of_the_ranks(three: Run) -> None:
    item = copy.deepcopy(three.records[0])
    assert "Timeline of one sample" not in [figure.title for figure in details.details(three, item)]
    item["samples"]["start_s"] = [[0.0, 0.001, 0.0] * 20 for _ in range(3)]
    timeline = details.details(three, item)[-1]
    assert timeline.title == "Timeline of one sample"
    gemm = timeline.data[0]
    assert (gemm["name"], len(gemm["x"]), len(gemm["base"])) == ("GEMM", 3, 3)


def test_many_ranks_are_lines_of_quantiles_and_the_slowest_is_named(three: Run) -> None:
    item = copy.deepcopy(three.records[0])
    rank = item["world"]["ranks"][0]
    item["world"]["ranks"] = [rank | {"rank": number, "host": f"node{number}"} for number in range(4096)]
    item["samples"]["rank_s"] = [[1.0 + (number == 77)] * 50 for number in range(4096)]
    (figure,) = (figure for figure in details.details(three, item) if figure.title == "Ranks")
    assert "rank 77 on node77" in figure.note
    assert all(len(trace["x"]) <= 1500 for trace in figure.data)


def test_samples_in_a_file_beside_are_found_there_and_nowhere_else(three: Run, tmp_path: Path) -> None:
    item = copy.deepcopy(three.records[0])
    beside = {key: item["samples"].pop(key) for key in ("rank_s", "phases_s")}
    item["samples"]["file"] = "samples-1.json"
    run = Run("run", tmp_path / "results.jsonl", [item])
    assert "rank_s" not in per_rank(run, item)  # gone
    (tmp_path / "samples-1.json").write_text(json.dumps(beside))
    assert per_rank(run, item)["rank_s"] == beside["rank_s"]
    (tmp_path / "samples-1.json").write_text("[1")
    assert "rank_s" not in per_rank(run, item)
    (tmp_path.parent / "outside.json").write_text(json.dumps(beside))
    item["samples"]["file"] = "../outside.json"
    assert "rank_s" not in per_rank(run, item)


def test_thinning_keeps_the_lowest_and_the_highest() -> None:
    values = [0.0] * 10_000
    values[1234], values[7777] = 5.0, -5.0
    kept = thinned(values, 100)
    assert {1234, 7777} <= set(kept)
    assert len(kept) <= 100
    assert kept == sorted(kept)
    assert thinned([1.0, 2.0]) == [0, 1]


def test_what_follows_from_other_settings_is_not_named(three: Run) -> None:
    assert varying(three.records) == ["workload.dtype"]
    told = copy.deepcopy(three.records)
    for item, (collect, path) in zip(told, [("none", "in_place"), ("gather", "collective")] * 2, strict=True):
        item["config"] |= {"collect": collect, "path": path}
    assert varying(told) == ["workload.dtype", "collect"]
    told[1]["config"]["path"] = "p2p"
    told.append(copy.deepcopy(told[1]))
    told[-1]["config"]["path"] = "collective"
    assert "path" in varying(told)
    assert label_of(told[0], ["workload.m", "workload.n", "workload.k", "collect", "world"]) == "n=8192, none, world=3"


def test_a_refused_cells_sizes_are_looked_up(three: Run) -> None:
    item = copy.deepcopy(three.records[0])
    item["config"]["workload"] |= {"n": 0, "m": "${workload.n}", "k": "${workload.n}"}
    assert shape_of(item) == "square 0 x 0 x 0"


def test_text_for_plotly_is_neither_markup_nor_a_template() -> None:
    assert text("<b>%{y}&") == "&lt;b&gt;%&#123;y}&amp;"


def test_the_page_holds_no_markup_of_a_record_and_asks_for_nothing(three: Run) -> None:
    hostile = "</script><script>alert(1)</script>"
    for item in three.records:
        item["environment"]["command"] = item["config"]["workload"]["name"] = hostile
        item["world"]["ranks"][0]["host"] = hostile
    told = page([Run(hostile, three.path, three.records)], hostile)
    assert hostile not in told
    assert "alert(1)" in told
    own = told[: told.index("plotly.js v")]
    assert "http" not in own.replace("http-equiv", "")
    assert "default-src 'none'" in own


def test_a_repeat_is_a_record_of_its_own(tmp_path: Path, three: Run) -> None:
    lines = [three.records[0] | {"repeat": number} for number in (0, 1, 1)]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [item["repeat"] for item in read(tmp_path / "results.jsonl")] == [0, 1]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file or folder"),
        ("", "no records in it"),
        ("not json\n", "no records in it"),
        ('{"cell": "a", "schema": 2}\n', "a record of schema 2, and this distbench reads schema 1"),
        ('{"cell": "a", "schema": 1, "config": {}}\n', "lacks config, world, environment"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_status_2(
    content: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    if content is not None:
        path.write_text(content)
    assert report([str(path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert says in told.err
    assert all(line.startswith("distbench: ") for line in told.err.splitlines())  # a broken line may be told first


def test_a_slip_in_a_folders_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "gallery").mkdir()
    with pytest.raises(Unusable, match=r"did you mean .*gallery"):
        load([tmp_path / "galery"])


def test_where_the_page_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = (RECORDS / "square-3-ranks.jsonl").read_bytes()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.jsonl").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    assert [report(words) for words in (["a"], ["a", "b"], ["a", "-o", "c.html"], ["."])] == [0] * 4
    assert capsys.readouterr().out.split() == ["a/report.html", "report.html", "c.html", "report.html"]
    assert report(["a", "-o", "gone/c.html"]) == 2
    assert "choose another place with -o" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "title"), [("h200", "One NVIDIA H200"), ("cpu", "Two cores")])
def test_the_pages_of_the_results_in_docs_are_made_by_the_verb(
    capsys: pytest.CaptureFixture[str], name: str, title: str
) -> None:
    files = sorted(map(str, (RESULTS.parent / name).glob("*.jsonl")))
    assert report([*files, "--format", "md", "--title", title]) == 0
    made = capsys.readouterr().out
    assert made == (RESULTS.parent / f"{name}.md").read_text()
    assert all(part in made for part in ("what this machine can do", "memory copy", "health of "))


def test_no_two_rows_of_a_runs_table_have_the_same_words() -> None:
    for path in sorted(RESULTS.parent.glob("*/*.jsonl")):
        told = markdown(load([path]), "title")
        rows = [line.split(" | ")[:3] for line in told.split("---|\n", 1)[1].splitlines() if line.startswith("| ")]
        rows = rows[: len(path.read_text().splitlines())]
        assert len({tuple(row) for row in rows}) == len(rows), path
    assert "| batched 20 x 1000 x 1000 x 200" in (RESULTS.parent / "h200.md").read_text()


def test_the_terminal_shows_the_table_the_rates_the_samples_and_the_ranks(three: Run) -> None:
    failed = copy.deepcopy(three.records[0]) | {"status": "failed", "reason": "[no]", "result": None, "samples": None}
    told = screen([Run("r", three.path, [*three.records, failed])])
    for part in ("square 8192³", "537.5 TFLOP/s", "spans over time", "where the time went", "rank 2", "failed: [no]"):
        assert part in told, part
    assert max(map(len, told.splitlines())) <= 100
    assert "\x1b" not in told


def test_bars_and_sparks() -> None:
    assert bar(1, 4) == "████"
    assert bar(0.53, 4) == "██▏"
    assert bar(0, 4) == ""
    assert spark([1.0, 2.0, 3.0], 10) == "▁▅█"
    assert spark([2.0] * 5, 3) == "▁▁▁"


def test_following_tells_each_record_once_as_it_comes(
    three: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is there before its records; a line half written waits."""
    lines = [json.dumps(item) + "\n" for item in three.records]
    steps = iter(["", lines[0], lines[1] + lines[2][:50], lines[2][50:], lines[3]])
    monkeypatch.setattr("distbench.show.report.terminal._POLL_S", 0)

    def still() -> bool:
        step = next(steps, None)
        if step:
            with (tmp_path / "results.jsonl").open("a") as file:
                file.write(step)
        return step is not None

    assert follow(tmp_path, still) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told] == ["ok"] * 4
    dtypes = ("bfloat16", "float16", "float32", "float64")
    assert [next(word for word in dtypes if word in line) for line in told] == [
        "float64",
        "float32",
        "bfloat16",
        "float16",
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["reprot"], "did you mean distbench report?"),
        (["xyz"], "the verbs are report, compare"),
        (["workload=square"], None),
        (["-m", "a=1"], None),
        (["+experiment=gpu"], None),
        ([], None),
    ],
)
def test_a_word_that_is_no_verb_is_answered_with_the_nearest(words: list[str], says: str | None) -> None:
    told = unknown_word(words)
    assert (told is None) if says is None else (told is not None and says in told)


def test_a_verb_has_one_line_and_a_function() -> None:
    for name, verb in VERBS.items():
        assert name.isalpha()
        assert verb.line
        assert verb.target.count(":") == 1


def test_a_files_first_sentence() -> None:
    assert first_sentence("# @package _global_\n# One two,\n# three. Four.\nworkload: 1 # no\n") == "One two, three"
    assert first_sentence("a: 1\n") == ""


def of_results(name: str) -> Run:
    """The records of one H200 in docs/."""
    (run,) = load([RESULTS / f"{name}.jsonl"])
    return run


def test_the_page_tells_what_bounds_each_cell_its_warnings_and_the_state_of_its_devices() -> None:
    methods, squares = of_results("1-gallery-methods-1-device"), of_results("7-square")
    squares.records[0]["warnings"][0]["text"] = "rank 0's <clock>"
    made = page([methods, squares], "t")
    assert "What bounds each cell" in made
    assert "<strong>1-gallery-methods-1-device: host, pinned, torch, process</strong>: bound by the copy of C" in made
    throttled = sum(
        any(it["name"] == "throttled" for it in item["warnings"]) for item in methods.records + squares.records
    )
    assert f"<strong>throttled</strong>, {throttled} cells" in made
    assert "7-square: float64: rank 0&#x27;s &lt;clock&gt; (limit 0.05)" in made
    clock = squares.records[3]["telemetry"][0]["gpu"]["sm_clock_mhz"]["median"]
    assert f"{clock:.0f}</td>" in made
    assert "power cap 100%" in made
    bare = copy.deepcopy(squares.records[0]) | {"warnings": [], "telemetry": None}
    plain = page([Run("r", squares.path, [bare])], "t")
    assert not any(head in plain for head in ("Warnings", "What bounds", "Devices while"))


def test_phases_that_overlap_are_not_laid_one_after_the_other_and_idle_ranks_are_not_drawn() -> None:
    run = of_results("2-gallery-methods-3-ranks")
    loop = next(item for item in run.records if item["config"]["drive"] == "loop")
    assert where_time_went(per_rank(run, loop)) == {}
    drawn = {figure.title: figure for figure in details.details(run, loop)}
    assert "Ranks" not in drawn  # one drives all devices, the others stand aside
    timeline = drawn["Timeline of one sample"]
    assert [(bar["name"], bar["y"]) for bar in timeline.data] == [("sample", ["rank 0"])]
    assert "its phases overlap" in timeline.note


def test_a_figures_legend_has_only_what_differs_in_it() -> None:
    run = of_results("1-gallery-methods-1-device"), of_results("2-gallery-methods-3-ranks")
    (against,) = [figure for figure in curves.overview(list(run)) if figure.title == "Rate against path"]
    assert {bar["name"] for bar in against.data} == {"world=1", "world=3"}
