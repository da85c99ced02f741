"""The tables that compare the cells of one sweep, each where the records are of its experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distbench.show.methods import methods_table
from distbench.show.notebook import notebook_table
from distbench.show.peak import peak_table


def sweep_table(records: list[dict[str, Any]], folder: Path | None = None) -> list[str]:
    """Lines of text; none where the records are no comparison. folder: where they lie."""
    return [*methods_table(records), *notebook_table(records), *peak_table(records, folder)]
