"""One rank fails in each way there is, at a stage: the run ends soon and says who, where, when and why.

Catches a run that waits for ever, a process that stays behind, a reason that names nobody, a record that is lost.
In every run the faults come at one stage, chosen by DISTBENCH_SEED or a printed seed; with DISTBENCH_FAULTS=all
(`make test-faults`) at every stage, and docs/reliability.md is written.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from helpers import end_all
from rows import ALL, SEED, tell_row
from table import STAGES, Case, Ended, all_cases, begin, cases_at, check, end

CASES = all_cases() if ALL else cases_at(random.Random(SEED).choice(STAGES))
SIDE_BY_SIDE = 4  # most of their time is waiting


@pytest.fixture(scope="module")
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Case, Future[Ended]]]:
    chosen = {item.callspec.params["case"] for item in request.session.items if item.fspath == request.fspath}
    marks = {case: uuid.uuid4().hex for case in CASES if case in chosen}
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:

        def one(case: Case) -> Ended:
            return end(case, begin(case, tmp_path_factory.mktemp("fault"), marks[case]))

        futures = {case: pool.submit(one, case) for case in marks}
        try:
            yield futures
        finally:
            pool.shutdown(cancel_futures=True)
    left = [told for mark in marks.values() for told in end_all(mark)]
    assert not left


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_fault_in_one_rank(ended: dict[Case, Future[Ended]], case: Case) -> None:
    outcome = ended[case].result()
    print(f"seed {os.environ.get('DISTBENCH_SEED', SEED)}: {' | '.join(outcome.row())}")
    check(outcome)
    tell_row("ranks", outcome.row())
