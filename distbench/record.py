"""The record: one line of strict JSON per cell, on disk before the next cell starts."""

from __future__ import annotations

import errno
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

import psutil

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
        self._file: tuple[int, int] | None = None
        """Which file holds the records so far: its device and inode."""

    def append(self, record: dict[str, Any]) -> None:
        """Write one line and wait until the disk has it. Raises OSError where that fails, and where the records before
        this one are there no more: Hydra makes a removed folder anew, and nothing would tell that they are lost.
        """
        with self._lock:
            if self._file is not None and self._file != _identity(self.path):
                raise OSError(errno.ENOENT, "the file that holds the earlier records was removed or replaced")
            line = to_line(record)
            if len(line) > _LONGEST_LINE and record["samples"] is not None:
                line = to_line(self._without_samples(record))
            with self.path.open("ab+") as file:
                if not _ends_a_line(file):
                    file.write(b"\n")  # a run that was killed left half a line: it must not spoil this one
                file.write(line.encode(errors="backslashreplace"))  # bytes of the command line that are not UTF-8
                file.flush()
                os.fsync(file.fileno())
            self._file = _identity(self.path)

    def _without_samples(self, record: dict[str, Any]) -> dict[str, Any]:
        name = f"samples-{record['cell']}-{time.time_ns()}.json"
        samples, telemetry = record["samples"], record.get("telemetry")
        beside = {key: samples[key] for key in PER_RANK if key in samples}
        summary = {key: value for key, value in samples.items() if key not in beside}
        if telemetry:
            beside["telemetry_series"] = [rank["series"] for rank in telemetry]
            telemetry = [{key: value for key, value in rank.items() if key != "series"} for rank in telemetry]
            record = record | {"telemetry": telemetry}
        (self.path.parent / name).write_text(to_line(beside))
        return record | {"samples": summary | {"file": name}}


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_dev, told.st_ino


def _ends_a_line(file: IO[bytes]) -> bool:
    """True for an empty file too. Moves the position, which appending ignores."""
    end = file.seek(0, os.SEEK_END)
    if end:
        file.seek(end - 1)
    return not end or file.read(1) == b"\n"


def now() -> str:
    """The record's `time`: UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def to_line(record: dict[str, Any]) -> str:
    """Strict JSON, one line: NaN and infinity become null."""
    return json.dumps(finite(record), allow_nan=False, ensure_ascii=False) + "\n"


def read(path: Path) -> list[dict[str, Any]]:
    """A cell's last line each (of each of its launches, where they are repeated), in the order of their first.

    What is no record (half a line that a killed run left) is skipped, and stderr says so.
    """
    return parse(path.read_bytes(), path)


def parse(content: bytes, path: Path = Path(RESULTS), first: int = 1) -> list[dict[str, Any]]:
    """`read`, from bytes; `path` names them and `first` is the number of their first line in it."""
    latest: dict[tuple[str, int], dict[str, Any]] = {}
    for number, line in enumerate(content.split(b"\n"), first):
        try:
            record = json.loads(line) if line else None
        except ValueError:  # of JSON or of UTF-8
            print(f"distbench: {path}: line {number} is no record (a run was killed there?): skipped", file=sys.stderr)
            continue
        if isinstance(record, dict) and "cell" in record:
            latest[record["cell"], record.get("repeat") or 0] = record
    return list(latest.values())


def command(launch: Launch) -> str:
    """The command line that starts this run again."""
    return shlex.join(command_words(launch))


def command_words(launch: Launch) -> list[str]:
    """The words of `command`: the launcher's own where its process is this one's parent, else as its variables tell."""
    program = ["python", "-m", "distbench"]
    starts = {
        "torchrun": ["torchrun", f"--nproc_per_node={launch.local_world_size}", *program[1:]],
        "openmpi": ["mpirun", "-np", str(launch.world_size), *program],
        "mpich": ["mpirun", "-np", str(launch.world_size), *program],
        "slurm": ["srun", "-n", str(launch.world_size), *program],
    }
    arguments = sys.argv[1:]
    typed = _parents_words(arguments) if launch.launcher in ("torchrun", "openmpi", "mpich") else None
    return typed or [*starts.get(launch.launcher, program), *arguments]


def _parents_words(arguments: list[str]) -> list[str] | None:
    """What was typed to start the launcher; None where the parent process is something else."""
    try:
        words = psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        return None
    before, after = words[: len(words) - len(arguments)], words[len(words) - len(arguments) :]
    if sorted(after) != sorted(arguments) or not any("distbench" in word for word in before[1:]):
        return None
    if Path(before[0]).name.startswith("python"):  # torchrun is a script: shown by its own name
        script = Path(before[1]).name
        before = ["python", *before[1:]] if before[1].startswith("-") else [script, *before[2:]]
    return [*before, *arguments]


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
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "variables": {key: value for key, value in sorted(os.environ.items()) if key.startswith(prefixes)},
    }


@functools.cache
def cpu_name() -> str:
    """The processor as /proc/cpuinfo names it."""
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
