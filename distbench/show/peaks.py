"""Datasheet peaks, dense, in TFLOP/s (int8: TOP/s): what a device's maker states, matrix units where they serve the dtype.

Where a datasheet states figures "with sparsity" only, these are their halves. Sums in float32, as distbench asks for: the
RTX 4090 is slower so. Complex products count real operations and share their real type's peak. A dtype that a device's
source does not state is left out: unknown.
"""

from __future__ import annotations

from typing import Any

from distbench.config import DType
from distbench.dtypes import FACTS


def _row(**peaks: float) -> dict[str, float]:
    return peaks


# NVIDIA A100 Tensor Core GPU datasheet (2021).
_A100 = _row(float64=19.5, float32=19.5, tf32=156.0, bfloat16=312.0, float16=312.0, int8=624.0)
# NVIDIA H100 Tensor Core GPU datasheet (2023), column H100 SXM; NVIDIA H200 Tensor Core GPU datasheet (2024), H200 SXM.
_HOPPER_SXM = _row(float64=67.0, float32=67.0, tf32=494.5, bfloat16=989.5, float16=989.5, float8=1979.0, int8=1979.0)
# NVIDIA H100 Tensor Core GPU datasheet (2023), column H100 PCIe.
_H100_PCIE = _row(float64=51.0, float32=51.0, tf32=378.0, bfloat16=756.5, float16=756.5, float8=1513.0, int8=1513.0)
# NVIDIA Blackwell datasheet (2025), HGX B200, one GPU.
_B200 = _row(float64=37.0, float32=75.0, tf32=1100.0, bfloat16=2250.0, float16=2250.0, float8=4500.0, int8=4500.0)
# NVIDIA L4 Tensor Core GPU datasheet (2023).
_L4 = _row(float32=30.3, tf32=60.0, bfloat16=121.0, float16=121.0, float8=242.5, int8=242.5)
# NVIDIA L40S GPU datasheet (2023).
_L40S = _row(float32=91.6, tf32=183.0, bfloat16=362.05, float16=362.05, float8=733.0, int8=733.0)
# NVIDIA Ada GPU Architecture whitepaper (2022), appendix A: GeForce RTX 4090, sums in float32.
_RTX_4090 = _row(float32=82.6, tf32=82.6, bfloat16=165.2, float16=165.2, float8=330.3, int8=660.6)

PEAKS: dict[str, dict[str, float]] = {
    "NVIDIA A100-PCIE-40GB": _A100,
    "NVIDIA A100 80GB PCIe": _A100,
    "NVIDIA A100-SXM4-40GB": _A100,
    "NVIDIA A100-SXM4-80GB": _A100,
    "NVIDIA H100 80GB HBM3": _HOPPER_SXM,
    "NVIDIA H100 PCIe": _H100_PCIE,
    "NVIDIA H200": _HOPPER_SXM,
    "NVIDIA B200": _B200,
    "NVIDIA L4": _L4,
    "NVIDIA L40S": _L40S,
    "NVIDIA GeForce RTX 4090": _RTX_4090,
}
"""By the name that the driver gives the device."""


def peak_tflops(device_name: str | None, dtype: str) -> float | None:
    """Dense peak of one device; None where the table does not know it."""
    facts = FACTS.get(DType(dtype))
    return None if facts is None else PEAKS.get(device_name or "", {}).get(facts.peak)


def peak_of(record: dict[str, Any]) -> float | None:
    """Dense peak in TFLOP/s of the distinct devices of a record; None unless the table knows every one."""
    dtype = record["config"]["workload"]["dtype"]
    devices = {
        (rank["host"], rank["device_uuid"]): rank["device_name"]
        for rank in record["world"]["ranks"]
        if rank["device_uuid"]
    }
    peaks = [peak_tflops(name, dtype) for name in devices.values()]
    known = [peak for peak in peaks if peak is not None]
    return sum(known) if known and len(known) == len(peaks) else None


def share_of_peak(record: dict[str, Any]) -> float | None:
    """The GEMM's share of `peak_of`; None where that or the GEMM's own rate is unknown."""
    peak, gemm = peak_of(record), record["result"]["gemm_tflops"]
    return None if peak is None or gemm is None else gemm / peak
