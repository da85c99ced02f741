"""What a run holds in memory: the peak of the ranks' summed Pss against the bytes of A, B and C.

gallery (3,000,000 × 512 by 512 × 256, float64: 18.4 GB) on 3 ranks, once with its own path and once with path=shared.
Pss counts a page that several processes map once among them; it is read from /proc/*/smaps_rollup every 50 ms, or as fast
as the kernel answers (it walks the page tables: the line says how far apart the samples were). The same world with a
64 × 64 product tells what the processes themselves (interpreter, torch, stacks) hold; with fewer --rows that is a larger
part, so the goal is for the full size. One run each: memory does not drift.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _pairs import quiet_environment, show_machine, torchrun

GOAL = 1.1
ROWS = 3_000_000
EVERY_S = 0.05


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=ROWS, help="rows of the gallery (default 3000000)")
    options.add_argument("--ranks", type=int, default=3)
    arguments = options.parse_args()
    show_machine()
    base, _, _ = peak(arguments.ranks, "workload=square", "workload.n=64")
    print(f"{arguments.ranks} ranks with a 64 × 64 product: {base / 1e9:.3f} GB")
    gallery = ("workload=gallery", f"workload.m={arguments.rows}")
    met = [
        told(name, arguments.rows, base, *peak(arguments.ranks, *gallery, *more))
        for name, more in (("gallery", ()), ("gallery, path=shared", ("path=shared",)))
    ]
    return 0 if all(met) else 1


def told(name: str, rows: int, base: int, peak_bytes: int, apart_s: float, work_bytes: int) -> bool:
    """Print one line; returns whether the goal is met."""
    ratio = peak_bytes / work_bytes
    verdict = f": {'PASS' if ratio <= GOAL else 'MISS'}" if rows >= ROWS else f" at {ROWS} rows"
    print(
        f"{name:<22} peak {peak_bytes / 1e9:.3f} GB ÷ A, B, C {work_bytes / 1e9:.3f} GB = {ratio:.4f}"
        f"  (less the processes themselves {(peak_bytes - base) / work_bytes:.4f})  read every {apart_s * 1e3:.0f} ms"
        f"  goal ≤ {GOAL:g}{verdict}",
        flush=True,
    )
    return ratio <= GOAL or rows < ROWS


def peak(ranks: int, *cell: str) -> tuple[int, float, int]:
    """(peak of the ranks' summed Pss in bytes, mean seconds between samples, bytes of A, B and C) of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = torchrun(ranks, "-m", "distbench", *cell, "measure=quick", f"hydra.run.dir={folder}")
        with open(Path(folder) / "output", "w+", encoding="utf-8") as output:
            launcher = subprocess.Popen(command, cwd=folder, env=quiet_environment(), stdout=output, stderr=output)
            highest, samples, first = 0, 0, time.monotonic()
            while launcher.poll() is None:
                began = time.monotonic()
                highest, samples = max(highest, sum(map(pss_bytes, children(launcher.pid)))), samples + 1
                time.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))
            apart_s = (time.monotonic() - first) / samples
            if launcher.returncode:
                output.seek(0)
                sys.exit(f"the run failed:\n{output.read()}")
        record = json.loads((Path(folder) / "results.jsonl").read_text().splitlines()[-1])
        return highest, apart_s, record["work"]["bytes"]


def children(pid: int) -> list[int]:
    """The processes that a process started: torchrun's are the ranks."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []  # it has just ended


def pss_bytes(pid: int) -> int:
    """A process's proportional share of the memory that it maps; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    sys.exit(main())
