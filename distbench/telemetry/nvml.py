"""NVIDIA's management library, read with care: what a driver or a card does not tell is None, never an error.

pynvml (the package nvidia-ml-py, the extra `nvml`) is imported here, when the first GPU is looked at, and nowhere else.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

INSTALL = "pip install 'distbench[nvml]'"

REASONS = {
    0x0002: "user_clocks",
    0x0004: "power_cap",
    0x0008: "hw_slowdown",
    0x0010: "sync_boost",
    0x0020: "sw_thermal",
    0x0040: "hw_thermal",
    0x0080: "power_brake",
}
"""Why a clock is held down (nvml.h, nvmlClocksEventReason*). Left out: idle (0x1) and display (0x100)."""


class Missing(Exception):
    """No NVML here; the message says why and what to do."""


def load() -> Any:
    """pynvml, initialised (NVML counts the calls; the process's end closes it). Raises Missing."""
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        raise Missing(f"nvidia-ml-py is not installed: {INSTALL}") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Missing(f"NVML does not start: {error}") from None
    return pynvml


class Nvml:
    """One device by its UUID. Where it is a MIG slice, what only the whole card knows is the card's."""

    def __init__(self, library: Any, uuid: str) -> None:
        """`uuid` as torch writes it, or with NVML's GPU- or MIG- before it. Raises Missing where NVML has no such device."""
        self.library = library
        self.handle = self._find(uuid)
        self.card = self.handle
        self.is_mig = bool(self.ask("nvmlDeviceIsMigDeviceHandle", self.handle))
        if self.is_mig:
            self.card = self.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", self.handle) or self.handle

    def _find(self, uuid: str) -> Any:
        names = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
        for name in names:
            if (handle := self.ask("nvmlDeviceGetHandleByUUID", name)) is not None:
                return handle
        raise Missing(f"NVML knows no device {uuid}")

    def ask(self, name: str, *arguments: Any) -> Any:
        """The answer, or None where this driver or card has none (an older one lacks the function)."""
        function: Callable[..., Any] | None = getattr(self.library, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self.library.NVMLError:
            return None

    def of_card(self, name: str, *arguments: Any) -> Any:
        return self.ask(name, self.card, *arguments)

    # --- what changes from moment to moment --------------------------------------------------------------------------

    def moment(self) -> dict[str, float | None]:
        """Clocks in MHz, power in W (a mean over about a second on recent cards), temperature in °C, reasons as bits."""
        library = self.library
        temperature = self.of_card("nvmlDeviceGetTemperatureV", library.NVML_TEMPERATURE_GPU)
        if temperature is None:  # drivers before R570
            temperature = self.of_card("nvmlDeviceGetTemperature", library.NVML_TEMPERATURE_GPU)
        reasons = self.of_card("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # drivers before R535
            reasons = self.of_card("nvmlDeviceGetCurrentClocksThrottleReasons")
        return {
            "sm_clock_mhz": self.of_card("nvmlDeviceGetClockInfo", library.NVML_CLOCK_SM),
            "memory_clock_mhz": self.of_card("nvmlDeviceGetClockInfo", library.NVML_CLOCK_MEM),
            "power_w": _scaled(self.of_card("nvmlDeviceGetPowerUsage"), 1e3),
            "temperature_c": temperature,
            "reasons": reasons,
        }

    # --- what stays ----------------------------------------------------------------------------------------------------

    def constants(self) -> dict[str, Any]:
        """What the card can do at most. Link: GB/s in one direction, from generation and width; None where unknown."""
        generation = self.of_card("nvmlDeviceGetMaxPcieLinkGeneration")
        width = self.of_card("nvmlDeviceGetCurrPcieLinkWidth")  # the generation drops when idle, the width does not
        return {
            "driver": self.ask("nvmlSystemGetDriverVersion"),
            "mig": self.is_mig,
            "max_sm_clock_mhz": self.of_card("nvmlDeviceGetMaxClockInfo", self.library.NVML_CLOCK_SM),
            "power_limit_w": _scaled(self.of_card("nvmlDeviceGetEnforcedPowerLimit"), 1e3),
            "link_gb_per_s": link_gb_per_s(generation, width),
        }

    # --- what only ever grows ------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, Any]:
        """Energy in J, ECC errors since the driver started, seconds held down by power and by heat."""
        library = self.library
        volatile = library.NVML_VOLATILE_ECC
        return {
            "energy_j": _scaled(self.of_card("nvmlDeviceGetTotalEnergyConsumption"), 1e3),
            "ecc_corrected": self.of_card(
                "nvmlDeviceGetTotalEccErrors", library.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile
            ),
            "ecc_uncorrected": self.of_card(
                "nvmlDeviceGetTotalEccErrors", library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile
            ),
            "power_violation_s": self._violation_s(library.NVML_PERF_POLICY_POWER),
            "thermal_violation_s": self._violation_s(library.NVML_PERF_POLICY_THERMAL),
        }

    def _violation_s(self, policy: int) -> float | None:
        status = self.of_card("nvmlDeviceGetViolationStatus", policy)
        return None if status is None else status.violationTime / 1e9

    def processes(self) -> dict[int, int | None] | None:
        """pid → bytes of device memory; None where the driver does not tell. In a container the pids may be the host's."""
        # By version where the binding has one: the plain name has meant different structures over time.
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses"):
            running = self.ask(name, self.handle)
            if running is not None:
                return {int(process.pid): process.usedGpuMemory for process in running}
        return None


def link_gb_per_s(generation: int | None, width: int | None) -> float | None:
    """One direction of a PCI Express link, after line coding; None where unknown.

    Source: PCI Express base specifications 1.0 to 6.0: transfers per second, 8b/10b, 128b/130b, 242B/256B flits.
    """
    per_lane = {
        1: 0.25,
        2: 0.5,
        3: 8 / 8 * 128 / 130,
        4: 16 / 8 * 128 / 130,
        5: 32 / 8 * 128 / 130,
        6: 64 / 8 * 242 / 256,
    }
    if not width or generation not in per_lane:
        return None
    return width * per_lane[generation]


def _scaled(value: int | None, divisor: float) -> float | None:
    return None if value is None else value / divisor
