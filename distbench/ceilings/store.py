"""Ceilings kept per machine, and a later result's share of them.

A file per machine and kind of device: <folder>/<identity>.json, in ceilings.folder, else $XDG_CACHE_HOME/distbench/ceilings,
else ~/.cache/distbench/ceilings. The identity is a hash of what decides the rates, so that hosts of one kind share it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import psutil

from distbench import cores, record

_DRIVER = Path("/proc/driver/nvidia/version")
_GIB = 2**30


def machine(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What rank 0's host is, as far as it decides rates; ranks: the record's."""
    import numpy
    import torch

    host = ranks[0]["host"]
    parts = {
        part["device_uuid"]: part["device_name"] for rank in ranks if rank["host"] == host for part in rank["parts"]
    }
    names = sorted({name for name in parts.values() if name})
    driver = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", cores.read(_DRIVER) or "") if names else None
    return {
        "device_names": names,
        "cpu": record.cpu_name(),
        "cores": len({core for rank in ranks if rank["host"] == host for core in rank["affinity"]}),
        "memory_gib": round(psutil.virtual_memory().total / _GIB),
        "driver": driver[0] if driver else None,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def identity(told: dict[str, Any]) -> str:
    """Twelve hex digits that name a machine."""
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def folder(wanted: str | None) -> Path:
    """Where ceilings are kept."""
    if wanted is not None:
        return Path(wanted).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "distbench" / "ceilings"


def keep(folders: list[Path], told: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Write the ceilings of a machine into each folder; returns what the record says of it (paths, or why not)."""
    name = identity(told)
    content = {"identity": name, "time": record.now(), "machine": told, "ceilings": rows}
    files, reason = [], None
    for place in folders:
        try:
            files.append(_replace(place / f"{name}.json", content))
        except OSError as error:  # a home that cannot be written is no reason to lose what was measured
            reason = f"{place}: {error.strerror}"
    return {"identity": name, "machine": told, "files": files, "reason": reason}


def _replace(path: Path, content: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(record.to_line(content))
    Path(part).replace(path)
    return str(path)


def kept(place: Path, name: str) -> dict[str, Any] | None:
    """What is kept of a machine; None where nothing is, or nothing that can be read."""
    try:
        told = json.loads((place / f"{name}.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) and isinstance(told.get("ceilings"), list) else None


def best(rows: list[dict[str, Any]], name: str, dtype: str | None = None) -> dict[str, Any] | None:
    """The highest verified row of this name and dtype."""
    fitting = [row for row in rows if row["name"] == name and row["value"] and row["verified"]]
    fitting = [row for row in fitting if dtype is None or row["dtype"] == dtype]
    return max(fitting, key=lambda row: float(row["value"]), default=None)


def units_of(ranks: list[dict[str, Any]]) -> int:
    """How many times a row's value these ranks have: distinct GPUs, else hosts."""
    gpus = {(rank["host"], part["device_uuid"]) for rank in ranks for part in rank["parts"] if part["device_uuid"]}
    return len(gpus) or len({rank["host"] for rank in ranks})


def compared(kept_rows: dict[str, Any] | None, told: dict[str, Any]) -> dict[str, Any] | None:
    """For the record: the ceilings of its devices together, and the GEMM's share; None where none are kept.

    told: the record of a cell that went well.
    """
    if kept_rows is None:
        return None
    ranks, rows = told["world"]["ranks"], kept_rows["ceilings"]
    product = best(rows, "GEMM", told["config"]["workload"]["dtype"])
    copy = best(rows, "memory copy")
    count = units_of(ranks)
    tflops = None if product is None else product["value"] * count
    gemm = told["result"]["gemm_tflops"]
    copies = told["world"]["size"] if told["config"]["split"] == "none" else 1  # every rank has all of A, B and C
    intensity = told["work"]["flop"] / (told["work"]["bytes"] * copies)
    bandwidth = None if copy is None else copy["value"] * count
    roof = tflops if bandwidth is None or tflops is None else min(tflops, intensity * bandwidth / 1e3)
    return {
        "identity": kept_rows["identity"],
        "time": kept_rows["time"],
        "devices": count,
        "gemm": product and {key: product[key] for key in ("dtype", "engine", "threads", "n", "value", "per")},
        "gemm_tflops": tflops,
        "memory_gb_per_s": bandwidth,
        "flop_per_byte": intensity,
        "roof_tflops": roof,
        "share": gemm / tflops if gemm and tflops else None,
        "roof_share": gemm / roof if gemm and roof else None,
    }
