"""Verdicts from records made by hand, with values worked out by hand; pairs of the circle method; digests."""

from __future__ import annotations

import hashlib
from itertools import combinations
from typing import Any

import pytest
import torch
from helpers import validate

from distbench.cell import Cell
from distbench.config import Config, Device, DType, Guard, Health, Measure, Split, Workload
from distbench.health import verdicts as health
from distbench.health.checkup import Checkup, digest, examined
from distbench.health.links import rounds, some
from distbench.show.health import health_lines
from distbench.world import World

SAME = "a" * 64
OTHER = "b" * 64


def told(times: list[float], *, gpu: bool = False, samples: int = 20) -> dict[str, Any]:
    """A record of ranks whose products take these seconds in every sample: all that the verdicts read."""
    ranks = [
        {
            "rank": rank,
            "host": f"h{rank // 8}",
            "device": f"cuda:{rank % 8}" if gpu else "cpu",
            "device_name": "NVIDIA H200" if gpu else None,
            "device_uuid": f"GPU-{rank}" if gpu else None,
            "pci": f"0000:{rank:02x}:00.0" if gpu else None,
            "threads": 1,
            "affinity": [rank],
        }
        for rank in range(len(times))
    ]
    clock = {"min": 1980.0, "median": 1980.0, "max": 1980.0}
    card = {
        "sm_clock_mhz": clock,
        "held_down_share": {"power_cap": 1.0},
        "power_violation_s": 0.0,
        "thermal_violation_s": 0.0,
        "elapsed_s": 5.0,
        "other_processes": [],
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
    }
    cpu = {
        "model": "a CPU",
        "cores": 1,
        "clock_mhz": None,
        "others_cores": 0.0,
        "steal_share": 0.0,
        "throttled_share": 0.0,
    }
    return {
        "status": "ok",
        "world": {"ranks": ranks},
        "work": {"flop": len(times) * 10**12},
        "samples": {
            "span_s": [max(times)] * samples,
            "dropped_span_s": [],
            "start_s": [[0.0] * samples for _ in times],
            "late_starts": [0] * len(times),
            "phases_s": {"gemm": [[time_s] * samples for time_s in times]},
        },
        "telemetry": [{"cpu": dict(cpu), "gpu": dict(card) if gpu else None} for _ in times],
        "ceiling": None,
    }


def judged(
    record: dict[str, Any], links: Any = (), digests: list[str] | None = None, **limits: Any
) -> list[dict[str, Any]]:
    same = [SAME] * len(record["world"]["ranks"])
    return health.judged(record, list(links), digests or same, Health(**limits), Guard())


def names(verdicts: list[dict[str, Any]]) -> list[str]:
    return [item["verdict"] for item in verdicts]


def text(verdict: dict[str, Any]) -> str:
    return "; ".join(reason["text"] for reason in verdict["reasons"])


# --- the statistics --------------------------------------------------------------------------------------------------


def test_outliers_lie_above_the_median_by_the_least_and_by_the_deviations() -> None:
    # median 10, absolute deviations 1 1 0 1 5: MAD 1, so 5 deviations are 7.413 and 3 are 4.4478
    values = [9.0, 11.0, 10.0, 9.0, 15.0]
    assert health.outliers(values, 1.0, 3.0) == [False] * 4 + [True]
    assert health.outliers(values, 1.0, 5.0) == [False] * 5
    assert health.outliers(values, 5.5, 3.0) == [False] * 5  # above the deviations, not above the least
    assert health.outliers([10.0, 10.0, 10.0, 1.0], 1.0, 3.0) == [False] * 4  # fast is no fault


def test_one_slow_rank_of_eight_is_named_and_no_other() -> None:
    verdicts = judged(told([1.0, 1.01, 0.99, 1.0, 1.2, 1.0, 1.01, 0.99]))
    assert names(verdicts) == ["ok"] * 4 + ["compute_slow"] + ["ok"] * 3
    assert "20% longer than the median of 8 equal devices" in text(verdicts[4])
    assert verdicts[4]["numbers"]["gemm_ratio"] == pytest.approx(1.2)
    assert names(judged(told([1.0, 1.01, 0.99, 1.0, 1.09, 1.0, 1.01, 0.99]))) == ["ok"] * 8  # below 10 %


def test_a_wide_scatter_makes_no_outlier_of_its_edge() -> None:
    # median 1.05, MAD 0.05: five deviations are 0.37, and 1.2 lies 0.15 above
    assert names(judged(told([1.0, 1.1, 1.0, 1.1, 1.2]))) == ["ok"] * 5


@pytest.mark.parametrize(("slower", "verdict"), [(1.24, "ok"), (1.26, "compute_slow")])
def test_of_two_the_slower_is_named_from_a_quarter_on_and_why_it_is_that_one(slower: float, verdict: str) -> None:
    verdicts = judged(told([slower, 1.0]))
    assert names(verdicts) == [verdict, "ok"]
    assert ("of two ranks the slower is named" in text(verdicts[0])) == (verdict != "ok")


def test_where_half_are_slow_the_fastest_is_the_measure() -> None:
    verdicts = judged(told([1.0, 1.0, 1.5, 1.5]))
    assert names(verdicts) == ["ok", "ok", "compute_slow", "compute_slow"]
    assert "no majority" in text(verdicts[3])


def test_devices_of_another_kind_are_not_compared() -> None:
    record = told([1.0, 1.0, 1.0, 3.0], gpu=True)
    record["world"]["ranks"][3]["device_name"] = "NVIDIA L4"
    verdicts = judged(record)
    assert names(verdicts) == ["ok", "ok", "ok", "unknown"]


def test_ranks_that_take_turns_on_a_gpu_are_not_judged_by_their_times_and_the_others_are() -> None:
    record = told([1.0, 1.0, 1.0, 1.4, 1.0, 3.0], gpu=True)
    for rank in (4, 5):
        record["world"]["ranks"][rank]["device_uuid"] = "GPU-4"
    verdicts = judged(record)
    assert names(verdicts) == ["ok"] * 3 + ["compute_slow"] + ["unknown"] * 2
    assert "shares its GPU with 1 more of the run's ranks (the first: rank 4)" in text(verdicts[5])
    assert "start one rank per GPU" in text(verdicts[5])


@pytest.mark.parametrize(("gemm_s", "verdict"), [(1.0, "ok"), (1.3, "compute_slow")])
def test_alone_it_is_held_against_the_ceiling(gemm_s: float, verdict: str) -> None:
    record = told([gemm_s]) | {"ceiling": {"gemm_tflops": 1.1, "time": "2026-01-01T00:00:00Z"}}
    (alone,) = judged(record)  # 1 TFLOP in so many seconds, of 1.1 TFLOP/s
    assert alone["verdict"] == verdict
    assert alone["numbers"]["ceiling_share"] == pytest.approx(1 / gemm_s / 1.1)


@pytest.mark.parametrize(("gemm_s", "verdict"), [(1.0, "ok"), (1.3, "compute_slow")])
def test_ranks_that_are_slow_alike_are_held_against_the_ceiling(gemm_s: float, verdict: str) -> None:
    ceiling = {"gemm_tflops": 4 * 1.1, "time": "2026-01-01T00:00:00Z"}  # of the four together
    verdicts = judged(told([gemm_s] * 4) | {"ceiling": ceiling})
    assert names(verdicts) == [verdict] * 4
    assert names(judged(told([1.0, 1.0, 1.0, 1.6]) | {"ceiling": ceiling})) == ["ok"] * 3 + ["compute_slow"]
    if verdict != "ok":
        assert "it reaches 70% of what was measured here before" in text(verdicts[0])


# --- causes ----------------------------------------------------------------------------------------------------------


def slow_gpu(**state: Any) -> dict[str, Any]:
    record = told([1.0, 1.0, 1.0, 1.4], gpu=True)
    record["telemetry"][3]["gpu"] |= state
    return judged(record)[3]


def clock(mhz: float) -> dict[str, Any]:
    return {"sm_clock_mhz": {"min": mhz, "median": mhz, "max": mhz}}


def test_every_gpu_at_its_power_cap_is_no_cause() -> None:
    assert slow_gpu()["verdict"] == "compute_slow"  # all four are at the cap all the time


def test_a_lower_clock_is_clock_limited_and_at_the_power_cap_power_limited() -> None:
    assert slow_gpu(**clock(1200), held_down_share={})["verdict"] == "clock_limited"
    limited = slow_gpu(**clock(1200), held_down_share={"power_cap": 0.9})
    assert limited["verdict"] == "power_limited"
    assert "its SM clock is 1200 MHz, the others' 1980" in text(limited)
    assert "power cap held its clock down for 90% of the time" in text(limited)


def test_heat_is_clock_limited() -> None:
    hot = slow_gpu(held_down_share={"hw_thermal": 0.5, "power_cap": 1.0})
    assert hot["verdict"] == "clock_limited"
    assert "hw thermal" in text(hot)


def test_other_processes_and_ecc_errors_are_told() -> None:
    told_text = text(slow_gpu(other_processes=[{"pid": 1, "bytes": 2}], ecc_uncorrected=3))
    assert "1 other processes are on it" in told_text
    assert "3 uncorrected, 0 corrected ECC errors" in told_text


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ({"others_cores": 0.5}, "other work took 0.5 of its 1 cores"),
        ({"steal_share": 0.3}, "the hypervisor took 30% of its cores' time"),
        ({"throttled_share": 0.4}, "its cgroup's quota held it back in 40% of the periods"),
        ({}, "do not tell why"),
    ],
)
def test_a_slow_cpu_rank_is_told_why(state: dict[str, Any], cause: str) -> None:
    record = told([1.0, 1.0, 1.6])
    record["telemetry"][2]["cpu"] |= state
    assert cause in text(judged(record)[2])


def test_a_slower_cpu_clock_is_clock_limited() -> None:
    record = told([1.0, 1.0, 1.6])
    for item, mhz in zip(record["telemetry"], (3000.0, 3000.0, 2000.0), strict=True):
        item["cpu"]["clock_mhz"] = {"min": mhz, "median": mhz, "max": mhz}
    assert judged(record)[2]["verdict"] == "clock_limited"


def test_shared_cores_and_fewer_threads_are_told() -> None:
    record = told([1.0, 1.0, 2.0, 2.0])
    for rank in (2, 3):
        record["world"]["ranks"][rank]["affinity"] = [2]  # each has half of core 2
    for rank in (0, 1):
        record["world"]["ranks"][rank]["threads"] = 2
    told_text = text(judged(record)[3])
    assert "it computes with 1 threads, the others with 2" in told_text
    assert "its share of the cores that it may run on is 0.5, the others' 1" in told_text


def test_stalls_are_seen_though_the_median_is_fine() -> None:
    record = told([1.0, 1.0, 1.0])
    record["samples"]["phases_s"]["gemm"][1][4:6] = [2.5, 9.0]  # 2 of 20 samples
    verdicts = judged(record)
    assert names(verdicts) == ["ok", "compute_slow", "ok"]
    assert "stood still in 10% of the samples (up to 9 s, usually 1 s)" in text(verdicts[1])
    record["samples"]["phases_s"]["gemm"][1][4] = 1.0
    assert names(judged(record)) == ["ok"] * 3  # once is a hiccup


# --- starts ----------------------------------------------------------------------------------------------------------


def test_a_late_rank_is_named() -> None:
    record = told([1.0] * 4)
    record["samples"]["start_s"][2] = [0.2] * 20
    verdicts = judged(record)
    assert names(verdicts) == ["ok", "ok", "late", "ok"]
    assert "0.2 s after the first, 20% of a sample" in text(verdicts[2])
    record["samples"]["start_s"][2] = [0.09] * 20
    assert names(judged(record)) == ["ok"] * 4


def test_missed_starts_are_late_unless_all_miss_them() -> None:
    record = told([1.0] * 3)
    record["samples"] |= {"dropped_span_s": [1.0] * 20, "late_starts": [0, 16, 2]}
    assert names(judged(record)) == ["ok", "late", "ok"]  # 16 of 40
    record["samples"]["late_starts"] = [14, 16, 14]
    assert names(judged(record)) == ["ok"] * 3


# --- links -----------------------------------------------------------------------------------------------------------


def link(first: int, second: int, time_s: float, same_host: bool = True) -> dict[str, Any]:
    return {"ranks": [first, second], "same_host": same_host, "bytes": 10**9, "time_s": time_s, "gb_per_s": 1 / time_s}


def test_the_rank_whose_every_link_is_slow_is_named_and_not_its_partners() -> None:
    pairs = [link(a, b, 0.1 if 2 in (a, b) else 0.01) for a, b in combinations(range(4), 2)]
    verdicts = judged(told([1.0] * 4), pairs)
    assert names(verdicts) == ["ok", "ok", "slow_link", "ok"]
    assert "within the host carries 10 GB/s, the median rank's 100" in text(verdicts[2])


def test_links_between_hosts_are_compared_with_their_like_and_one_link_with_none() -> None:
    within = [link(0, 1, 0.01), link(2, 3, 0.01)]
    between = [link(a, b, 0.5, same_host=False) for a in (0, 1) for b in (2, 3)]
    assert names(judged(told([1.0] * 4), within + between)) == ["ok"] * 4
    assert names(judged(told([1.0] * 2), [link(0, 1, 100.0)])) == ["ok"] * 2


@pytest.mark.parametrize("count", range(1, 12))
def test_every_rank_meets_every_other_once_and_one_at_a_time(count: int) -> None:
    told_rounds = rounds(count)
    assert sorted(pair for pairs in told_rounds for pair in pairs) == list(combinations(range(count), 2))
    for pairs in told_rounds:
        met = [rank for pair in pairs for rank in pair]
        assert len(met) == len(set(met)) == count - count % 2
    assert rounds(4) == [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]] or count != 4


def test_of_many_rounds_some_are_taken_spread_over_all() -> None:
    assert some(rounds(4), 8) == rounds(4)
    taken = some(rounds(100), 16)
    assert len(taken) == 16
    assert (taken[0], taken[8]) == (rounds(100)[0], rounds(100)[49])


# --- bits ------------------------------------------------------------------------------------------------------------


def test_the_digest_that_differs_from_the_majority_is_wrong_before_all_else() -> None:
    verdicts = judged(told([1.0, 1.0, 3.0]), digests=[SAME, SAME, OTHER])
    assert names(verdicts) == ["ok", "ok", "wrong_result"]
    assert [reason["name"] for reason in verdicts[2]["reasons"]] == ["wrong_result", "compute_slow"]
    assert health.wrong_bits(verdicts) == (
        "rank 2 (host h0, cpu): its result differs in its bits from that of 2 equal devices"
    )


def test_where_no_majority_tells_both_are_doubted() -> None:
    assert names(judged(told([1.0, 1.0]), digests=[SAME, OTHER])) == ["wrong_result"] * 2


@pytest.mark.parametrize("change", [{"threads": 2}, {"affinity": [1, 2]}])
def test_bits_of_unequal_arithmetic_are_not_compared(change: dict[str, Any]) -> None:
    record = told([1.0, 1.0])
    record["world"]["ranks"][1] |= change
    assert names(judged(record, digests=[SAME, OTHER])) == ["ok"] * 2


def test_bits_of_gpus_are_compared_whatever_the_host_threads() -> None:
    record = told([1.0] * 3, gpu=True)
    record["world"]["ranks"][2]["threads"] = 8
    verdicts = judged(record, digests=[SAME, SAME, OTHER])
    assert names(verdicts)[2] == "wrong_result"
    assert health.title(verdicts[2]) == "rank 2 (host h0, cuda:2, GPU-2, 0000:02:00.0)"


def test_the_digest_is_of_the_bytes_in_the_order_of_the_axes() -> None:
    c = torch.arange(12, dtype=torch.float32).reshape(1, 3, 4)
    expected = hashlib.sha256(c.numpy().tobytes()).hexdigest()
    assert digest(c) == expected
    assert digest(c.transpose(1, 2).contiguous().transpose(1, 2)) == expected  # stored otherwise, the same numbers
    assert digest(c.to(torch.bfloat16)) != expected


# --- the record and the screen -----------------------------------------------------------------------------------------


def test_a_real_cell_has_a_verdict_and_fits_the_schema(world: World) -> None:
    config = Config(workload=Workload("tiny", 1, 64, 32, 16, DType.float64), split=Split.none, device=Device.cpu)
    config.measure, config.threads, config.health.check = Measure(min_samples=4, max_samples=4), 1, True
    record = Cell(world, config, lambda event, detail: None).outcome()
    assert record["status"] == "ok", record["reason"]
    validate(record)
    assert names(record["health"]) == ["unknown"]
    assert record["links"] == []
    plain = Cell(
        world, Config(config.workload, config.measure, device=Device.cpu), lambda event, detail: None
    ).outcome()
    assert plain["health"] is None


def test_differing_bits_take_the_result_away() -> None:
    record = told([1.0] * 3) | {"result": {"tflops": 3.0}}
    wrong = examined(record, Checkup([], [SAME, OTHER, SAME]), Config())
    assert (wrong["status"], wrong["result"]) == ("wrong", None)
    assert wrong["reason"].startswith("wrong result: rank 1 (host h0, cpu): ")
    well = examined(record, Checkup([], [SAME] * 3), Config())
    assert (well["status"], health.bad_ranks(well)) == ("ok", [])


def test_a_bad_rank_among_many_stands_first_and_has_its_uuid() -> None:
    verdicts = judged(told([1.0] * 29 + [2.0], gpu=True))
    lines = [line.plain for line in health_lines({"health": verdicts})]
    assert lines[1] == "health of 30 ranks: 29 ok, 1 bad"
    assert "  29  h3" in lines[3]
    assert lines[3].endswith("compute_slow")
    assert lines[4].strip() == "GPU-29"
    assert lines[-1] == "  and 14 more that are ok"
    assert health_lines({"health": None}) == []
