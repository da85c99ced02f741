"""The experiments that need a sweeper of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import run, torchrun

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
