"""doctor's checks on recorded files and answers; tests/cli/test_doctor_here.py runs them on this machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from distbench import cores, doctor
from distbench.doctor import blas, cpu, gpu, memory, network, packages
from distbench.doctor.machine import Finding, Level, Machine, ok
from distbench.launch import Launch
from distbench.telemetry.nvml import Missing

WRONG, SLOW, NOTE, OK = Level.wrong, Level.slow, Level.note, Level.ok
ALONE = Launch("single", 0, 1, 0, 1)


def machine(root: Path, mask: list[int] | None = None, ranks: int = 1, **changes: Any) -> Machine:
    mask = [0, 1] if mask is None else mask
    told = {"launch": ALONE, "environment": {}, "mask": mask, "local_masks": [mask] * ranks, "root": root}
    return Machine(**told | changes)


def write(root: Path, path: str, text: str = "") -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def levels(findings: list[Finding]) -> list[Level]:
    assert findings, "a check says at least that all is well"
    for finding in findings:
        assert "\n" not in finding.text + finding.remedy
        assert finding.remedy or finding.level in (OK, NOTE), finding
    return [finding.level for finding in findings]


@pytest.fixture
def _no_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "cgroup_quota", lambda: None)


# --- threads, cores, clocks ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_no_quota")
@pytest.mark.parametrize(("omp", "level"), [("1", SLOW), ("4", SLOW), ("2", OK), (None, OK)])
def test_omp_num_threads_that_is_not_the_share_is_named_with_who_set_it(
    monkeypatch: pytest.MonkeyPatch, omp: str | None, level: Level
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if omp is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
    (finding,) = cpu.threads(machine(Path("/"), environment=os.environ))
    assert finding.level is level
    if omp is not None:
        assert f"OMP_NUM_THREADS={omp} (" in finding.text
        assert "pid " in finding.text


def test_the_ancestor_that_set_a_variable_is_the_last_without_it(tmp_path: Path) -> None:
    chain = [psutil.Process(), *psutil.Process().parents()]
    if len(chain) < 3:
        pytest.skip("this process has no grandparent")
    for process in chain[:2]:
        write(tmp_path, f"proc/{process.pid}/environ", "PATH=/bin\0OMP_NUM_THREADS=1\0")
    write(tmp_path, f"proc/{chain[2].pid}/environ", "PATH=/bin\0")
    assert cpu.setter(machine(tmp_path), "OMP_NUM_THREADS") == f"set by {chain[2].name()}, pid {chain[2].pid}"


@pytest.mark.parametrize(
    ("online", "mask", "ranks", "expected"),
    [
        ("0-3", [0, 1, 2, 3], 2, [OK]),
        ("0-3", [0], 1, [SLOW]),
        ("0,1", [0, 1], 3, [WRONG]),
        ("0-3", [2], 2, [SLOW, WRONG]),
    ],
)
def test_a_mask_below_the_host_and_more_ranks_than_cores_are_named(
    tmp_path: Path, online: str, mask: list[int], ranks: int, expected: list[Level]
) -> None:
    write(tmp_path, "sys/devices/system/cpu/online", online)
    assert levels(cpu.affinity(machine(tmp_path, mask, ranks))) == expected


def test_two_hardware_threads_of_a_core_are_not_two_cores(tmp_path: Path) -> None:
    write(tmp_path, "sys/devices/system/cpu/online", "0-3")
    for core in range(4):
        write(tmp_path, f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list", f"{core % 2},{core % 2 + 2}")
    (finding,) = cpu.affinity(machine(tmp_path, [0, 1, 2, 3]))
    assert (finding.level, finding.remedy) == (SLOW, "threads=2")


@pytest.mark.parametrize(("limit", "level"), [(1.5, WRONG), (2.0, OK), (None, OK)])
def test_a_quota_below_the_cores_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float | None, level: Level
) -> None:
    monkeypatch.setattr(cores, "cgroup_quota", lambda: limit)
    assert levels(cpu.quota(machine(tmp_path))) == [level]


@pytest.mark.parametrize(
    ("governor", "driver", "boost", "expected"),
    [
        ("performance", "acpi-cpufreq", "1", [OK]),
        ("schedutil", "acpi-cpufreq", "1", [WRONG]),
        ("powersave", "intel_pstate", "1", [OK]),  # its powersave follows the load
        ("performance", "acpi-cpufreq", "0", [SLOW]),
        (None, None, None, [OK]),
    ],
)
def test_a_governor_that_lags_and_a_boost_that_is_off_are_named(
    tmp_path: Path, governor: str | None, driver: str | None, boost: str | None, expected: list[Level]
) -> None:
    for core in range(2):
        if governor and driver and boost:
            write(tmp_path, f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor", governor)
            write(tmp_path, f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_driver", driver)
            write(tmp_path, "sys/devices/system/cpu/cpufreq/boost", boost)
    assert levels(cpu.governor(machine(tmp_path))) == expected


def test_cores_on_two_memory_nodes_are_named(tmp_path: Path) -> None:
    for node, listed in ((0, "0-3,8"), (1, "4-7")):
        write(tmp_path, f"sys/devices/system/node/node{node}/cpulist", listed)
    assert levels(cpu.numa(machine(tmp_path, [0, 3, 8]))) == [OK]
    assert levels(cpu.numa(machine(tmp_path, [3, 4]))) == [SLOW]


def test_a_stat_without_these_cores_is_a_note_not_an_idle_machine(tmp_path: Path) -> None:
    assert levels(cpu.busy(machine(tmp_path))) == [NOTE]


# --- kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS"])
def test_a_variable_that_chooses_the_kernels_is_named(tmp_path: Path, name: str) -> None:
    (finding,) = [item for item in blas.kernels(machine(tmp_path, environment={name: "Haswell"})) if name in item.text]
    assert (finding.level, finding.remedy) == (SLOW, f"unset {name}")


def test_narrow_kernels_on_a_wide_processor_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = {"internal_api": "openblas", "version": "0.3.1", "architecture": "Haswell"}
    monkeypatch.setattr(cores, "thread_pools", lambda: [pool])
    write(tmp_path, "proc/cpuinfo", "flags\t\t: fpu avx2\n")
    assert levels(blas.kernels(machine(tmp_path))) == [OK]
    write(tmp_path, "proc/cpuinfo", "flags\t\t: fpu avx2 avx512f\n")
    assert levels(blas.kernels(machine(tmp_path))) == [SLOW]


def test_an_engine_far_behind_the_other_is_named_from_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "proc/cpuinfo", "vendor_id\t: AuthenticAMD\nflags\t\t: avx512f\n")
    rates = {"float64": {"torch": 48.0, "numpy": 75.0}, "float32": {"torch": 100.0, "numpy": 99.0}}
    monkeypatch.setattr(blas, "measured_gflops", lambda: rates)
    (finding,) = blas.engines(machine(tmp_path))
    assert (finding.level, finding.remedy) == (SLOW, "engine=numpy")
    assert "float64" in finding.text
    assert "AVX2 path on AMD" in finding.text


def test_the_rates_are_those_of_real_products() -> None:
    told = blas.measured_gflops(n=128, rounds=3)
    assert set(told) == {"float64", "float32"}
    assert all(0.1 < rate < 10_000 for engines in told.values() for rate in engines.values())


# --- memory and network ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "asks", "level"),
    [
        ("[always] madvise never", "", OK),
        ("always [madvise] never", "", SLOW),
        ("always [madvise] never", "1", OK),
        ("always madvise [never]", "1", SLOW),
        (None, "", NOTE),
    ],
)
def test_huge_pages_that_torch_does_not_get_are_named(
    tmp_path: Path, text: str | None, asks: str, level: Level
) -> None:
    if text is not None:
        write(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", text)
    assert levels(memory.huge_pages(machine(tmp_path, environment={"THP_MEM_ALLOC_ENABLE": asks}))) == [level]


def test_little_locked_memory_is_slow_where_there_is_infiniband(tmp_path: Path) -> None:
    assert levels(memory.locked_memory(machine(tmp_path), 8 * 2**20)) == [NOTE]
    assert levels(memory.locked_memory(machine(tmp_path), -1)) == [OK]
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    assert levels(memory.locked_memory(machine(tmp_path), 8 * 2**20)) == [SLOW]


def test_a_missing_or_small_shared_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(memory.shared_memory(machine(tmp_path))) == [WRONG]
    (tmp_path / "dev/shm").mkdir(parents=True)
    small = SimpleNamespace(f_blocks=2**14, f_bavail=2**13, f_frsize=4096)
    monkeypatch.setattr(memory.os, "statvfs", lambda path: small)
    assert levels(memory.shared_memory(machine(tmp_path))) == [SLOW]


@pytest.mark.parametrize(
    ("addresses", "hosts", "level"),
    [(["127.0.1.1"], 1, NOTE), (["127.0.1.1"], 2, WRONG), (["10.0.0.1"], 2, OK), ([], 2, WRONG), (None, 2, WRONG)],
)
def test_a_host_name_that_others_cannot_use_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, addresses: list[str] | None, hosts: int, level: Level
) -> None:
    monkeypatch.setattr(network, "_resolve", lambda name: addresses)
    assert levels(network.host_name(machine(tmp_path, hosts=hosts), "node7")) == [level]


def test_a_name_that_nobody_knows_is_found_to_have_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert network._resolve("localhost")

    def refuse(*arguments: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(network.socket, "getaddrinfo", refuse)
    assert network._resolve("no-such-host") == []


@pytest.mark.parametrize(
    ("variables", "hosts", "level"),
    [
        ({"GLOO_SOCKET_IFNAME": "nosuch0"}, 1, WRONG),
        ({"NCCL_SOCKET_IFNAME": "=nosuch0"}, 1, WRONG),
        ({"GLOO_SOCKET_IFNAME": "lo"}, 2, WRONG),
        ({"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "^docker"}, 1, OK),
    ],
)
def test_an_interface_that_is_not_there_or_leads_nowhere_is_named(
    tmp_path: Path, variables: dict[str, str], hosts: int, level: Level
) -> None:
    assert level in levels(network.interfaces(machine(tmp_path, hosts=hosts, environment=variables)))


# --- GPUs ------------------------------------------------------------------------------------------------------------


class Cards:
    """Answers as NVML does for some H200s; `changed` replaces answers, by card and function."""

    NVMLError = pynvml.NVMLError

    def __init__(self, count: int = 1, changed: dict[tuple[int, str], Any] | None = None) -> None:
        self.count, self.changed = count, changed or {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML_"):
            return getattr(pynvml, name)
        return lambda *arguments: self.answer(name, *arguments)

    def answer(self, name: str, *arguments: Any) -> Any:
        card = arguments[0] if arguments and isinstance(arguments[0], int) else 0
        if (card, name) in self.changed:
            return self.changed[card, name]
        return {
            "nvmlDeviceGetCount": self.count,
            "nvmlDeviceGetHandleByIndex": card,
            "nvmlDeviceGetUUID": f"GPU-{card}",
            "nvmlDeviceGetHandleByUUID": int(str(arguments[0])[4:]) if name.endswith("ByUUID") else None,
            "nvmlDeviceIsMigDeviceHandle": 0,
            "nvmlDeviceGetClockInfo": 345,
            "nvmlDeviceGetPowerUsage": 75_000,
            "nvmlDeviceGetTemperatureV": 30,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x1,
            "nvmlDeviceGetTotalEnergyConsumption": 1,
            "nvmlDeviceGetTotalEccErrors": 0,
            "nvmlDeviceGetViolationStatus": SimpleNamespace(violationTime=0),
            "nvmlDeviceGetComputeRunningProcesses_v3": [],
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetPciInfo_v3": SimpleNamespace(busId=b"00000000:1B:00.0"),
            "nvmlDeviceGetNvLinkState": 1,
            "nvmlDeviceGetTopologyCommonAncestor": 50,
        }[name]


def examined(root: Path, cards: Cards, **changes: Any) -> list[Finding]:
    write(root, "proc/driver/nvidia/gpus/0000:1b:00.0/information")
    found = gpu.devices(machine(root, **changes), lambda: cards)
    levels(found)
    return found


def test_cool_lone_cards_are_in_order(tmp_path: Path) -> None:
    assert [item.level for item in examined(tmp_path, Cards(2))] == [OK]


@pytest.mark.parametrize(
    ("name", "answer", "level", "says"),
    [
        ("nvmlDeviceGetCurrentClocksEventReasons", 0x41, WRONG, "hw thermal"),
        ("nvmlDeviceGetCurrentClocksEventReasons", 0x2, SLOW, "clocks set by hand"),
        ("nvmlDeviceGetClockInfo", 0, NOTE, "does not tell its clock"),
        ("nvmlDeviceGetTotalEccErrors", 4, WRONG, "4 uncorrected"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", [SimpleNamespace(pid=1, usedGpuMemory=5)], WRONG, "pid 1"),
        ("nvmlDeviceGetCurrPcieLinkWidth", 8, SLOW, "8 of 16 lanes"),
        ("nvmlDeviceGetNvLinkState", 0, WRONG, "0 NVLinks up, another 18"),
    ],
)
def test_what_is_wrong_with_one_card_of_two_is_told_of_that_one(
    tmp_path: Path, name: str, answer: Any, level: Level, says: str
) -> None:
    (finding,) = examined(tmp_path, Cards(2, {(1, name): answer}))
    assert finding.level is level
    assert says in finding.text
    assert "GPU 1" in finding.text


def test_a_card_far_from_the_ranks_cores_is_named(tmp_path: Path) -> None:
    write(tmp_path, "sys/devices/system/node/node0/cpulist", "0-1")
    write(tmp_path, "sys/devices/system/node/node1/cpulist", "2-3")
    write(tmp_path, "sys/bus/pci/devices/0000:1b:00.0/numa_node", "1")
    (finding,) = examined(tmp_path, Cards())
    assert (finding.level, "memory node 1" in finding.text) == (SLOW, True)
    assert [item.level for item in examined(tmp_path, Cards(), mask=[2, 3])] == [OK]


def test_cards_without_nvlink_across_processors_are_named(tmp_path: Path) -> None:
    cards = Cards(2, {(index, "nvmlDeviceGetNvLinkState"): 0 for index in range(2)})
    (finding,) = examined(tmp_path, cards)
    assert (finding.level, "between processors" in finding.text) == (SLOW, True)


def test_a_card_whose_state_cannot_be_seen_is_not_in_order(tmp_path: Path) -> None:
    def missing() -> Any:
        raise Missing("nvidia-ml-py is not installed: pip install 'distbench[nvml]'")

    write(tmp_path, "dev/nvidia0")
    assert levels(gpu.devices(machine(tmp_path), missing)) == [SLOW]


def test_a_torch_without_cuda_beside_a_gpu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    assert levels(gpu.versions(machine(tmp_path))) == [OK]
    write(tmp_path, "dev/nvidia0")
    assert levels(gpu.versions(machine(tmp_path))) == [SLOW]


def test_a_driver_older_than_torchs_cuda_makes_numbers_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    write(tmp_path, "dev/nvidia0")
    library = SimpleNamespace(nvmlSystemGetCudaDriverVersion_v2=lambda: 12040)
    found = gpu.versions(machine(tmp_path), lambda: library)
    assert levels(found) == [WRONG, SLOW]
    assert "CUDA 12.4, torch is built for 13.0" in found[0].text


# --- the whole -------------------------------------------------------------------------------------------------------


def test_a_missing_extra_is_a_note_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "installed", lambda name: None)
    found = packages.extras(machine(tmp_path))
    assert set(levels(found)) == {NOTE}
    assert not any("nvml" in item.text for item in found)  # no GPU: nothing to look at
    assert any(item.remedy == "pip install 'distbench[report]'" for item in found)


def test_a_check_that_breaks_is_a_note_and_the_others_are_told(tmp_path: Path) -> None:
    def broken(machine: Machine) -> list[Finding]:
        raise ZeroDivisionError("strange machine")

    (finding,) = doctor.attempted(broken, machine(tmp_path))
    assert (finding.level, "strange machine" in finding.text) == (NOTE, True)
    assert doctor.attempted(lambda machine: ok("fine"), machine(tmp_path)) == ok("fine")


def test_equal_findings_are_told_once_with_their_ranks_the_worst_first() -> None:
    slow = {"check": "quota", "level": "slow", "text": "a", "remedy": "b"}
    wrong = {"check": "extras", "level": "wrong", "text": "c", "remedy": "d"}
    assert doctor.merged([[slow], [slow, wrong], [slow]]) == [wrong | {"ranks": [1]}, slow | {"ranks": [0, 1, 2]}]


def test_what_differs_between_ranks_is_wrong_and_says_where() -> None:
    def fact(torch: str, **variables: str) -> dict[str, Any]:
        return {"host": torch, "torch": torch, "variables": variables}

    assert doctor.differing([fact("2.13"), fact("2.13")]) == []
    rows = doctor.differing([fact("2.13"), fact("2.11", NCCL_ALGO="Ring"), fact("2.13")])
    assert [(row["level"], row["text"]) for row in rows] == [
        ("wrong", "NCCL_ALGO: not set on ranks 0, 2; Ring on rank 1"),
        ("wrong", "torch: 2.13 on ranks 0, 2; 2.11 on rank 1"),
    ]
