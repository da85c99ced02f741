"""The state of the devices while a cell is measured: clocks, power, heat, what else runs there.

Nothing is read inside a timed window, and no thread reads beside it (a second thread would take the interpreter lock
from the one that is timed, and a core where every core computes). Two ways are left, and both are used: counters that
only grow are read before and after the whole measurement and cost nothing in between (energy, ECC, time held down by
power or heat, busy and stolen CPU time, cgroup throttling); what has no counter (clocks, power, temperature) is looked at
between samples, on all ranks at once while none of them is in a window, as rarely as `measure` paces it. The clocks seen
are therefore those right after a window, within a millisecond of it: they hold for longer than that.
"""

from __future__ import annotations

import time
from typing import Any

from distbench import cores
from distbench.record import cpu_name
from distbench.stats import median
from distbench.telemetry.cpu import Cpu, difference, others_cores
from distbench.telemetry.nvml import REASONS, Missing, Nvml, load

_MOST_LOOKS = 128  # kept: beyond that every second one is dropped, and only every second one is kept from there on
_SHORTEST_ENERGY_S = 2.0  # the energy counter moves about every 0.1 s: 5 % at each end
_LEAST_FILLED = 0.95  # of that time in windows: what a device draws between them is no sample's
_HELD_DOWN = ("hw_slowdown", "sw_thermal", "hw_thermal", "power_brake", "power_cap")


class Telemetry:
    """One rank's view. `begin`, then `between` whenever no rank is in a window, then `end`; none of them raises for what
    a machine does not tell."""

    def __init__(self, ranks: list[dict[str, Any]], rank: int) -> None:
        """ranks: the record's, of which this process is `rank`."""
        own = ranks[rank]
        device_uuid = own["device_uuid"]
        self.cpu = Cpu(own["affinity"])
        self.run_pids = {other["pid"] for other in ranks if other["host"] == own["host"]}
        self.gpu: Nvml | None = None
        self.gpu_reason = None if device_uuid else "the ranks compute on the CPU"
        if device_uuid:
            try:
                self.gpu = Nvml(load(), device_uuid)
            except Missing as missing:
                self.gpu_reason = str(missing)
        self._at_s: list[float] = []
        self._looks: list[dict[str, float | None]] = []
        self._seen = 0
        self._stride = 1
        self._looking_s = 0.0

    def begin(self) -> None:
        self._gpu_before = self.gpu.counters() if self.gpu else {}
        self._before = self.cpu.counters()

    def between(self) -> None:
        """One look at what has no counter."""
        began = time.monotonic()
        self._seen += 1
        if (self._seen - 1) % self._stride == 0:
            moment: dict[str, float | None] = {"cpu_clock_mhz": self.cpu.clock_mhz()}
            self._looks.append(moment | (self.gpu.moment() if self.gpu else {}))
            self._at_s.append(began - self._before["at_s"])
            if len(self._looks) > _MOST_LOOKS:
                del self._looks[1::2], self._at_s[1::2]
                self._stride *= 2
        self._looking_s += time.monotonic() - began

    def end(self) -> dict[str, Any]:
        """What this rank saw, for the record; plain JSON values, None with a reason where there is none."""
        after = self.cpu.counters()
        gpu_after = self.gpu.counters() if self.gpu else {}
        self.between()
        return {
            "looks": self._seen,
            "looking_s": self._looking_s,
            "series": {"at_s": self._at_s} | self._series(),
            "cpu": self._cpu(after),
            "gpu": None if self.gpu is None else self._gpu(self.gpu, gpu_after, after["at_s"] - self._before["at_s"]),
            "gpu_reason": self.gpu_reason,
        }

    def _series(self) -> dict[str, list[float | None]]:
        """Each quantity that was ever told, look by look; reasons are bits, and told as shares instead."""
        named = {name: [look[name] for look in self._looks] for name in self._looks[0] if name != "reasons"}
        return {name: values for name, values in named.items() if any(value is not None for value in values)}

    def _cpu(self, after: dict[str, Any]) -> dict[str, Any]:
        told = difference(self._before, after)
        clock = _spread([look["cpu_clock_mhz"] for look in self._looks])
        if clock is None:
            told["reasons"]["clock_mhz"] = "the kernel shows no clock (no cpufreq: a virtual machine, or no driver)"
        return {
            "model": cpu_name(),
            "cores": len(self.cpu.mask),
            "quota_cores": cores.cgroup_quota(),
            "clock_mhz": clock,
            "others_cores": None,  # known when all ranks have told: see `finish`
        } | told

    def _gpu(self, gpu: Nvml, after: dict[str, Any], elapsed_s: float) -> dict[str, Any]:
        reasons: dict[str, str] = {}
        told: dict[str, Any] = gpu.constants() | {"elapsed_s": elapsed_s, "reasons": reasons}
        for name in ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c"):
            told[name] = _spread([look[name] for look in self._looks])
        for name, value in after.items():
            before = self._gpu_before[name]
            told[name] = None if value is None or before is None else value - before
        told["held_down_share"] = _shares([look["reasons"] for look in self._looks])
        told["other_processes"] = self._others(gpu, reasons)
        for name, value in told.items():
            if value is None and name not in reasons:
                reasons[name] = "this driver or card does not tell"
        return told

    def _others(self, gpu: Nvml, reasons: dict[str, str]) -> list[dict[str, int | None]] | None:
        running = gpu.processes()
        if running is None:
            return None
        if not self.run_pids & running.keys():  # this run is on the card: these pids are not as this process knows them
            reasons["other_processes"] = "NVML tells pids of another namespace (a container): nobody can be told apart"
            return None
        return [{"pid": pid, "bytes": size} for pid, size in running.items() if pid not in self.run_pids]


def finish(told: list[dict[str, Any]], ranks: list[dict[str, Any]], spans_s: list[float]) -> list[dict[str, Any]]:
    """Add what only all ranks together know: others' work on each rank's cores, and energy per sample.

    told: every rank's `end`; ranks: the record's; spans_s: of all samples that were taken, dropped ones too.
    """
    shown = [
        {
            "host": rank["host"],
            "mask": rank["affinity"],
            **{key: item["cpu"][key] for key in ("busy_cores", "own_cores")},
        }
        for rank, item in zip(ranks, told, strict=True)
    ]
    for index, item in enumerate(told):
        item["rank"] = index
        item["cpu"]["others_cores"] = others_cores(shown, index)
        if item["cpu"]["others_cores"] is None:
            reasons = item["cpu"]["reasons"]
            reasons["others_cores"] = reasons.get("busy_cores", "unknown on a rank that shares these cores")
        if item["gpu"] is not None:
            item["gpu"] |= _energy_per_sample(item["gpu"], spans_s)
    return told


def energy(told: list[dict[str, Any]], ranks: list[dict[str, Any]], flop: int) -> dict[str, Any]:
    """For the result: J per sample over the distinct GPUs, and TFLOP/s per W (= TFLOP per J); None with the reason."""
    devices = {(rank["host"], rank["device_uuid"]): item["gpu"] for rank, item in zip(ranks, told, strict=True)}
    missing = [item["gpu_reason"] for item in told if item["gpu"] is None]
    missing += [
        gpu["reasons"]["energy_per_sample_j"] for gpu in devices.values() if gpu and not gpu["energy_per_sample_j"]
    ]
    if missing:
        return {"energy_per_sample_j": None, "tflops_per_watt": None, "energy_reason": missing[0]}
    per_sample_j = sum(gpu["energy_per_sample_j"] for gpu in devices.values() if gpu)
    return {"energy_per_sample_j": per_sample_j, "tflops_per_watt": flop / per_sample_j / 1e12, "energy_reason": None}


def held_down(gpu: dict[str, Any]) -> dict[str, float]:
    """Why a card's clock was held down, as shares of the measurement: the larger of what the counters and the looks say."""
    shares = dict(gpu["held_down_share"] or {})
    told = {name: shares[name] for name in _HELD_DOWN if shares.get(name)}
    for name, seconds in (("power_cap", gpu["power_violation_s"]), ("hw_thermal", gpu["thermal_violation_s"])):
        if seconds and gpu["elapsed_s"] > 0:
            told[name] = max(told.get(name, 0.0), min(1.0, seconds / gpu["elapsed_s"]))
    return told


def _energy_per_sample(gpu: dict[str, Any], spans_s: list[float]) -> dict[str, float | None]:
    filled = sum(spans_s) / gpu["elapsed_s"] if gpu["elapsed_s"] > 0 else 0.0
    reason = None
    if gpu["mig"]:
        reason = "a MIG slice: the energy counter is the whole card's"
    elif not gpu["energy_j"]:
        reason = gpu["reasons"].get("energy_j", "the energy counter did not move")
    elif gpu["elapsed_s"] < _SHORTEST_ENERGY_S:
        reason = f"{gpu['elapsed_s']:.2g} s of measuring is too short for the energy counter ({_SHORTEST_ENERGY_S:g} s)"
    elif filled < _LEAST_FILLED:
        reason = f"windows fill {filled:.0%} of the measuring: the rest of the energy is no sample's"
    if reason is not None:
        gpu["reasons"]["energy_per_sample_j"] = reason
        return {"energy_per_sample_j": None}
    return {"energy_per_sample_j": gpu["energy_j"] / len(spans_s)}


def _shares(bits: list[float | None]) -> dict[str, float] | None:
    """Share of the looks in which each reason held a clock down; None where it was never told."""
    known = [int(value) for value in bits if value is not None]
    if not known:
        return None
    return {name: sum(1 for value in known if value & bit) / len(known) for bit, name in REASONS.items()}


def _spread(values: list[float | None]) -> dict[str, float] | None:
    known = [float(value) for value in values if value is not None]
    return {"min": min(known), "median": median(known), "max": max(known)} if known else None
