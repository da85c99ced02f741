"""What a machine can do, measured: workload=ceilings. Later results on the same machine tell their share of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from distbench.ceilings import collectives, copies, costs, products
from distbench.ceilings.rows import Budget, Row
from distbench.config import Config
from distbench.place import Place
from distbench.world import World

Part = Callable[[World, Config, Place, Budget], Iterator[Row]]

PARTS: tuple[tuple[Part, float], ...] = (
    (costs.costs, 0.05),
    (copies.copies, 0.2),
    (collectives.collectives, 0.25),
    (products.products, 1.0),
)
"""What is measured, in order, and the share that each may take of the time that is left when it begins."""


def measured(world: World, config: Config, place: Place) -> list[dict[str, Any]]:
    """Measure every ceiling, within about ceilings.budget_s; all ranks call it together and get the same rows.

    Raises Wrong where a product is wrong, and CellFailed where a copy or a collective does not bring what it should.
    """
    ends_s = time.monotonic() + config.ceilings.budget_s
    rows: list[Row] = []
    for part, share in PARTS:
        budget = Budget(world, time.monotonic() + share * (ends_s - time.monotonic()))
        rows += part(world, config, place, budget)
    return [vars(row) for row in rows]
