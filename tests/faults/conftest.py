"""Says the seed, and writes docs/reliability.md after a full run."""

from __future__ import annotations

import pytest
import rows
from table import all_cases

from distbench import __version__


def pytest_report_header() -> str:
    return f"faults: seed {rows.SEED} (DISTBENCH_SEED repeats it)"


def pytest_sessionfinish(session: pytest.Session) -> None:
    if rows.ALL:
        rows.write_page(__version__, [f"{case.shown} {case.stage} {case.launcher}" for case in all_cases()])
