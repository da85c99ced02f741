"""What telemetry costs: the rate that distbench reports with its looks at the device, against the rate without them.

In one process, on the same tensors. A pair is a block of samples with telemetry and one without, in turns; each block is
long enough to hold several looks (one every 50 ms at most). A ratio below 1: telemetry slows the samples.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from time import monotonic
from typing import Any

from _pairs import exactly, join, parser, ratios, ready_cell, show_machine, take_turns, tell

CELLS = ((512, 0.4), (2048, 1.0))
"""(n, about how many seconds a block lasts)."""


class Blind:
    """Telemetry that never looks."""

    def __init__(self, state: Any) -> None:
        self.begin, self.end = state.begin, state.end

    def between(self) -> None:
        pass


def main() -> int:
    arguments = parser(__doc__).parse_args()
    from distbench import telemetry
    from distbench.config import Config, DType, Workload
    from distbench.stats import median

    world = join()
    show_machine()
    met = []
    looking = telemetry.Telemetry
    for n, block_s in CELLS:
        workload = Workload(name="square", m=n, n=n, k=n, dtype=DType.float32)
        cell = ready_cell(world, Config(workload=workload, measure=replace(exactly(10), inner="auto")))
        began = monotonic()
        taken = len(cell.measure().span_s)
        count = max(10, round(taken * block_s / (monotonic() - began)))  # votes between samples take time too
        cell.config.measure = replace(cell.config.measure, min_samples=count, max_samples=count)

        def block(kind: Any, cell: Any = cell) -> float:
            telemetry.Telemetry = kind
            try:
                return cell.plan.flop / median(cell.measure().span_s) / 1e12
            finally:
                telemetry.Telemetry = looking

        sides = {"with": lambda: block(looking), "without": lambda: block(lambda *place: Blind(looking(*place)))}
        rates = take_turns(sides, arguments.pairs)
        cell_rate = median(rates["without"]) * 1e3
        told = cell.telemetry[0]
        block_of = f"{count} samples of {cell.mode.inner} products a block"
        print(f"square {n} float32: {cell_rate:.1f} GFLOP/s, {block_of}, on {cell.units[0].device}")
        print(
            f"  the last block: {told['looks']} looks, {told['looking_s'] * 1e3:.3g} ms of {told['cpu']['elapsed_s']:.3g} s"
        )
        met.append(tell("  rate with telemetry ÷ without", ratios(rates["with"], rates["without"]), 0.995))
        cell.close()
    world.leave()
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
