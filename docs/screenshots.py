"""The pictures in docs/images, from real runs: a sweep on three ranks, its page in Chromium, its table in a terminal.

python docs/screenshots.py [RUN]        with RUN: that run instead of a new one
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from distbench.show.report.terminal import parts
from distbench.show.runs import load

IMAGES = Path(__file__).parent / "images"
SWEEP = ["-m", "workload=square", "workload.n=128,256,512", "workload.dtype=float32,float64", "collect=none,gather"]


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else _swept(Path(folder))
        page = Path(folder) / "report.html"
        title = ["--title", "Square products on three ranks"]
        subprocess.run([sys.executable, "-m", "distbench", "report", str(run), *title, "-o", str(page)], check=True)
        for name, size in (("report", "1000,1700"), ("report-phone", "500,1000")):
            options = ["--headless=new", "--no-sandbox", "--hide-scrollbars", f"--window-size={size}"]
            wait = ["--virtual-time-budget=20000", f"--screenshot={IMAGES / f'{name}.png'}"]
            subprocess.run(["chromium", *options, *wait, page.as_uri()], check=True, stderr=subprocess.DEVNULL)
        console = Console(record=True, width=100, file=io.StringIO(), highlight=False)
        for part in parts(load([run])[0], 100):
            console.print(part)
        console.save_svg(str(IMAGES / "terminal.svg"), title="distbench report --format terminal")


def _swept(folder: Path) -> Path:
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=3", "-m", "distbench", *SWEEP]
    subprocess.run(words, check=True, cwd=folder, env=os.environ | {"LOGLEVEL": "ERROR"})
    (results,) = folder.rglob("results.jsonl")
    return results.parent


if __name__ == "__main__":
    main()
