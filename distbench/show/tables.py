"""The tables that compare the cells of one sweep, each where the records are of its experiment."""

from __future__ import annotations

from typing import Any

from distbench.show.methods import methods_table
from distbench.show.notebook import notebook_table


def sweep_table(records: list[dict[str, Any]]) -> list[str]:
    """Lines of text; none where the records are no comparison."""
    return [*methods_table(records), *notebook_table(records)]
