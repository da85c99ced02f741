"""Which ranks are in bad health, and why: the verdicts of experiment=health, from the record, link times and digests alone.

With split=none every rank does the same work, so equal devices take equal times and compute equal bits. Outliers are
found by the median and the median absolute deviation (MAD; 1.4826 MAD is the standard deviation of a normal
distribution), which a bad rank cannot move. Where two or half of the ranks leave no majority, the fastest is the measure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from distbench.config import Guard, Health
from distbench.stats import median
from distbench.telemetry import held_down

_MAD_TO_SIGMA = 1.4826
_STALL = 2.0
"""A sample so many times as long as the usual one is no noise of a healthy device."""
_FEWEST_STALLS = 2
_POWER = ("power_cap", "power_brake")

WRONG, POWER, CLOCK, SLOW, LATE, LINK = (
    "wrong_result",
    "power_limited",
    "clock_limited",
    "compute_slow",
    "late",
    "slow_link",
)
BAD = (WRONG, POWER, CLOCK, SLOW, LATE, LINK)
"""The bad verdicts, the gravest first: where there are several reasons, the first of them is the verdict."""
UNKNOWN, OK = "unknown", "ok"


@dataclass
class Verdict:
    """What is known of one rank. verdict: of the gravest reason; unknown where nothing could be compared."""

    rank: int
    host: str
    device: str
    device_name: str | None
    device_uuid: str | None
    pci: str | None
    verdict: str = OK
    reasons: list[dict[str, str]] = field(default_factory=list)
    """name (of a verdict) and text."""
    numbers: dict[str, Any] = field(default_factory=dict)

    def found(self, name: str, text: str) -> None:
        """One more reason."""
        self.reasons.append({"name": name, "text": text})
        names = [reason["name"] for reason in self.reasons]
        self.verdict = next((bad for bad in BAD if bad in names), UNKNOWN if UNKNOWN in names else OK)


@dataclass(frozen=True)
class Facts:
    """The record of a cell that was measured, taken apart."""

    record: dict[str, Any]
    limits: Health
    guard: Guard

    @property
    def ranks(self) -> list[dict[str, Any]]:
        return list(self.record["world"]["ranks"])

    def times_s(self, rank: int) -> list[float]:
        """Of a rank's product, per sample. Of ranks that take turns on one GPU the whole sample: their events may or may
        not hold another's turn.
        """
        uuids = [told["device_uuid"] for told in self.ranks]
        samples = self.record["samples"]
        shares = uuids[rank] is not None and uuids.count(uuids[rank]) > 1
        times: list[float] = (samples["rank_s"] if shares else samples["phases_s"]["gemm"])[rank]
        return times

    def gemm_s(self, rank: int) -> float:
        """The median of those."""
        return median(self.times_s(rank))

    def cpu(self, rank: int) -> dict[str, Any]:
        told: dict[str, Any] = self.record["telemetry"][rank]["cpu"]
        return told

    def gpu(self, rank: int) -> dict[str, Any] | None:
        told: dict[str, Any] | None = self.record["telemetry"][rank]["gpu"]
        return told

    def cores(self, rank: int) -> float:
        """A rank's share of the cores in its mask, each divided among this run's ranks that may run on it."""
        own = self.ranks[rank]
        users = Counter(core for other in self.ranks if other["host"] == own["host"] for core in other["affinity"])
        return sum(1 / users[core] for core in own["affinity"])

    def kind(self, rank: int) -> str:
        """What a rank's device is: equal kinds should be equally fast."""
        return str(self.ranks[rank]["device_name"] or self.cpu(rank)["model"])

    def arithmetic(self, rank: int) -> tuple[str, int, int]:
        """What decides a result's bits beside A and B: on the CPU the library cuts the work by threads (and by the cores
        that it sees); cuBLAS promises equal bits on GPUs of one architecture and as many multiprocessors (cuBLAS library,
        "Results Reproducibility").
        """
        told = self.ranks[rank]
        if told["device_name"]:
            return self.kind(rank), 0, 0
        return self.kind(rank), told["threads"], len(told["affinity"])


def judged(
    record: dict[str, Any], links: list[dict[str, Any]], digests: list[str], limits: Health, guard: Guard
) -> list[dict[str, Any]]:
    """The record's `health`: a verdict per rank.

    record: of a cell with split=none that was measured, with its telemetry. links: see links.measured. digests: a hash of
    every rank's C.
    """
    facts = Facts(record, limits, guard)
    verdicts = _blank(record)
    _digests(facts, verdicts, digests)
    groups: dict[str, list[int]] = defaultdict(list)
    for verdict in verdicts:
        groups[facts.kind(verdict.rank)].append(verdict.rank)
    for group in groups.values():
        _speed(facts, verdicts, group)
        _stalls(facts, verdicts, group)
    _starts(facts, verdicts)
    _links(limits, verdicts, links)
    return [vars(verdict) for verdict in verdicts]


def of_wrong(record: dict[str, Any], verification: dict[str, Any]) -> list[dict[str, Any]]:
    """The verdicts where the verification ended the cell before anything was timed."""
    verdicts = _blank(record)
    for verdict in verdicts:
        if verdict.rank in verification.get("wrong_ranks", []):
            verdict.found(WRONG, "its product is wrong by the verification")
        else:
            verdict.found(UNKNOWN, "nothing was timed: another rank's product is wrong")
    return [vars(verdict) for verdict in verdicts]


def wrong_bits(verdicts: list[dict[str, Any]]) -> str | None:
    """Why results that passed the verification are wrong all the same; None where their bits agree."""
    wrong = [item for item in verdicts if item["verdict"] == WRONG]
    return "; ".join(f"{title(item)}: {_text(item, WRONG)}" for item in wrong[:4]) or None


def bad_ranks(record: dict[str, Any]) -> list[str]:
    """A line per bad rank of a record: which, where, and why."""
    verdicts = record.get("health") or []
    return [
        f"{title(item)} is in bad health: {item['verdict']}, {_text(item, item['verdict'])}"
        for item in verdicts
        if item["verdict"] in BAD
    ]


def title(verdict: dict[str, Any]) -> str:
    """A rank with all that finds its device: host, device, UUID and PCI id where it has them."""
    words = [f"host {verdict['host']}", verdict["device"], verdict["device_uuid"], verdict["pci"]]
    return f"rank {verdict['rank']} ({', '.join(str(word) for word in words if word)})"


def outliers(values: list[float], least: float, deviations: float) -> list[bool]:
    """Which of three values or more lie above the median by more than `least` (in their unit) and so many deviations."""
    middle = median(values)
    spread = _MAD_TO_SIGMA * median([abs(value - middle) for value in values])
    return [value - middle > max(least, deviations * spread) for value in values]


def _blank(record: dict[str, Any]) -> list[Verdict]:
    named = ("rank", "host", "device", "device_name", "device_uuid", "pci")
    return [Verdict(**{key: rank.get(key) for key in named}) for rank in record["world"]["ranks"]]


def _text(verdict: dict[str, Any], name: str) -> str:
    return str(next(reason["text"] for reason in verdict["reasons"] if reason["name"] == name))


# --- results ---------------------------------------------------------------------------------------------------------


def _digests(facts: Facts, verdicts: list[Verdict], digests: list[str]) -> None:
    """Equal devices must compute equal bits; where most agree, the others are wrong."""
    groups: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for verdict, digest in zip(verdicts, digests, strict=True):
        verdict.numbers["digest"] = digest
        groups[facts.arithmetic(verdict.rank)].append(verdict.rank)
    for group in groups.values():
        counts = Counter(digests[rank] for rank in group)
        for rank in group:
            verdicts[rank].numbers["compared_with"] = len(group) - 1
        if len(counts) < 2:
            continue
        (most, count), (_, next_count) = counts.most_common(2)
        for rank in group:
            if count == next_count:
                told = f"ranks {', '.join(map(str, group))}"
                verdicts[rank].found(
                    WRONG, f"the results of {told} differ in their bits, and no majority tells whose is right"
                )
            elif digests[rank] != most:
                verdicts[rank].found(WRONG, f"its result differs in its bits from that of {count} equal devices")


# --- speed -----------------------------------------------------------------------------------------------------------


def _speed(facts: Facts, verdicts: list[Verdict], group: list[int]) -> None:
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
        _against_ceiling(facts, verdicts[group[0]])
        return
    apart = outliers(times, limits.slow * middle, limits.deviations) if len(group) > 2 else [False] * len(group)
    split = [time_s > (1 + limits.spread) * fastest for time_s in times]
    slow = [rank for rank, *told in zip(group, apart, split, strict=True) if any(told)]
    peers = [rank for rank in group if rank not in slow]
    for rank, time_s, is_apart in zip(group, times, apart, strict=True):
        if rank not in slow:
            continue
        if is_apart:
            told = f"its product takes {time_s / middle - 1:.0%} longer than the median of {len(group)} equal devices"
        else:
            few = "of two ranks the slower is named" if len(group) == 2 else "no majority tells what is normal"
            told = f"its product takes {time_s / fastest - 1:.0%} longer than the fastest's ({few})"
        name, causes = _causes(facts, rank, peers)
        why = "; ".join(causes) or "its clocks, its load and its cores do not tell why"
        verdicts[rank].found(name, f"{told}: {why}")


def _against_ceiling(facts: Facts, verdict: Verdict) -> None:
    """A device that is the only one of its kind."""
    record = facts.record
    ceiling = record.get("ceiling")
    if not ceiling or not ceiling["gemm_tflops"]:
        alone = "there is no second device of its kind, and no ceiling of this machine is known"
        verdict.found(UNKNOWN, f"{alone}: start more ranks, or measure one with workload=ceilings")
        return
    flop = record["work"]["flop"] / len(facts.ranks)  # split=none: every rank does as much
    share = flop / facts.gemm_s(verdict.rank) / 1e12 / (ceiling["gemm_tflops"] / len(facts.ranks))
    verdict.numbers["ceiling_share"] = share
    if share < facts.limits.ceiling:
        causes = _causes(facts, verdict.rank, [])
        why = "; ".join(causes[1]) or "its clocks, its load and its cores do not tell why"
        text = f"it reaches {share:.0%} of what was measured here before (workload=ceilings, {ceiling['time']}): {why}"
        verdict.found(causes[0], text)


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


def _stalls(facts: Facts, verdicts: list[Verdict], group: list[int]) -> None:
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


# --- starts ----------------------------------------------------------------------------------------------------------


def _starts(facts: Facts, verdicts: list[Verdict]) -> None:
    """How long after the first rank each one starts, and how often a start was too late for its sample to count."""
    samples, limits = facts.record["samples"], facts.limits
    if len(verdicts) < 2:
        return
    offsets = [median(starts) for starts in samples["start_s"]]
    taken = len(samples["span_s"]) + len(samples["dropped_span_s"])
    missed = [count / taken for count in samples["late_starts"]]
    span_s = median(samples["span_s"])
    least_s = limits.late * span_s
    apart = outliers(offsets, least_s, limits.deviations) if len(offsets) > 2 else [o > least_s for o in offsets]
    for verdict, offset_s, share, is_apart in zip(verdicts, offsets, missed, apart, strict=True):
        verdict.numbers |= {"start_s": offset_s, "late_share": share}
        others = median([other for rank, other in enumerate(missed) if rank != verdict.rank])
        if is_apart:
            verdict.found(LATE, f"it starts {offset_s:.3g} s after the first, {offset_s / span_s:.0%} of a sample")
        elif share > limits.late_starts and share > 2 * others:
            verdict.found(LATE, f"it missed the start of {share:.0%} of the samples, the others of {others:.0%}")


# --- links -----------------------------------------------------------------------------------------------------------


def _links(limits: Health, verdicts: list[Verdict], links: list[dict[str, Any]]) -> None:
    """A rank is slow by its best link: a slow partner spoils one of them, its own slowness all.

    Links within a host and between hosts are compared apart.
    """
    for same_host in (True, False):
        best: dict[int, dict[str, Any]] = {}
        for link in (link for link in links if link["same_host"] is same_host):
            for rank in link["ranks"]:
                if rank not in best or link["time_s"] < best[rank]["time_s"]:
                    best[rank] = link
        key = "link_gb_per_s" if same_host else "host_link_gb_per_s"
        for rank, link in best.items():
            verdicts[rank].numbers[key] = link["gb_per_s"]
        if len(best) < 3:
            continue  # one link: nothing to compare it with
        times = [best[rank]["time_s"] for rank in best]
        middle = median(times)
        for rank, is_slow in zip(best, outliers(times, limits.link * middle, limits.deviations), strict=True):
            if is_slow:
                where = "within the host" if same_host else "to other hosts"
                usual = best[rank]["bytes"] / middle / 1e9
                text = f"its best link {where} carries {best[rank]['gb_per_s']:.3g} GB/s, the median rank's {usual:.3g}"
                verdicts[rank].found(LINK, text)
