"""What the hardware allows: the roofs of the roofline, measured (where the record has that) and from the datasheets.

Memory bandwidths are from the datasheets that distbench.show.peaks names, in bytes per second.
"""

from __future__ import annotations

from dataclasses import dataclass

from distbench.show.peaks import peak_of
from distbench.show.runs import Record

BANDWIDTHS = {
    "NVIDIA A100-SXM4-40GB": 1.555e12,
    "NVIDIA A100-SXM4-80GB": 2.039e12,
    "NVIDIA H100 80GB HBM3": 3.35e12,
    "NVIDIA H100 PCIe": 2.0e12,
    "NVIDIA H200": 4.8e12,
}


@dataclass(frozen=True)
class Ceiling:
    """A roof of the roofline, of all devices of a record together."""

    name: str
    tflops: float
    bytes_per_s: float | None


def ceilings_of(items: list[Record]) -> list[Ceiling]:
    """The distinct roofs over these cells, one per dtype and set of devices."""
    roofs: dict[str, Ceiling] = {}
    for item in items:
        for roof in filter(None, (_measured(item), _datasheet(item))):
            roofs.setdefault(roof.name, roof)
    return list(roofs.values())


def _devices(item: Record) -> list[str]:
    """The name of each distinct device."""
    found = {
        (r["host"], r["device_uuid"]): str(r["device_name"]) for r in item["world"]["ranks"] if r.get("device_uuid")
    }
    return list(found.values())


def _datasheet(item: Record) -> Ceiling | None:
    names, peak = _devices(item), peak_of(item)
    if peak is None or not names:
        return None
    bandwidths = [BANDWIDTHS.get(name) for name in names]
    known = [value for value in bandwidths if value is not None]
    kinds = ", ".join(sorted(set(names)))
    count = f"{len(names)} × " if len(names) > 1 else ""
    total = sum(known) if len(known) == len(names) else None
    return Ceiling(f"datasheet {item['config']['workload']['dtype']}, {count}{kinds}", peak, total)


def _measured(item: Record) -> Ceiling | None:
    told = item.get("ceiling")
    if not told or not told.get("gemm_tflops"):
        return None
    bandwidth = told.get("memory_gb_per_s")
    dtype, count = item["config"]["workload"]["dtype"], told["devices"]
    of = f"{count} × " if count > 1 else ""
    name = f"measured {dtype}, {of}machine {told['identity']}"
    return Ceiling(name, told["gemm_tflops"], bandwidth and bandwidth * 1e9)
