"""The record: one line of strict JSON per cell, on disk before the next cell starts."""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from distbench import __version__
from distbench.launch import Launch

SCHEMA = 1
RESULTS = "results.jsonl"
PER_RANK = ("rank_s", "start_s", "phases_s")
"""What `samples` holds for each rank."""
_LONGEST_LINE = 1_000_000  # characters: a longer line's per-rank samples go to a file beside it


class Journal:
    """Appends records to results.jsonl in one folder. Safe to use from the watching threads too."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RESULTS
        self._lock = threading.Lock()

    def append(self, record: dict[str, Any]) -> None:
        """Write one line and wait until the disk has it. Raises OSError where that fails."""
        with self._lock:
            line = to_line(record)
            if len(line) > _LONGEST_LINE and record["samples"] is not None:
                line = to_line(self._without_samples(record))
            with self.path.open("ab+") as file:
                if not _ends_a_line(file):
                    file.write(b"\n")  # a run that was killed left half a line: it must not spoil this one
                file.write(line.encode(errors="backslashreplace"))  # bytes of the command line that are not UTF-8
                file.flush()
                os.fsync(file.fileno())

    def _without_samples(self, record: dict[str, Any]) -> dict[str, Any]:
        name = f"samples-{record['cell']}-{time.time_ns()}.json"
        samples = record["samples"]
        (self.path.parent / name).write_text(to_line({key: samples[key] for key in PER_RANK if key in samples}))
        summary = {key: value for key, value in samples.items() if key not in PER_RANK}
        return record | {"samples": summary | {"file": name}}


def _ends_a_line(file: IO[bytes]) -> bool:
    """True for an empty file too. Moves the position, which appending ignores."""
    end = file.seek(0, os.SEEK_END)
    if end:
        file.seek(end - 1)
    return not end or file.read(1) == b"\n"


def to_line(record: dict[str, Any]) -> str:
    """Strict JSON, one line: NaN and infinity become null."""
    return json.dumps(finite(record), allow_nan=False, ensure_ascii=False) + "\n"


def read(path: Path) -> list[dict[str, Any]]:
    """The last line of each cell (and repeat), in the order of their first; what is no record is skipped."""
    latest: dict[tuple[str, Any], dict[str, Any]] = {}
    for line in path.read_bytes().split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:  # of JSON or of UTF-8
            continue
        if isinstance(record, dict) and "cell" in record:
            latest[str(record["cell"]), record.get("repeat")] = record
    return list(latest.values())


def command(launch: Launch) -> str:
    """The command line that starts this run again; the launcher's part as far as its variables tell."""
    starts = {
        "torchrun": f"torchrun --nproc_per_node={launch.local_world_size} -m distbench",
        "openmpi": f"mpirun -np {launch.world_size} python -m distbench",
        "mpich": f"mpirun -np {launch.world_size} python -m distbench",
        "slurm": f"srun -n {launch.world_size} python -m distbench",
    }
    return " ".join([starts.get(launch.launcher, "python -m distbench"), shlex.join(sys.argv[1:])]).strip()


@functools.cache
def environment() -> dict[str, Any]:
    """What this process runs on: versions, machine, the variables that change arithmetic or communication."""
    import numpy
    import torch

    prefixes = ("OMP_", "MKL_", "OPENBLAS_", "GLOO_", "NCCL_", "CUDA_", "CUBLAS_", "THP_", "TORCH_", "KMP_", "GOMP_")
    return {
        "distbench": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None,
        "host": platform.node(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "variables": {key: value for key, value in sorted(os.environ.items()) if key.startswith(prefixes)},
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        return names[0] if names else platform.machine()
    except OSError:
        return platform.machine()


def finite(value: Any) -> Any:
    """`value` with NaN and infinity as None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
