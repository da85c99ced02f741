"""What the checks look at: files of the kernel, the environment, this rank's place. Tests give recorded ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path

from distbench import cores
from distbench.launch import Launch


class Level(Enum):
    """How bad a finding is."""

    wrong = "wrong"
    """Makes numbers wrong: not those of this machine, or not the same next time."""
    slow = "slow"
    """Makes them lower than the machine allows."""
    note = "note"
    """Matters for some runs only, or could not be told."""
    ok = "ok"


@dataclass(frozen=True)
class Finding:
    """What one check found, in a line; `remedy` says what to do about it."""

    level: Level
    text: str
    remedy: str = ""


def ok(text: str) -> list[Finding]:
    return [Finding(Level.ok, text)]


@dataclass(frozen=True)
class Machine:
    """One rank's view of its host."""

    launch: Launch
    environment: Mapping[str, str]
    mask: list[int]
    """The cores that this rank may run on."""
    local_masks: list[list[int]]
    """Those of all ranks of this host."""
    hosts: int = 1
    local_pids: set[int] = field(default_factory=lambda: {os.getpid()})
    """The ranks of this host as processes: what they do is not other work."""
    root: Path = field(default=Path("/"))

    def read(self, path: str) -> str | None:
        """A file's text, stripped; None where there is none."""
        return cores.read(self.root / path)

    def glob(self, pattern: str) -> list[Path]:
        return sorted(self.root.glob(pattern))

    @cached_property
    def flags(self) -> set[str]:
        """What the processor can do, as /proc/cpuinfo names it."""
        for line in (self.read("proc/cpuinfo") or "").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return set(value.split())
        return set()

    @cached_property
    def has_gpu(self) -> bool:
        """NVIDIA's driver shows a card, whatever Python packages are installed."""
        return bool(self.glob("proc/driver/nvidia/gpus/*") or self.glob("dev/nvidia[0-9]*"))

    @cached_property
    def has_infiniband(self) -> bool:
        return bool(self.glob("sys/class/infiniband/*"))
