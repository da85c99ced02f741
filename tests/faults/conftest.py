"""Says the seed, and writes docs/reliability.md after a full run in which all went well."""

from __future__ import annotations

import pytest
import rows

from distbench import __version__


def pytest_report_header() -> str:
    return f"faults: seed {rows.SEED} (DISTBENCH_SEED repeats it)"


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if rows.ALL and exitstatus == 0 and set(rows.ROWS) == set(rows.TITLES):
        rows.write_page(__version__)
