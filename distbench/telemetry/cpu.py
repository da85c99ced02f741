"""The state of the CPU: clocks, what else ran on the same cores, time stolen by a hypervisor, time a cgroup held back."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any

from distbench import cores

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_SHORTEST_S = 0.2  # 20 ticks of /proc/stat: below that its rounding is what one would see
_MOST_CLOCKS_READ = 8  # each is a file: enough to see a slow clock, cheap on a machine of 256 cores


class Cpu:
    """Reads the cores that a rank may use. `root` stands for / in tests that replay recorded files."""

    def __init__(self, mask: list[int], root: Path = Path("/")) -> None:
        self.mask, self.root = mask, root
        stride = max(1, len(mask) // _MOST_CLOCKS_READ)
        frequency = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
        # /proc/cpuinfo would wake every core of the machine, and shows a nominal clock in a virtual machine.
        self._clocks = [path for core in mask[::stride] if (path := root / frequency.format(core)).exists()]

    def clock_mhz(self) -> float | None:
        """Mean clock of the rank's cores; None where the kernel shows none."""
        told = [int(text) / 1e3 for path in self._clocks if (text := cores.read(path) or "").isdecimal()]
        return sum(told) / len(told) if told else None

    def counters(self) -> dict[str, Any]:
        """What only ever grows: read before and after, see `difference`."""
        return {
            "at_s": time.monotonic(),
            "own_s": time.process_time(),
            "preempted": resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
            **_core_times(cores.read(self.root / "proc/stat") or "", set(self.mask)),
            "throttled": _throttled(cores.cpu_cgroup_folders()),
        }


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What happened between two `counters`, averages over that time.

    busy_cores: work of anybody on the rank's cores (1.0: one core all the time); own_cores: this process's own;
    steal_share: of the time that those cores wanted to run; throttled_share: of the cgroup's periods in which its quota
    ran out. None with a reason (`reasons`) where the machine does not tell, or the time was too short to tell.
    """
    elapsed_s = after["at_s"] - before["at_s"]
    told: dict[str, Any] = {
        "elapsed_s": elapsed_s,
        "own_cores": (after["own_s"] - before["own_s"]) / elapsed_s if elapsed_s > 0 else None,
        "preempted": after["preempted"] - before["preempted"],
        "busy_cores": None,
        "steal_share": None,
        "throttled_share": None,
        "reasons": {},
    }
    reasons: dict[str, str] = told["reasons"]
    if after["busy_s"] is None or before["busy_s"] is None:
        reasons["busy_cores"] = reasons["steal_share"] = "/proc/stat does not name this rank's cores"
    elif elapsed_s < _SHORTEST_S:
        short = f"{elapsed_s:.2g} s of measuring is too short for the {_TICK_S * 1e3:g} ms ticks of /proc/stat"
        reasons["busy_cores"] = reasons["steal_share"] = short
    else:
        busy_s, steal_s = after["busy_s"] - before["busy_s"], after["steal_s"] - before["steal_s"]
        told["busy_cores"] = max(0.0, busy_s / elapsed_s)
        told["steal_share"] = steal_s / (busy_s + steal_s) if busy_s + steal_s > 0 else 0.0
    if before["throttled"] is None or after["throttled"] is None:
        reasons["throttled_share"] = "no cgroup with a CPU quota above this process"
    else:
        periods, throttled = (now - then for now, then in zip(after["throttled"], before["throttled"], strict=True))
        told["throttled_share"] = throttled / periods if periods > 0 else 0.0
    return told


def others_cores(ranks: list[dict[str, Any]], rank: int) -> float | None:
    """Cores' worth of work on this rank's cores that is no rank's of this run; None where any part is unknown.

    ranks: per rank host, mask, busy_cores, own_cores. A rank that shares some of these cores counts as if all of its
    work were done on them: what is left is never too high.
    """
    own = ranks[rank]
    if own["busy_cores"] is None:
        return None
    cores_here = set(own["mask"])
    sharing = [other for other in ranks if other["host"] == own["host"] and cores_here & set(other["mask"])]
    if any(other["own_cores"] is None for other in sharing):
        return None
    return max(0.0, float(own["busy_cores"] - sum(other["own_cores"] for other in sharing)))


def _core_times(stat: str, mask: set[int]) -> dict[str, float | None]:
    """Seconds that these cores were busy and were stolen, since boot (proc(5): user nice system idle iowait irq softirq
    steal; guest time is part of user)."""
    busy = steal = 0
    seen = 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in mask and len(fields) >= 8:
            user, nice, system, _idle, _iowait, irq, softirq, stolen = map(int, fields[:8])
            busy += user + nice + system + irq + softirq
            steal += stolen
            seen += 1
    if seen < len(mask):
        return {"busy_s": None, "steal_s": None}
    return {"busy_s": busy * _TICK_S, "steal_s": steal * _TICK_S}


def _throttled(folders: list[Path]) -> tuple[int, int] | None:
    """(periods, periods in which the quota ran out) of the nearest cgroup that has a quota; None: none has."""
    for folder in folders:
        quota = cores.read(folder / "cpu.max") or cores.read(folder / "cpu.cfs_quota_us") or "max"
        stat = dict(line.split() for line in (cores.read(folder / "cpu.stat") or "").splitlines())
        if quota.split()[0].isdecimal() and "nr_periods" in stat:
            return int(stat["nr_periods"]), int(stat["nr_throttled"])
    return None
