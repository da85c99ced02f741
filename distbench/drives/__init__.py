"""Drives: how one process drives its devices. One table; a drive makes the timed path of all the units of a process."""

from __future__ import annotations

from collections.abc import Callable

from distbench.config import Drive
from distbench.drives.in_order import in_order
from distbench.drives.threads import in_threads
from distbench.timed import Timed
from distbench.unit import Unit

DRIVES: dict[Drive, Callable[[list[Unit], bool], Timed]] = {
    Drive.process: in_order,
    Drive.loop: in_order,
    Drive.threads: in_threads,
}
"""(the process's units, whether there is a collect phase) → the timed path."""
