"""Telemetry: what is told, and that what a machine does not tell is None with a reason, never zero.

The CPU's part runs for real and on recorded files; the GPU's on a library that answers as NVML does, with an error for
what it does not support.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from distbench import cores, telemetry
from distbench.telemetry import Telemetry, finish, held_down
from distbench.telemetry.cpu import Cpu, difference, others_cores
from distbench.telemetry.nvml import Missing, Nvml, link_gb_per_s

MASK = sorted(os.sched_getaffinity(0))


def rank(**changes: Any) -> dict[str, Any]:
    return {"host": "a", "pid": os.getpid(), "affinity": MASK, "device_uuid": None} | changes


# --- the CPU ---------------------------------------------------------------------------------------------------------


def test_what_this_process_computes_is_its_own_work_and_not_others() -> None:
    state = Telemetry([rank()], 0)
    state.begin()
    began = time.process_time()
    while time.process_time() < began + 0.5:
        pass
    (told,) = finish([state.end()], [rank()], [0.5])
    cpu = told["cpu"]
    assert 0.5 <= cpu["own_cores"] * cpu["elapsed_s"] < 0.6
    assert cpu["busy_cores"] >= cpu["own_cores"] - 0.1  # ticks of 10 ms
    assert cpu["others_cores"] == max(0.0, cpu["busy_cores"] - cpu["own_cores"])
    assert 0 <= cpu["steal_share"] < 1
    assert told["gpu"] is None
    assert told["gpu_reason"]


def test_too_short_a_time_is_unknown_and_says_so() -> None:
    state = Telemetry([rank()], 0)
    state.begin()
    (told,) = finish([state.end()], [rank()], [0.001])
    for name in ("busy_cores", "others_cores", "steal_share"):
        assert told["cpu"][name] is None
        assert "too short" in told["cpu"]["reasons"][name]


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_clock_and_times_are_those_of_the_ranks_own_cores(tmp_path: Path) -> None:
    for core, clock_khz in enumerate((3_700_000, 3_500_000, 800_000)):
        write(tmp_path, f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", f"{clock_khz}\n")
    stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 {} 0 100 900 50 1 2 30 7 0\ncpu1 10 0 0 0 0 0 0 0 0 0\ncpu2 9 9 9 9 9 9 9 9 0 0\n"
    write(tmp_path, "proc/stat", stat.format(100))
    cpu = Cpu([0, 1], tmp_path)
    assert cpu.clock_mhz() == 3600.0
    before = cpu.counters() | {"throttled": (10, 1)}
    write(tmp_path, "proc/stat", stat.format(250))
    after = cpu.counters() | {"at_s": before["at_s"] + 2.0, "throttled": (30, 11), "own_s": before["own_s"] + 0.5}
    told = difference(before, after)
    assert told["busy_cores"] == pytest.approx(150 / os.sysconf("SC_CLK_TCK") / 2)
    assert (told["own_cores"], told["steal_share"], told["throttled_share"]) == (0.25, 0.0, 0.5)


def test_a_kernel_that_hides_a_core_is_unknown_not_idle(tmp_path: Path) -> None:
    write(tmp_path, "proc/stat", "cpu0 1 0 0 0 0 0 0 0 0 0\n")
    cpu = Cpu([0, 1], tmp_path)
    told = difference(cpu.counters(), cpu.counters())
    assert (told["busy_cores"], cpu.clock_mhz()) == (None, None)
    assert "/proc/stat" in told["reasons"]["busy_cores"]


def test_the_quota_that_counts_is_the_nearest_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    write(tmp_path, "proc/self/cgroup", "0::/pod/one\n")
    write(tmp_path, "sys/fs/cgroup/pod/one/cpu.max", "max 100000\n")
    write(tmp_path, "sys/fs/cgroup/pod/one/cpu.stat", "nr_periods 0\nnr_throttled 0\n")
    assert Cpu([0]).counters()["throttled"] is None
    write(tmp_path, "sys/fs/cgroup/pod/cpu.max", "150000 100000\n")
    write(tmp_path, "sys/fs/cgroup/pod/cpu.stat", "usage_usec 5\nnr_periods 20\nnr_throttled 3\n")
    assert Cpu([0]).counters()["throttled"] == (20, 3)


def test_other_ranks_work_on_shared_cores_is_not_others(tmp_path: Path) -> None:
    def state(host: str, mask: list[int], busy: float | None, own: float) -> dict[str, Any]:
        return {"host": host, "mask": mask, "busy_cores": busy, "own_cores": own}

    ranks = [state("a", [0, 1], 2.0, 0.9), state("a", [0, 1], 2.0, 0.8), state("b", [0], 1.0, 0.4)]
    assert others_cores(ranks, 0) == pytest.approx(0.3)
    assert others_cores(ranks, 2) == pytest.approx(0.6)
    assert others_cores([state("a", [0], None, 0.5)], 0) is None


def test_looks_stay_few_however_long_the_measuring() -> None:
    state = Telemetry([rank()], 0)
    state.begin()
    for _ in range(5000):
        state.between()
    told = state.end()
    assert told["looks"] == 5001
    assert 40 <= len(told["series"]["at_s"]) <= 128
    assert told["series"]["at_s"] == sorted(told["series"]["at_s"])


# --- the GPU ---------------------------------------------------------------------------------------------------------


class Card:
    """Answers as NVML 580 does for an idle-then-busy H200; `lacks` are functions that this card does not support."""

    NVMLError = pynvml.NVMLError

    def __init__(self, lacks: tuple[str, ...] = (), mig: bool = False) -> None:
        self.lacks, self.mig = lacks, mig
        self.energy_mj = 1_000_000
        self.power_ns = 0
        self.ecc = 2
        self.pids = [os.getpid(), 77]
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML_"):
            return getattr(pynvml, name)
        if name in ("nvmlDeviceGetTemperatureV", *self.lacks):
            raise AttributeError(name)
        return lambda *arguments: self.answer(name, *arguments)

    def answer(self, name: str, *arguments: Any) -> Any:
        self.asked.append(name)
        if name == "nvmlDeviceGetHandleByUUID":
            if arguments[0] != ("MIG-1234" if self.mig else "GPU-1234"):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
            return "slice" if self.mig else "card"
        if name == "nvmlDeviceGetViolationStatus":
            return SimpleNamespace(violationTime=self.power_ns if arguments[1] == pynvml.NVML_PERF_POLICY_POWER else 0)
        if name == "nvmlDeviceGetComputeRunningProcesses_v3":
            return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self.pids]
        if self.mig and arguments[:1] == ("slice",) and name.startswith("nvmlDeviceGetC"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return {
            "nvmlDeviceIsMigDeviceHandle": self.mig,
            "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": "card",
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetPowerUsage": 650_000,
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetTotalEnergyConsumption": self.energy_mj,
            "nvmlDeviceGetTotalEccErrors": self.ecc,
            "nvmlSystemGetDriverVersion": "580.65.06",
        }[name]


def watched(
    monkeypatch: pytest.MonkeyPatch, card: Card, elapsed_s: float = 5.0, spans_s: list[float] | None = None
) -> dict[str, Any]:
    """What a rank on this card tells of a measurement in which it draws 3000 J and is held down for 1 s."""
    monkeypatch.setattr(telemetry, "load", lambda: card)
    ranks = [rank(device_uuid="1234")]
    state = Telemetry(ranks, 0)
    state.begin()
    state._before["at_s"] -= elapsed_s
    card.energy_mj += 3_000_000
    card.power_ns += 10**9
    card.ecc += 1
    state.between()
    (told,) = finish([state.end()], ranks, [elapsed_s / 10] * 10 if spans_s is None else spans_s)
    return told


def test_a_cards_state_has_clocks_power_heat_and_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = watched(monkeypatch, Card())
    gpu = told["gpu"]
    assert gpu["sm_clock_mhz"] == {"min": 1980.0, "median": 1980.0, "max": 1980.0}
    assert (gpu["power_w"]["median"], gpu["temperature_c"]["median"], gpu["power_limit_w"]) == (650.0, 61.0, 700.0)
    assert (gpu["energy_j"], gpu["ecc_corrected"], gpu["power_violation_s"]) == (3000.0, 1, 1.0)
    assert gpu["link_gb_per_s"] == pytest.approx(63.0, abs=0.1)
    assert gpu["other_processes"] == [{"pid": 77, "bytes": None}]
    assert held_down(gpu) == {"power_cap": 1.0}
    assert gpu["energy_per_sample_j"] == 300.0
    assert gpu["reasons"] == {}
    energy = telemetry.energy([told], [rank(device_uuid="1234")], 6 * 10**14)
    assert energy == {"energy_per_sample_j": 300.0, "tflops_per_watt": 2.0, "energy_reason": None}


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetTotalEnergyConsumption", "energy_j"),
        ("nvmlDeviceGetTotalEccErrors", "ecc_corrected"),
        ("nvmlDeviceGetViolationStatus", "power_violation_s"),
        ("nvmlDeviceGetClockInfo", "sm_clock_mhz"),
        ("nvmlDeviceGetCurrPcieLinkWidth", "link_gb_per_s"),
    ],
)
def test_what_a_card_does_not_tell_is_none_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, function: str, field: str
) -> None:
    gpu = watched(monkeypatch, Card(lacks=(function,)))["gpu"]
    assert gpu[field] is None
    assert gpu["reasons"][field]


def test_older_drivers_are_asked_by_the_older_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(Card):
        def answer(self, name: str, *arguments: Any) -> Any:
            return 0x40 if name == "nvmlDeviceGetCurrentClocksThrottleReasons" else super().answer(name, *arguments)

    gpu = watched(monkeypatch, Older(lacks=("nvmlDeviceGetCurrentClocksEventReasons",)))["gpu"]
    assert gpu["held_down_share"]["hw_thermal"] == 1.0
    assert gpu["temperature_c"]["median"] == 61.0  # through nvmlDeviceGetTemperature


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"elapsed_s": 0.5}, "too short"),
        ({"spans_s": [0.1] * 10}, "windows fill 20%"),
        ({"card": Card(mig=True)}, "MIG"),
        ({"card": Card(lacks=("nvmlDeviceGetTotalEnergyConsumption",))}, "does not tell"),
    ],
    ids=["short", "gaps", "mig", "no counter"],
)
def test_energy_that_cannot_be_laid_to_a_sample_is_none_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], why: str
) -> None:
    told = watched(monkeypatch, **{"card": Card()} | changes)
    energy = telemetry.energy([told], [rank(device_uuid="1234")], 10**12)
    assert (energy["energy_per_sample_j"], energy["tflops_per_watt"]) == (None, None)
    assert why in energy["energy_reason"]


def test_a_slice_is_found_by_its_own_uuid_and_its_clocks_are_the_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = watched(monkeypatch, Card(mig=True))["gpu"]
    assert gpu["mig"]
    assert gpu["sm_clock_mhz"]["median"] == 1980.0


def test_pids_of_another_namespace_accuse_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card()
    card.pids = [4_000_001, 4_000_002]
    gpu = watched(monkeypatch, card)["gpu"]
    assert gpu["other_processes"] is None
    assert "namespace" in gpu["reasons"]["other_processes"]


def test_a_device_that_nvml_does_not_know_or_no_nvml_at_all_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Missing, match="NVML knows no device 99"):
        Nvml(Card(), "99")
    if not os.path.exists("/dev/nvidiactl"):
        state = Telemetry([rank(device_uuid="1234")], 0)
        assert "NVML does not start" in (state.gpu_reason or "")
    monkeypatch.setattr(telemetry.nvml.importlib, "import_module", _refuse)
    state = Telemetry([rank(device_uuid="1234")], 0)
    assert state.gpu_reason == "nvidia-ml-py is not installed: pip install 'distbench[nvml]'"


def _refuse(name: str) -> Any:
    raise ImportError(name)


def test_a_link_is_the_rate_after_its_coding() -> None:
    assert link_gb_per_s(3, 16) == pytest.approx(15.75, abs=0.01)
    assert link_gb_per_s(4, 8) == pytest.approx(15.75, abs=0.01)
    assert link_gb_per_s(None, 16) is None
    assert link_gb_per_s(5, 0) is None
