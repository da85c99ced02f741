"""Which ranks are in bad health, and why: the verdicts of experiment=health, from the record, link times and digests alone.

With split=none every rank does the same work, so equal devices take equal times and compute equal bits. Outliers are
found by the median and the median absolute deviation (MAD; 1.4826 MAD is the standard deviation of a normal
distribution), which a bad rank cannot move. Where two or half of the ranks leave no majority, the fastest is the measure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from distbench.config import Guard, Health
from distbench.health.facts import BAD, LATE, LINK, UNKNOWN, WRONG, Facts, Verdict, outliers
from distbench.health.speed import judge_speed, judge_stalls
from distbench.stats import median


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
        if others := facts.sharing(verdict.rank):
            turns = f"it shares its GPU with {len(others)} more of the run's ranks (the first: rank {others[0]})"
            verdict.found(UNKNOWN, f"{turns}: its times are those of their turns; start one rank per GPU")
        else:
            groups[facts.kind(verdict.rank)].append(verdict.rank)
    for group in groups.values():
        judge_speed(facts, verdicts, group)
        judge_stalls(facts, verdicts, group)
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
