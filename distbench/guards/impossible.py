"""What no machine does: the timing is at fault, and the result is `wrong`."""

from __future__ import annotations

from collections.abc import Iterator

from distbench.guards.case import Case, Unknown, Warned
from distbench.stats import median

_EVENT_SLACK_S = 20e-6  # the resolution of device events and of the host's clock around them
_UPLOADS: dict[str, tuple[tuple[str, str], ...]] = {"none": (), "b": (("k", "n"),), "ab": (("m", "k"), ("k", "n"))}
_NO_PCIE = ("GH200", "GB200", "GB300")  # the host hangs on NVLink-C2C there


def above_peak(case: Case) -> Iterator[Warned]:
    if case.peak_tflops is None:
        raise Unknown("no datasheet peak is known for these devices and this dtype")
    share = max(case.result["gemm_tflops"] or 0.0, case.result["tflops"]) / case.peak_tflops
    if share > case.limits.peak_ratio:
        text = f"the rate is {share:.2f} times the devices' dense peak of {case.peak_tflops:g} TFLOP/s"
        yield Warned("above_peak", share, case.limits.peak_ratio, text, impossible=True)


def copy_above_link(case: Case) -> Iterator[Warned]:
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


def span_below_device_time(case: Case) -> Iterator[Warned]:
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
