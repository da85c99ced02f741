"""Which ranks compute slowly or stand still now and then, among devices of one kind, and what their state says about it."""

from __future__ import annotations

from typing import Any

from distbench.health.facts import CLOCK, POWER, SLOW, UNKNOWN, Facts, Verdict, outliers
from distbench.stats import median
from distbench.telemetry import held_down

_STALL = 2.0
"""A sample so many times as long as the usual one is no noise of a healthy device."""
_FEWEST_STALLS = 2
_POWER = ("power_cap", "power_brake")


def judge_speed(facts: Facts, verdicts: list[Verdict], group: list[int]) -> None:
    """The product's time, among devices of one kind."""
    limits = facts.limits
    times = [facts.gemm_s(rank) for rank in group]
    middle, fastest = median(times), min(times)
    for rank, time_s in zip(group, times, strict=True):
        verdicts[rank].numbers |= {
            "gemm_s": time_s,
            "gemm_ratio": time_s / middle if middle > 0 and len(group) > 1 else None,
        }
    if len(group) == 1:
        (alone,) = group
        if not _against_ceiling(facts, verdicts[alone]):
            why = "there is no second device of its kind, and no ceiling of this machine is known"
            verdicts[alone].found(UNKNOWN, f"{why}: start more ranks, or measure one with workload=ceilings")
        return
    apart = outliers(times, limits.slow * middle, limits.deviations) if len(group) > 2 else [False] * len(group)
    split = [time_s > (1 + limits.spread) * fastest for time_s in times]
    slow = [rank for rank, *told in zip(group, apart, split, strict=True) if any(told)]
    peers = [rank for rank in group if rank not in slow]
    for rank, time_s, is_apart in zip(group, times, apart, strict=True):
        if rank not in slow:
            _against_ceiling(facts, verdicts[rank])  # all may be slow alike
            continue
        if is_apart:
            told = f"its product takes {time_s / middle - 1:.0%} longer than the median of {len(group)} equal devices"
        else:
            few = "of two ranks the slower is named" if len(group) == 2 else "no majority tells what is normal"
            told = f"its product takes {time_s / fastest - 1:.0%} longer than the fastest's ({few})"
        name, causes = _causes(facts, rank, peers)
        why = "; ".join(causes) or "its clocks, its load and its cores do not tell why"
        verdicts[rank].found(name, f"{told}: {why}")


def _against_ceiling(facts: Facts, verdict: Verdict) -> bool:
    """A device and what was measured on this machine before; False where nothing was."""
    record = facts.record
    ceiling = record.get("ceiling")
    if not ceiling or not ceiling["gemm_tflops"]:
        return False
    flop = record["work"]["flop"] / len(facts.ranks)  # split=none: every rank does as much
    share = flop / facts.gemm_s(verdict.rank) / 1e12 / (ceiling["gemm_tflops"] / len(facts.ranks))
    verdict.numbers["ceiling_share"] = share
    if share < facts.limits.ceiling:
        causes = _causes(facts, verdict.rank, [])
        why = "; ".join(causes[1]) or "its clocks, its load and its cores do not tell why"
        text = f"it reaches {share:.0%} of what was measured here before (workload=ceilings, {ceiling['time']}): {why}"
        verdict.found(causes[0], text)
    return True


def _causes(facts: Facts, rank: int, peers: list[int]) -> tuple[str, list[str]]:
    """(verdict, what the telemetry says) of a slow rank; peers: those of its kind that are not slow."""
    name = SLOW
    texts: list[str] = []
    gpu = facts.gpu(rank)
    if gpu is not None:
        name, texts = _gpu_causes(facts, gpu, [told for peer in peers if (told := facts.gpu(peer))])
    else:
        clock, normal = _clock(facts.cpu(rank)), [c for peer in peers if (c := _clock(facts.cpu(peer)))]
        if clock and normal and clock < (1 - facts.guard.clock_spread) * median(normal):
            name = CLOCK
            texts.append(f"its cores run at {clock:.0f} MHz, the others' at {median(normal):.0f}")
    return name, texts + _cpu_causes(facts, rank, peers)


def _gpu_causes(facts: Facts, gpu: dict[str, Any], peers: list[dict[str, Any]]) -> tuple[str, list[str]]:
    name, texts = SLOW, []
    clock = (gpu["sm_clock_mhz"] or {}).get("median")
    normal = [told["sm_clock_mhz"]["median"] for told in peers if told["sm_clock_mhz"]]
    is_behind = bool(clock and normal and clock < (1 - facts.guard.clock_spread) * median(normal))
    if is_behind:
        name = CLOCK
        texts.append(f"its SM clock is {clock:.0f} MHz, the others' {median(normal):.0f}")
    for reason, share in held_down(gpu).items():
        usual = median([held_down(told).get(reason, 0.0) for told in peers]) if peers else 0.0
        # At the power cap every healthy GPU may run: it is a cause where the others' clocks are higher, or are not capped.
        if share > facts.guard.throttled and (is_behind or share > usual + facts.guard.throttled):
            name = POWER if reason in _POWER or name == POWER else CLOCK
            texts.append(
                f"{reason.replace('_', ' ')} held its clock down for {share:.0%} of the time (others: {usual:.0%})"
            )
    if gpu["other_processes"]:
        texts.append(f"{len(gpu['other_processes'])} other processes are on it")
    if gpu["ecc_uncorrected"] or gpu["ecc_corrected"]:
        texts.append(f"{gpu['ecc_uncorrected'] or 0} uncorrected, {gpu['ecc_corrected'] or 0} corrected ECC errors")
    return name, texts


def _cpu_causes(facts: Facts, rank: int, peers: list[int]) -> list[str]:
    own, cpu, guard = facts.ranks[rank], facts.cpu(rank), facts.guard
    texts: list[str] = []
    if peers and not own["device_name"]:
        threads = median([facts.ranks[peer]["threads"] for peer in peers])
        if own["threads"] < threads:
            texts.append(f"it computes with {own['threads']} threads, the others with {threads:g}")
        cores, usual = facts.cores(rank), median([facts.cores(peer) for peer in peers])
        if cores < (1 - facts.limits.slow) * usual:
            texts.append(f"its share of the cores that it may run on is {cores:.3g}, the others' {usual:.3g}")
    if cpu["others_cores"] is not None and cpu["others_cores"] / cpu["cores"] > guard.other_load:
        texts.append(f"other work took {cpu['others_cores']:.1f} of its {cpu['cores']} cores")
    if cpu["steal_share"] is not None and cpu["steal_share"] > guard.steal:
        texts.append(f"the hypervisor took {cpu['steal_share']:.0%} of its cores' time")
    if cpu["throttled_share"] is not None and cpu["throttled_share"] > guard.throttled:
        texts.append(f"its cgroup's quota held it back in {cpu['throttled_share']:.0%} of the periods")
    return texts


def _clock(cpu: dict[str, Any]) -> float | None:
    return None if cpu["clock_mhz"] is None else float(cpu["clock_mhz"]["median"])


def judge_stalls(facts: Facts, verdicts: list[Verdict], group: list[int]) -> None:
    """Samples in which a rank stood still: the median does not see them."""
    usual = median([facts.gemm_s(rank) for rank in group])
    shares = []
    for rank in group:
        times = facts.times_s(rank)
        stalls = sum(1 for time_s in times if time_s > _STALL * usual)
        shares.append(stalls / len(times) if stalls >= _FEWEST_STALLS else 0.0)
        verdicts[rank].numbers["stall_share"] = stalls / len(times)
    for rank, share in zip(group, shares, strict=True):
        is_slow = any(reason["name"] in (POWER, CLOCK, SLOW) for reason in verdicts[rank].reasons)
        others = [other for r, other in zip(group, shares, strict=True) if r != rank]
        if not is_slow and others and share > facts.limits.stalls and share > 2 * median(others):
            longest = max(facts.times_s(rank))
            text = f"it stood still in {share:.0%} of the samples (up to {longest:.3g} s, usually {usual:.3g} s)"
            causes = _cpu_causes(facts, rank, [r for r in group if r != rank])
            why = "; ".join(causes) or "something stops its process or its device now and then"
            verdicts[rank].found(SLOW, f"{text}: {why}")
