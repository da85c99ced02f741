"""What the machine did meanwhile: other work, quotas, heat, errors."""

from __future__ import annotations

from collections.abc import Iterator

from distbench.guards.case import Case, Unknown, Warned
from distbench.telemetry import held_down


def busy(case: Case) -> Iterator[Warned]:
    """Others' work on the ranks' cores. A GPU's rank needs one core: there only what leaves it none counts."""
    unknown = None
    worst: tuple[float, int] | None = None
    for rank, told in enumerate(case.told()):
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


def stolen(case: Case) -> Iterator[Warned]:
    shares = {rank: told["cpu"]["steal_share"] for rank, told in enumerate(case.told())}
    known = {rank: share for rank, share in shares.items() if share is not None}
    if known:
        worst = max(known, key=lambda rank: known[rank])
        if known[worst] > case.limits.steal:
            text = f"the hypervisor took {known[worst]:.1%} of the time of rank {worst}'s cores for other machines"
            yield Warned("stolen", known[worst], case.limits.steal, text)
            return
    if len(known) < len(shares):
        rank = next(rank for rank, share in shares.items() if share is None)
        raise Unknown(f"rank {rank}: {case.told()[rank]['cpu']['reasons']['steal_share']}")


def throttled(case: Case) -> Iterator[Warned]:
    limit = case.limits.throttled
    for rank, told in enumerate(case.told()):
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


def ecc_errors(case: Case) -> Iterator[Warned]:
    for rank, gpu in case.gpus():
        for kind in ("uncorrected", "corrected"):
            count = gpu[f"ecc_{kind}"]
            if count:
                text = f"rank {rank}'s device counted {count} {kind} ECC errors while measuring"
                yield Warned("ecc_errors", float(count), 0.0, text)


def shared_gpu(case: Case) -> Iterator[Warned]:
    for rank, gpu in case.gpus():
        if gpu["other_processes"]:
            count = len(gpu["other_processes"])
            text = f"{count} other process{'es' * (count > 1)} on rank {rank}'s device ({case.ranks[rank]['device']})"
            yield Warned("shared_gpu", float(count), 0.0, text)


def state_unknown(case: Case) -> Iterator[Warned]:
    """A GPU whose clock nobody saw, or that says 0: its rate stands without its conditions."""
    if not case.on_gpu:
        return
    for rank, told in enumerate(case.told()):
        gpu = told["gpu"]
        if not case.devices_of(rank):
            continue
        if gpu is None or not (gpu["sm_clock_mhz"] or {}).get("median"):
            reason = told["gpu_reason"] or "NVML tells no clock"
            yield Warned(
                "state_unknown", None, None, f"clock, power and heat of rank {rank}'s device unknown: {reason}"
            )
            return  # once: it is the same on the others as a rule, and the record has every rank's


def _sharing(case: Case, rank: int) -> int:
    """Ranks of this host that share cores with this one, itself among them."""
    own = case.ranks[rank]
    mask = set(own["affinity"])
    return sum(1 for other in case.ranks if other["host"] == own["host"] and mask & set(other["affinity"]))
