"""Datasheet peaks, dense, in TFLOP/s: what a device's maker states, matrix units where they serve the dtype.

Sources: NVIDIA A100 Tensor Core GPU datasheet (2021), NVIDIA H100 Tensor Core GPU datasheet (2023),
NVIDIA H200 Tensor Core GPU datasheet (2024); the halves of the figures stated "with sparsity".
"""

from __future__ import annotations

from typing import Any

_HOPPER_SXM = {"float64": 67.0, "float32": 67.0, "bfloat16": 989.5, "float16": 989.5}
PEAKS: dict[str, dict[str, float]] = {
    "NVIDIA A100-SXM4-40GB": {"float64": 19.5, "float32": 19.5, "bfloat16": 312.0, "float16": 312.0},
    "NVIDIA A100-SXM4-80GB": {"float64": 19.5, "float32": 19.5, "bfloat16": 312.0, "float16": 312.0},
    "NVIDIA H100 80GB HBM3": _HOPPER_SXM,
    "NVIDIA H100 PCIe": {"float64": 51.0, "float32": 51.0, "bfloat16": 756.5, "float16": 756.5},
    "NVIDIA H200": _HOPPER_SXM,
}


def peak_tflops(device_name: str | None, dtype: str) -> float | None:
    """Dense peak of one device; None where the table does not know it."""
    return PEAKS.get(device_name or "", {}).get(dtype)


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
