"""Whether to believe a result: named warnings on a record, each with its value and its threshold.

A guard is one function of a `Case`; it returns warnings, none where all is well, and raises `Unknown` where it cannot
tell: what was not checked is written down too, for an unknown is not healthy. An `impossible` warning makes the result
`wrong`: no machine does that, so it is the timing that is at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, pvariance
from typing import Any

from distbench.config import DType, Guard
from distbench.dtypes import FACTS
from distbench.stats import median, median_interval
from distbench.telemetry import held_down

_EVENT_SLACK_S = 20e-6  # the resolution of device events and of the host's clock around them
_DRIFT_SAMPLES = 18  # six in each third: the fewest that have an interval
_MODES_SAMPLES = 32
_MODE_SHARE = 0.15  # of the samples, the least that is a mode and not a few outliers
_UPLOADS: dict[str, tuple[tuple[str, str], ...]] = {"none": (), "b": (("k", "n"),), "ab": (("m", "k"), ("k", "n"))}
_NO_PCIE = ("GH200", "GB200", "GB300")  # the host hangs on NVLink-C2C there


@dataclass(frozen=True)
class Warned:
    """One doubt about a result. value and threshold are in the unit that `text` names; None where there is no number."""

    name: str
    value: float | None
    threshold: float | None
    text: str
    impossible: bool = False


@dataclass(frozen=True)
class Case:
    """A result with all that is known about how it came about; every part as it stands in the record."""

    config: dict[str, Any]
    ranks: list[dict[str, Any]]
    samples: dict[str, Any]
    result: dict[str, Any]
    telemetry: list[dict[str, Any]] | None
    peak_tflops: float | None
    """Dense datasheet peak of the distinct devices, for the dtype; None where unknown."""
    limits: Guard
    itemsize: int
    """Bytes of an element."""

    @property
    def on_gpu(self) -> bool:
        return bool(self.config["device"] == "cuda")

    def devices_of(self, rank: int) -> int:
        """Distinct devices that a rank drives; 0 where it stands aside (drive=loop and threads)."""
        parts = self.ranks[rank].get("parts")
        return 1 if parts is None else len({part["device_uuid"] or part["part"] for part in parts})

    def gpus(self) -> list[tuple[int, dict[str, Any]]]:
        """(rank, telemetry) of the ranks whose GPU told its state."""
        return [(rank, told["gpu"]) for rank, told in enumerate(self.telemetry or []) if told["gpu"] is not None]


class Unknown(Exception):
    """A guard cannot tell; the message says what is missing."""


Check = Callable[[Case], Iterator[Warned]]


def judged(record: dict[str, Any], peak_tflops: float | None, limits: Guard) -> dict[str, Any]:
    """The record of a cell that went well, with its `warnings` and what was `unchecked`; the impossible warnings first.

    Where a warning says that the result is impossible: status wrong, and no result.
    """
    case = Case(
        **{name: record[name] for name in ("config", "samples", "result", "telemetry")},
        ranks=record["world"]["ranks"],
        peak_tflops=peak_tflops,
        limits=limits,
        itemsize=FACTS[DType(record["config"]["workload"]["dtype"])].itemsize,
    )
    warned: list[Warned] = []
    unchecked = []
    for name, guard in GUARDS.items():
        try:
            warned += guard(case)
        except Unknown as unknown:
            unchecked.append({"name": name, "reason": str(unknown)})
    warned.sort(key=lambda warning: not warning.impossible)
    told = record | {"warnings": [vars(warning) for warning in warned], "unchecked": unchecked}
    if impossible := [warning.text for warning in warned if warning.impossible]:
        told |= {"status": "wrong", "reason": f"impossible: {'; '.join(impossible)}", "result": None}
    return told


# --- impossible ----------------------------------------------------------------------------------------------------------


def _above_peak(case: Case) -> Iterator[Warned]:
    if case.peak_tflops is None:
        raise Unknown("no datasheet peak is known for these devices and this dtype")
    share = max(case.result["gemm_tflops"] or 0.0, case.result["tflops"]) / case.peak_tflops
    if share > case.limits.peak_ratio:
        text = f"the rate is {share:.2f} times the devices' dense peak of {case.peak_tflops:g} TFLOP/s"
        yield Warned("above_peak", share, case.limits.peak_ratio, text, impossible=True)


def _copy_above_link(case: Case) -> Iterator[Warned]:
    copies = [("h2d", _UPLOADS[case.config["workload"]["upload"]])]
    if case.config["path"] == "pinned":
        copies.append(("collect", (("m", "n"),)))
    copies = [(phase, blocks) for phase, blocks in copies if blocks and phase in case.samples["phases_s"]]
    if not copies:
        return
    if not case.on_gpu:
        raise Unknown("copies on the CPU cross no link")
    links = {rank: gpu["link_gb_per_s"] for rank, gpu in case.gpus()}
    for rank, told in enumerate(case.ranks):
        if not (devices := case.devices_of(rank)):
            continue
        link = links.get(rank)
        if not link or any(name in (told["device_name"] or "") for name in _NO_PCIE):
            raise Unknown(f"the link of rank {rank}'s device is unknown")
        for phase, blocks in copies:
            shard = told["shard"]
            moved = sum(shard["batch"] * shard[rows] * shard[columns] for rows, columns in blocks) * case.itemsize
            seconds = median(case.samples["phases_s"][phase][rank])
            share = moved / seconds / 1e9 / (link * devices) if seconds > 0 else float("inf") if moved else 0.0
            if share > case.limits.link_ratio:
                text = f"rank {rank} copied {moved} bytes in {seconds:.3g} s: more than its link's {link * devices:.3g} GB/s"
                value = share if seconds > 0 else None
                yield Warned("copy_above_link", value, case.limits.link_ratio, text, impossible=True)


def _span_below_device_time(case: Case) -> Iterator[Warned]:
    phases = case.samples["phases_s"]
    worst, worst_rank = 0.0, 0
    for rank, times in enumerate(case.samples["rank_s"]):
        if not case.devices_of(rank):
            continue
        # A phase is told by the device where it lasts longest: of several devices' phases the sum is nobody's time.
        overlap = case.samples.get("phases_overlap") or len(case.ranks[rank].get("parts") or [0]) > 1
        for index, whole_s in enumerate(times):
            parts = [per_rank[rank][index] for per_rank in phases.values()]
            device_s = max(parts) if overlap else sum(parts)
            share = (device_s - _EVENT_SLACK_S) / whole_s if whole_s > 0 else float("inf")
            if share > worst:
                worst, worst_rank = share, rank
    if worst > case.limits.device_time_ratio:
        text = f"rank {worst_rank}'s device was busy for {worst:.2f} times as long as a sample's span"
        value = None if worst == float("inf") else worst
        yield Warned("span_below_device_time", value, case.limits.device_time_ratio, text, impossible=True)


# --- the samples ----------------------------------------------------------------------------------------------------------


def _device_idle(case: Case) -> Iterator[Warned]:
    """A GPU's span of one short product holds a launch, the wake of the card and a synchronise: true, and not its rate."""
    phases, config = case.samples["phases_s"], case.config
    if not case.on_gpu or list(phases) != ["gemm"] or config["collect"] != "none" or case.samples["mode"]["inner"] > 1:
        return
    if any(case.devices_of(rank) > 1 for rank in range(len(case.ranks))):
        return  # the phases of several devices tell nobody's time
    busy_s = [max(of_ranks) for of_ranks in zip(*phases["gemm"], strict=True)]
    idle_s = median([span - busy for span, busy in zip(case.samples["span_s"], busy_s, strict=True)])
    share = idle_s / case.result["time_s"]
    if share > case.limits.idle:
        text = f"the GPU had no work for {share:.1%} of a span ({idle_s * 1e6:.0f} µs of starting and waiting)"
        yield Warned("device_idle", share, case.limits.idle, f"{text}: measure.inner=auto gives the product's own rate")


def _drift(case: Case) -> Iterator[Warned]:
    spans = case.samples["span_s"]
    if len(spans) < _DRIFT_SAMPLES:
        raise Unknown(f"{len(spans)} samples: first and last can be compared from {_DRIFT_SAMPLES} on")
    third = len(spans) // 3
    first, last = spans[:third], spans[-third:]
    change = median(last) / median(first) - 1
    (low, high), (low_last, high_last) = (median_interval(part) or (0.0, float("inf")) for part in (first, last))
    apart = low_last > high or high_last < low
    if abs(change) > case.limits.drift and apart:
        slower = "slower" if change > 0 else "faster"
        text = f"the last third of the samples is {abs(change):.1%} {slower} than the first: not a steady state"
        yield Warned("drift", change, case.limits.drift, text)


def _bimodal(case: Case) -> Iterator[Warned]:
    spans = case.samples["span_s"]
    if len(spans) < _MODES_SAMPLES:
        raise Unknown(f"{len(spans)} samples: two groups can be told from {_MODES_SAMPLES} on")
    distance, low, high = two_groups(spans)
    gap = high / low - 1
    # One uniform distribution, cut in two, is 3.46 apart, with a scatter that falls with the root of the count: this
    # takes at most 1 in 100 sample sets of it, and fewer of a normal, log-normal or exponential one, for two groups.
    if distance >= 3.5 + 9 / sqrt(len(spans)) and gap > case.limits.mode_gap:
        text = f"the samples fall into two groups, {gap:.1%} apart: a median of both is neither"
        yield Warned("bimodal", gap, case.limits.mode_gap, text)


def _unconverged(case: Case) -> Iterator[Warned]:
    if case.result["converged"]:
        return
    target, interval = case.config["measure"]["target_rel_ci"], case.result["time_ci_s"]
    half = None if interval is None else (interval[1] - interval[0]) / 2 / case.result["time_s"]
    stop = case.result["stopped_by"]
    text = f"not converged: measure.{stop} came before ± {target:.2g} of the median was reached"
    yield Warned("unconverged", half, target, text)


def two_groups(values: list[float]) -> tuple[float, float, float]:
    """(distance, median of the lower, median of the upper) of the best split in two, neither below 15 % of the values.

    The split has the largest variance between the groups (Otsu, 1979); the distance of the means is in units of the
    groups' own spread, √2·|μ₁ − μ₂| / √(σ₁² + σ₂²) (Ashman, Bird and Zepf, 1994).
    """
    ordered = sorted(values)
    count, total = len(ordered), sum(ordered)
    least = max(2, round(_MODE_SHARE * count))
    below = sum(ordered[: least - 1])
    best = (-1.0, least)
    for size in range(least, count - least + 1):
        below += ordered[size - 1]
        apart = (total - below) / (count - size) - below / size
        best = max(best, (size * (count - size) * apart**2, size))
    lower, upper = ordered[: best[1]], ordered[best[1] :]
    spread = sqrt(pvariance(lower) + pvariance(upper))
    apart = fmean(upper) - fmean(lower)
    distance = sqrt(2) * apart / spread if spread > 0 else float("inf") if apart > 0 else 0.0
    return distance, median(lower), median(upper)


# --- the ranks ------------------------------------------------------------------------------------------------------------


def _unequal_threads(case: Case) -> Iterator[Warned]:
    threads = [rank["threads"] for rank in case.ranks]
    if min(threads) != max(threads):
        text = f"the ranks compute with {min(threads)} to {max(threads)} threads: the slowest decides the span"
        yield Warned("unequal_threads", float(min(threads)), float(max(threads)), text)


def _unequal_devices(case: Case) -> Iterator[Warned]:
    names = {rank["device_name"] for rank in case.ranks if rank["device_name"]}
    if not names:
        names = {told["cpu"]["model"] for told in case.telemetry or []}
    if len(names) > 1:
        text = f"the ranks compute on different models: {', '.join(sorted(names))}"
        yield Warned("unequal_devices", float(len(names)), 1.0, text)


def _unequal_clocks(case: Case) -> Iterator[Warned]:
    if len(case.ranks) < 2:
        return
    clocks = {}
    for rank, told in enumerate(_told(case)):
        clock = told["gpu"] and told["gpu"]["sm_clock_mhz"] if case.on_gpu else told["cpu"]["clock_mhz"]
        if not clock or not clock["median"]:
            raise Unknown(f"the clock of rank {rank}'s device is unknown")
        clocks[rank] = clock["median"]
    slowest = min(clocks, key=lambda rank: clocks[rank])
    behind = 1 - clocks[slowest] / max(clocks.values())
    if behind > case.limits.clock_spread:
        text = f"rank {slowest}'s clock is {clocks[slowest]:.0f} MHz, {behind:.1%} below the fastest rank's"
        yield Warned("unequal_clocks", behind, case.limits.clock_spread, text)


# --- the machine ----------------------------------------------------------------------------------------------------------


def _busy(case: Case) -> Iterator[Warned]:
    """Others' work on the ranks' cores. A GPU's rank needs one core: there only what leaves it none counts."""
    unknown = None
    worst: tuple[float, int] | None = None
    for rank, told in enumerate(_told(case)):
        cpu = told["cpu"]
        others = cpu["others_cores"]
        if others is None:
            unknown = unknown or f"rank {rank}: {cpu['reasons']['others_cores']}"
            continue
        share = others / cpu["cores"]
        if case.on_gpu and cpu["cores"] - others >= _sharing(case, rank):
            share = 0.0
        if worst is None or share > worst[0]:
            worst = (share, rank)
    if worst is not None and worst[0] > case.limits.other_load:
        share, rank = worst
        text = f"other work took {share:.1%} of rank {rank}'s cores ({case.ranks[rank]['host']})"
        yield Warned("busy", share, case.limits.other_load, text)
    elif unknown:
        raise Unknown(unknown)


def _stolen(case: Case) -> Iterator[Warned]:
    shares = {rank: told["cpu"]["steal_share"] for rank, told in enumerate(_told(case))}
    known = {rank: share for rank, share in shares.items() if share is not None}
    if known:
        worst = max(known, key=lambda rank: known[rank])
        if known[worst] > case.limits.steal:
            text = f"the hypervisor took {known[worst]:.1%} of the time of rank {worst}'s cores for other machines"
            yield Warned("stolen", known[worst], case.limits.steal, text)
            return
    if len(known) < len(shares):
        rank = next(rank for rank, share in shares.items() if share is None)
        raise Unknown(f"rank {rank}: {_told(case)[rank]['cpu']['reasons']['steal_share']}")


def _throttled(case: Case) -> Iterator[Warned]:
    limit = case.limits.throttled
    for rank, told in enumerate(_told(case)):
        share = told["cpu"]["throttled_share"]
        if share is not None and share > limit:
            quota = told["cpu"]["quota_cores"]
            text = f"the cgroup's quota of {quota:g} cores held rank {rank} back in {share:.0%} of its periods"
            yield Warned("throttled", share, limit, text)
    for rank, gpu in case.gpus():
        for reason, share in held_down(gpu).items():
            if share > limit:
                text = f"rank {rank}'s clock was held down by {reason.replace('_', ' ')} for {share:.0%} of the time"
                yield Warned("throttled", share, limit, text)


def _ecc_errors(case: Case) -> Iterator[Warned]:
    for rank, gpu in case.gpus():
        for kind in ("uncorrected", "corrected"):
            count = gpu[f"ecc_{kind}"]
            if count:
                text = f"rank {rank}'s device counted {count} {kind} ECC errors while measuring"
                yield Warned("ecc_errors", float(count), 0.0, text)


def _shared_gpu(case: Case) -> Iterator[Warned]:
    for rank, gpu in case.gpus():
        if gpu["other_processes"]:
            count = len(gpu["other_processes"])
            text = f"{count} other process{'es' * (count > 1)} on rank {rank}'s device ({case.ranks[rank]['device']})"
            yield Warned("shared_gpu", float(count), 0.0, text)


def _state_unknown(case: Case) -> Iterator[Warned]:
    """A GPU whose clock nobody saw, or that says 0: its rate stands without its conditions."""
    if not case.on_gpu:
        return
    for rank, told in enumerate(_told(case)):
        gpu = told["gpu"]
        if gpu is None or not (gpu["sm_clock_mhz"] or {}).get("median"):
            reason = told["gpu_reason"] or "NVML tells no clock"
            yield Warned(
                "state_unknown", None, None, f"clock, power and heat of rank {rank}'s device unknown: {reason}"
            )
            return  # once: it is the same on the others as a rule, and the record has every rank's


GUARDS: dict[str, Check] = {
    "above_peak": _above_peak,
    "copy_above_link": _copy_above_link,
    "span_below_device_time": _span_below_device_time,
    "device_idle": _device_idle,
    "drift": _drift,
    "bimodal": _bimodal,
    "unconverged": _unconverged,
    "unequal_threads": _unequal_threads,
    "unequal_devices": _unequal_devices,
    "unequal_clocks": _unequal_clocks,
    "busy": _busy,
    "stolen": _stolen,
    "throttled": _throttled,
    "ecc_errors": _ecc_errors,
    "shared_gpu": _shared_gpu,
    "state_unknown": _state_unknown,
}


def _told(case: Case) -> list[dict[str, Any]]:
    if case.telemetry is None:
        raise Unknown("no telemetry")
    return case.telemetry


def _sharing(case: Case, rank: int) -> int:
    """Ranks of this host that share cores with this one, itself among them."""
    own = case.ranks[rank]
    mask = set(own["affinity"])
    return sum(1 for other in case.ranks if other["host"] == own["host"] and mask & set(other["affinity"]))
