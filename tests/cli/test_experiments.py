"""The experiments that need a sweeper of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import refusal, run, torchrun

pytestmark = pytest.mark.usefixtures("in_tmp")
SEARCH = ["-m", "+experiment=best_square", "hydra.sweeper.n_trials=3", "measure.max_time_s=1"]


def test_optuna_finds_the_best_of_the_squares_that_it_tried(in_tmp: Path) -> None:
    result = run(SEARCH)
    assert (result.returncode, result.statuses) == (0, ["ok"] * 3), result.stderr
    sizes = [record["config"]["workload"]["n"] for record in result.records]
    assert all(64 <= size <= 2048 and size % 64 == 0 for size in sizes)
    rates = [record["result"]["tflops"] for record in result.records]
    (folder,) = result.folders
    told = (folder / "optimization_results.yaml").read_text()
    assert float(told.partition("best_value:")[2]) == max(rates)
    assert f"workload.n: {sizes[rates.index(max(rates))]}\n" in told


def test_a_failed_size_is_a_failed_trial_and_the_search_goes_on(in_tmp: Path) -> None:
    sizes = "hydra.sweeper.params={workload.n: 'choice(0,64,128)'}"
    result = run([*SEARCH, "hydra/sweeper/sampler=random", "hydra.sweeper.sampler.seed=2", sizes])
    assert result.returncode == 1
    assert sorted(result.statuses) == ["failed", "ok", "ok"]
    best = max((r["result"]["tflops"], r["config"]["workload"]["n"]) for r in result.records if r["status"] == "ok")
    (folder,) = result.folders
    assert f"workload.n: {best[1]}\n" in (folder / "optimization_results.yaml").read_text()


def test_the_peak_search_is_a_sweep_that_needs_no_m_and_tells_how_far_others_fall_below(in_tmp: Path) -> None:
    words = ["+experiment=peak", "peak.time_s=12", "peak.largest=768", "workload.dtype=float32,float64"]
    result = run([*words, "measure.min_time_s=0.05", "measure.max_time_s=0.3"], timeout_s=200)
    assert (result.returncode, result.stderr) == (0, "")
    assert set(result.statuses) == {"ok"}
    (folder,) = result.folders
    summary = json.loads((folder / "peak.json").read_text())
    assert [told["dtype"] for told in summary] == ["float32", "float64"]
    for told in summary:
        own = [item for item in result.records if item["config"]["workload"]["dtype"] == told["dtype"]]
        workloads = [item["config"]["workload"] for item in own]
        rates = [item["result"]["tflops"] for item in own]
        assert told["best"]["tflops"] == max(rates)  # none that was measured is faster, the plain squares among them
        assert told["seconds"] < 13
        assert {"peak_square", "peak_odd", "peak_tile", "peak_skinny"} <= {w["name"] for w in workloads}
        assert {512, 768} <= {w["m"] for w in workloads if w["m"] == w["n"] == w["k"]}
        assert f"{told['dtype']}: best " in result.stdout
        assert all(item["verification"]["ok"] for item in own)
    assert "multiples of 64, off by one" in result.stdout
    report = run(["report", "--format=md", str(folder)])
    assert "one above a tile's edge" in report.stdout


def test_a_search_with_real_ranks_and_a_dtype_that_the_cpu_lacks(in_tmp: Path) -> None:
    words = ["+experiment=peak", "peak.time_s=6", "peak.largest=512", "workload.dtype=tf32,float32", "threads=1"]
    result = run([*words, "measure.min_time_s=0.05", "measure.max_time_s=0.2"], torchrun(2), timeout_s=120)
    assert result.returncode == 0, result.stderr
    assert result.statuses[:2] == ["skipped", "ok"]
    assert result.statuses.count("skipped") == 1
    assert "tf32: no shape has a rate (skipped: workload.dtype=tf32" in result.stdout


@pytest.mark.parametrize("word", ["workload.n=512", "peak.time_s=0", "peak.largest=1", "peak.tme_s=3"])
def test_a_search_that_cannot_be_is_one_line_and_status_2(in_tmp: Path, word: str) -> None:
    result = run(["+experiment=peak", word])
    assert (result.returncode, result.records) == (2, [])
    assert refusal(result).startswith(word.partition("=")[0])


def test_the_gallery_methods_are_a_row_each_and_what_this_machine_lacks_is_skipped(in_tmp: Path) -> None:
    command = ["--multirun", "+experiment=gallery_methods", "workload.m=3000", "measure.max_time_s=1"]
    result = run(command, torchrun(3), timeout_s=300)
    assert result.returncode == 0, result.stderr
    assert result.statuses == ["ok", "ok", "skipped", "skipped", "ok", "skipped", "skipped", "ok", "ok"]
    loop, threads, cupy, _, process, pinned, *_ = result.records
    assert "CuPy" in cupy["reason"] or "no CUDA device" in cupy["reason"]
    assert "page-locked" in pinned["reason"]
    assert loop["result"]["init_host_s"] > 0
    assert "init_host_s" not in process["result"]
    assert [len(rank["parts"]) for rank in threads["world"]["ranks"]] == [3, 0, 0]
    table = result.stdout[result.stdout.index("a query of 256") :]
    assert "1 x  yes       41.74 s, 2.94 s" in table
    report = run(["report", "--format=md", str(result.folders[0])])
    assert table.splitlines()[2].strip() in report.stdout


def test_a_sweep_of_which_nothing_can_run_here_is_no_success(in_tmp: Path) -> None:
    result = run(["--multirun", "+experiment=stream_kinds", "workload.m=3000"])
    assert (result.returncode, result.statuses) == (1, ["skipped"] * 3)


def test_the_notebook_is_a_row_per_library_and_dtype_and_what_this_machine_lacks_is_skipped(in_tmp: Path) -> None:
    small = ["workload.batch=4", "workload.m=200", "workload.n=200"]
    result = run(["--multirun", "+experiment=cpu_vs_gpu", *small], timeout_s=300)
    assert result.returncode == 0, result.stderr
    assert result.statuses == ["ok", "ok", "skipped", "skipped"] * 2
    for record in result.records:
        if record["status"] == "ok":
            loop, spans = record["result"]["loop"], record["samples"]["span_s"]
            assert loop["cumulative_s"] == sorted(loop["cumulative_s"])
            assert (len(loop["cumulative_s"]), len(loop["unsynchronised_s"]), loop["copy_s"]) == (20, 20, None)
            assert loop["timeit_s"][0] == pytest.approx(sum(spans) / len(spans))
    table = result.stdout[result.stdout.index("4 products of 200 x 200 by 200 x 200") :]
    assert [line.split()[0] for line in table.splitlines()[2:10]] == ["numpy", "torch", "torch", "cupy"] * 2
    assert "openblas" in table
    report = run(["report", "--format=md", str(result.folders[0])])
    assert table.splitlines()[2].strip() in report.stdout


def test_a_new_result_array_is_faulted_in_each_time_and_a_reused_one_is_not(in_tmp: Path) -> None:
    result = run(
        ["-m", "workload=gallery", "workload.m=30000", "measure=quick", "measure.loop=5", "path=fresh,pageable"]
    )
    assert (result.returncode, result.statuses) == (0, ["ok"] * 2), result.stderr
    fresh, reused = (record["result"]["loop"]["page_faults_per_run"] for record in result.records)
    huge_pages = 30_000 * 256 * 8 / (2 << 20)  # C in pages of 2 MiB: the fewest faults that bring it in
    assert fresh > huge_pages / 2 > reused
