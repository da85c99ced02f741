"""Guards: each fires on the record of a real cell to which one thing was done, and is silent without it."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import validate

from distbench import guards
from distbench.cell import Cell
from distbench.config import Config, Device, DType, Guard, Measure, Split, Workload
from distbench.record import to_line
from distbench.show.result import result_lines
from distbench.world import World

RANKS = 2


@pytest.fixture(scope="module")
def real(world: World) -> dict[str, Any]:
    """A cell that was measured here, in a world of one."""
    measure = Measure(warmup=2, min_samples=40, max_samples=40)
    workload = Workload("tiny", 1, 64, 32, 16, DType.float64)
    config = Config(workload=workload, measure=measure, split=Split.m, device=Device.cpu, threads=1)
    record = Cell(world, config, lambda event, detail: None).outcome()
    assert record["status"] == "ok", record["reason"]
    return record


@pytest.fixture
def healthy(real: dict[str, Any]) -> dict[str, Any]:
    """That record as if two quiet ranks of one host had made it, every sample 10 ms or a little more."""
    told = copy.deepcopy(real) | {"warnings": [], "unchecked": []}
    noise = random.Random(1)
    spans = [0.01 * (1 + 0.01 * noise.random()) for _ in range(40)]
    told["samples"] |= {
        "span_s": spans,
        "rank_s": [list(spans) for _ in range(RANKS)],
        "phases_s": {"gemm": [[0.99 * span for span in spans] for _ in range(RANKS)]},
    }
    told["result"] |= {"converged": True, "time_s": 0.01, "tflops": 1.0, "gemm_tflops": 1.1}
    rank = told["world"]["ranks"][0] | {"affinity": [0, 1, 2, 3]}
    told["world"] |= {"size": RANKS, "ranks": [rank | {"rank": number} for number in range(RANKS)]}
    state = told["telemetry"][0]
    spread = {"min": 3000.0, "median": 3000.0, "max": 3000.0}
    state["cpu"] |= {"cores": 4, "others_cores": 0.0, "steal_share": 0.0, "throttled_share": 0.0, "clock_mhz": spread}
    told["telemetry"] = [copy.deepcopy(state) | {"rank": number} for number in range(RANKS)]
    return told


@pytest.fixture
def on_gpus(healthy: dict[str, Any]) -> dict[str, Any]:
    """The same on two GPUs in good health."""
    healthy["config"]["device"] = "cuda"
    clock = {"min": 1980.0, "median": 1980.0, "max": 1980.0}
    gpu = {
        "driver": "580.65.06",
        "mig": False,
        "max_sm_clock_mhz": 1980,
        "power_limit_w": 700.0,
        "link_gb_per_s": 63.0,
        "elapsed_s": 5.0,
        "sm_clock_mhz": clock,
        "memory_clock_mhz": clock,
        "power_w": clock,
        "temperature_c": clock,
        "energy_j": 2500.0,
        "energy_per_sample_j": None,
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "power_violation_s": 0.0,
        "thermal_violation_s": 0.0,
        "held_down_share": {"power_cap": 0.0, "user_clocks": 1.0},
        "other_processes": [],
        "reasons": {},
    }
    for number, rank in enumerate(healthy["world"]["ranks"]):
        rank |= {"device": f"cuda:{number}", "device_name": "NVIDIA H200", "device_uuid": f"uuid {number}"}
        healthy["telemetry"][number] |= {"gpu": copy.deepcopy(gpu), "gpu_reason": None}
    return healthy


def names(record: dict[str, Any], peak_tflops: float | None = 10.0, **limits: float) -> list[str]:
    """The warnings of the judged record, which fits the schema and is shown with a line for each."""
    told = guards.judged(record, peak_tflops, Guard(**limits))
    to_line(told)
    validate(told)
    found = [warning["name"] for warning in told["warnings"]]
    lines = "\n".join(line.plain for line in result_lines(told))
    for warning in told["warnings"]:
        assert warning["text"] in lines
    impossible = any(warning["impossible"] for warning in told["warnings"])
    assert (told["status"], told["result"] is None) == (("wrong", True) if impossible else ("ok", False))
    return found


def unchecked(record: dict[str, Any], peak_tflops: float | None = 10.0) -> set[str]:
    return {item["name"] for item in guards.judged(record, peak_tflops, Guard())["unchecked"]}


def test_a_healthy_record_has_no_warning_and_everything_was_checked(healthy: dict[str, Any]) -> None:
    assert names(healthy) == []
    assert unchecked(healthy) == set()


def test_healthy_gpus_have_no_warning_and_everything_was_checked(on_gpus: dict[str, Any]) -> None:
    assert names(on_gpus) == []
    assert unchecked(on_gpus) == set()


def test_the_real_cells_own_record_fits_the_schema(real: dict[str, Any]) -> None:
    validate(real)
    assert real["telemetry"][0]["cpu"]["own_cores"] > 0


def ranks(record: dict[str, Any]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = record["world"]["ranks"]
    return told


def spans(record: dict[str, Any], values: Callable[[int, float], float]) -> None:
    """Replace each span by a function of its index and value, on all ranks."""
    samples = record["samples"]
    samples["span_s"] = [values(index, span) for index, span in enumerate(samples["span_s"])]
    samples["rank_s"] = [list(samples["span_s"]) for _ in range(RANKS)]
    samples["phases_s"] = {"gemm": [[0.99 * span for span in samples["span_s"]] for _ in range(RANKS)]}


# --- impossible ------------------------------------------------------------------------------------------------------


def test_a_rate_above_the_peak_is_impossible_and_an_unknown_peak_is_not_taken_for_healthy(
    healthy: dict[str, Any],
) -> None:
    assert names(healthy, 1.01) == []  # 1.1 ÷ 1.01: the clock may be above the datasheet's
    assert names(healthy, 0.99) == ["above_peak"]
    assert "above_peak" in unchecked(healthy, None)


@pytest.mark.parametrize("phase", ["h2d", "collect"])
def test_a_copy_faster_than_its_link_is_impossible(on_gpus: dict[str, Any], phase: str) -> None:
    shard = {"batch": 1, "m": 30_000, "n": 1_000, "k": 30_000}  # h2d moves B: 240 MB; collect moves C: as much
    for rank in ranks(on_gpus):
        rank["shard"] = shard
    on_gpus["config"]["workload"]["upload"] = "b" if phase == "h2d" else "none"
    on_gpus["config"]["path"] = "pinned" if phase == "collect" else "in_place"
    samples = on_gpus["samples"]
    for seconds, found in ((0.0039, []), (0.0030, ["copy_above_link"])):  # 61.5 and 80 GB/s
        samples["phases_s"][phase] = [[0.0039] * 40, [seconds] * 40]
        samples["phases_s"]["gemm"] = [[0.005] * 40] * RANKS
        assert names(on_gpus) == found
    on_gpus["telemetry"][0]["gpu"]["link_gb_per_s"] = None
    assert "copy_above_link" in unchecked(on_gpus)


def test_a_span_shorter_than_the_devices_own_time_is_impossible(healthy: dict[str, Any]) -> None:
    healthy["samples"]["phases_s"]["gemm"][1][7] = 1.05 * healthy["samples"]["rank_s"][1][7]
    assert names(healthy) == ["span_below_device_time"]
    healthy["samples"]["phases_s"]["gemm"] = [[0.9 * span for span in healthy["samples"]["span_s"]]] * RANKS
    healthy["samples"]["phases_s"]["gemm"][1][7] = 0.9 * healthy["samples"]["rank_s"][1][7]
    healthy["samples"]["phases_s"]["collect"] = [[0.15 * span for span in healthy["samples"]["span_s"]]] * RANKS
    assert names(healthy) == ["span_below_device_time"]  # together they take 1.05 of it
    healthy["samples"]["phases_overlap"] = True
    assert names(healthy) == []


def test_a_gpu_without_work_for_a_part_of_a_short_product_is_told_how_to_share_it(on_gpus: dict[str, Any]) -> None:
    samples = on_gpus["samples"]
    samples["phases_s"]["gemm"][1] = [span - 0.0005 for span in samples["span_s"]]
    assert names(on_gpus) == []  # the slower rank's GPU has work for 99 % of it
    samples["phases_s"]["gemm"][0] = samples["phases_s"]["gemm"][1]
    assert names(on_gpus) == ["device_idle"]
    (warning,) = guards.judged(on_gpus, None, Guard())["warnings"]
    assert warning["value"] == pytest.approx(0.05, rel=0.02)
    assert "5.0% of a span (500 µs of starting and waiting): measure.inner=auto" in warning["text"]
    config = on_gpus["config"]
    for part, key, other in (
        (config["measure"], "inner", "auto"),
        (config["measure"], "inner", 4),
        (config["measure"], "cache", "cold"),
        (config, "collect", "host"),
        (config["health"], "check", True),
        (config["ceilings"], "measure", True),
        (on_gpus["result"], "gemm_tflops", None),  # the ranks take turns on one GPU
        (on_gpus["world"]["ranks"][1], "parts", [{"part": part, "device_uuid": "GPU-1"} for part in range(2)]),
    ):
        kept, part[key] = part[key], other
        assert names(on_gpus) == [], key
        part[key] = kept
    on_gpus["config"]["device"] = "cpu"
    assert names(on_gpus) == []


# --- the samples -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_samples_that_get_slower_or_faster_are_not_a_steady_state(healthy: dict[str, Any], sign: int) -> None:
    spans(healthy, lambda index, span: span * (1 + sign * 0.1 * index / 40))
    assert names(healthy) == ["drift"]
    assert names(healthy, drift=0.2) == []


def test_a_change_within_the_noise_is_no_drift(healthy: dict[str, Any]) -> None:
    noise = random.Random(2)
    spans(healthy, lambda index, span: span * (1 + 0.5 * noise.random()))
    assert "drift" not in names(healthy)


def test_two_groups_of_samples_are_told_from_one_and_from_a_few_outliers(healthy: dict[str, Any]) -> None:
    quiet = copy.deepcopy(healthy)
    spans(healthy, lambda index, span: span * (1.3 if index % 3 == 0 else 1.0))
    assert names(healthy) == ["bimodal"]
    spans(quiet, lambda index, span: span * (2.0 if index % 20 == 0 else 1.0))
    assert names(quiet) == []


@pytest.mark.parametrize("count", [32, 60, 400])
@pytest.mark.parametrize("shape", ["gauss", "uniform", "exponential"])
def test_one_noisy_group_is_rarely_taken_for_two(healthy: dict[str, Any], shape: str, count: int) -> None:
    noise = random.Random(3)
    draw = {
        "gauss": lambda: noise.gauss(1.0, 0.1),
        "uniform": lambda: noise.uniform(0.7, 1.3),
        "exponential": lambda: 1.0 + noise.expovariate(5.0),
    }[shape]
    taken = 0
    for _ in range(100):
        told = copy.deepcopy(healthy)
        for key in ("span_s", "rank_s", "phases_s"):
            told["samples"][key] = {"span_s": [draw() for _ in range(count)], "rank_s": [], "phases_s": {}}[key]
        taken += "bimodal" in [item["name"] for item in guards.judged(told, 10.0, Guard())["warnings"]]
    assert taken <= 3  # of a hundred: one is expected, at most


def test_too_few_samples_are_written_down_as_unchecked(healthy: dict[str, Any]) -> None:
    for key in ("rank_s", "phases_s"):
        healthy["samples"].pop(key)
    healthy["samples"] |= {"span_s": [0.01] * 9, "rank_s": [[0.01] * 9] * 2, "phases_s": {"gemm": [[0.009] * 9] * 2}}
    assert unchecked(healthy) == {"drift", "bimodal"}


def test_a_median_that_did_not_converge_is_a_warning_with_what_was_reached(healthy: dict[str, Any]) -> None:
    healthy["result"] |= {"converged": False, "stopped_by": "max_time_s", "time_ci_s": [0.009, 0.011]}
    told = guards.judged(healthy, 10.0, Guard())
    assert [(item["name"], round(item["value"], 6)) for item in told["warnings"]] == [("unconverged", 0.1)]
    healthy["result"]["time_ci_s"] = None
    assert names(healthy) == ["unconverged"]


# --- the ranks -------------------------------------------------------------------------------------------------------


def test_ranks_with_unequal_threads_are_named(healthy: dict[str, Any]) -> None:
    ranks(healthy)[1]["threads"] += 1
    assert names(healthy) == ["unequal_threads"]


def test_ranks_on_different_models_are_named(on_gpus: dict[str, Any]) -> None:
    ranks(on_gpus)[1]["device_name"] = "NVIDIA H100 80GB HBM3"
    assert names(on_gpus) == ["unequal_devices"]


def test_hosts_with_different_processors_are_named(healthy: dict[str, Any]) -> None:
    healthy["telemetry"][1]["cpu"]["model"] = "another"
    assert names(healthy) == ["unequal_devices"]


@pytest.mark.parametrize("fixture", ["healthy", "on_gpus"])
def test_a_rank_with_a_slower_clock_is_named_and_a_clock_of_zero_is_not_healthy(
    request: pytest.FixtureRequest, fixture: str
) -> None:
    record = request.getfixturevalue(fixture)
    device, clock = ("gpu", "sm_clock_mhz") if fixture == "on_gpus" else ("cpu", "clock_mhz")
    record["telemetry"][1][device][clock]["median"] *= 0.9
    assert names(record) == ["unequal_clocks"]
    record["telemetry"][1][device][clock]["median"] = 0.0
    assert "unequal_clocks" in unchecked(record)


# --- the machine -----------------------------------------------------------------------------------------------------


def test_other_work_on_the_cores_is_a_busy_machine(healthy: dict[str, Any]) -> None:
    healthy["telemetry"][1]["cpu"]["others_cores"] = 0.4
    assert names(healthy) == ["busy"]
    healthy["telemetry"][1]["cpu"] |= {"others_cores": None}
    healthy["telemetry"][1]["cpu"]["reasons"]["others_cores"] = "too short"
    assert (names(healthy), "busy" in unchecked(healthy)) == ([], True)


def test_beside_a_gpu_other_work_counts_when_it_leaves_the_ranks_no_core(on_gpus: dict[str, Any]) -> None:
    for others, found in ((1.9, []), (2.5, ["busy"])):  # two ranks on four cores
        on_gpus["telemetry"][0]["cpu"]["others_cores"] = others
        assert names(on_gpus) == found


def test_stolen_time_is_named(healthy: dict[str, Any]) -> None:
    healthy["telemetry"][0]["cpu"]["steal_share"] = 0.03
    assert names(healthy) == ["stolen"]


def test_a_quota_that_ran_out_is_named(healthy: dict[str, Any]) -> None:
    healthy["telemetry"][0]["cpu"] |= {"throttled_share": 0.5, "quota_cores": 1.5}
    assert names(healthy) == ["throttled"]


@pytest.mark.parametrize(
    "change",
    [{"power_violation_s": 1.0}, {"thermal_violation_s": 1.0}, {"held_down_share": {"power_brake": 0.2}}],
    ids=["power counter", "heat counter", "looks"],
)
def test_a_clock_that_was_held_down_is_named(on_gpus: dict[str, Any], change: dict[str, Any]) -> None:
    on_gpus["telemetry"][1]["gpu"] |= change
    assert names(on_gpus) == ["throttled"]


def test_ecc_errors_while_measuring_are_named(on_gpus: dict[str, Any]) -> None:
    on_gpus["telemetry"][1]["gpu"] |= {"ecc_corrected": 3, "ecc_uncorrected": 1}
    assert names(on_gpus) == ["ecc_errors", "ecc_errors"]


def test_other_processes_on_the_gpu_are_named(on_gpus: dict[str, Any]) -> None:
    on_gpus["telemetry"][1]["gpu"]["other_processes"] = [{"pid": 1, "bytes": None}]
    assert names(on_gpus) == ["shared_gpu"]


@pytest.mark.parametrize("state", [None, 0.0], ids=["no NVML", "a clock of zero"])
def test_a_gpu_whose_state_nobody_saw_is_not_healthy(on_gpus: dict[str, Any], state: float | None) -> None:
    if state is None:
        on_gpus["telemetry"][0] |= {"gpu": None, "gpu_reason": "nvidia-ml-py is not installed"}
    else:
        on_gpus["telemetry"][0]["gpu"]["sm_clock_mhz"]["median"] = state
    assert names(on_gpus) == ["state_unknown"]


def test_every_guard_has_fired_in_a_test_of_this_file() -> None:
    source = Path(__file__).read_text()
    assert all(f'"{name}"' in source for name in guards.GUARDS)


def test_a_rank_that_stands_aside_is_not_judged_by_its_times(healthy: dict[str, Any]) -> None:
    for series in (healthy["samples"]["rank_s"], healthy["samples"]["phases_s"]["gemm"]):
        series[1] = [0.0] * 40
    assert "span_below_device_time" in names(healthy)  # as a rank that drives a device
    healthy["world"]["ranks"][1]["parts"] = []
    assert names(healthy) == []


def test_a_rank_that_stands_aside_has_no_gpu_whose_state_could_be_unknown(on_gpus: dict[str, Any]) -> None:
    on_gpus["telemetry"][1] |= {"gpu": None, "gpu_reason": "the rank computes on no GPU"}
    assert names(on_gpus) == ["state_unknown"]
    assert "unequal_clocks" in unchecked(on_gpus)
    on_gpus["world"]["ranks"][1]["parts"] = []
    assert names(on_gpus) == []
    assert "unequal_clocks" not in unchecked(on_gpus)


def test_the_phases_of_several_devices_of_one_process_are_not_added_up(healthy: dict[str, Any]) -> None:
    healthy["samples"]["phases_s"]["collect"] = copy.deepcopy(healthy["samples"]["phases_s"]["gemm"])
    for rank in ranks(healthy):
        rank["parts"] = [rank["parts"][0] | {"part": number} for number in range(2)]
    assert names(healthy) == []


def test_several_devices_have_a_link_each(on_gpus: dict[str, Any]) -> None:
    workload = on_gpus["config"]["workload"]
    workload["upload"], workload["k"], workload["n"] = "b", 1000, 1000
    seconds = 8e6 / 63e9 / 1.5  # half as fast again as one link
    on_gpus["samples"]["phases_s"]["h2d"] = [[seconds] * 40 for _ in range(RANKS)]
    for rank in ranks(on_gpus):
        rank["shard"] = {"batch": 1, "m": 1, "n": 1000, "k": 1000}
    assert names(on_gpus) == ["copy_above_link"] * RANKS
    for rank in ranks(on_gpus):
        rank["parts"] = [rank["parts"][0] | {"part": number, "device_uuid": f"GPU-{number}"} for number in range(2)]
    assert names(on_gpus) == []
