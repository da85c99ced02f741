"""The hosts and the Slurm that all cluster tests of a session share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hosts import Hosts, require_namespaces
from slurm import Slurm, require_slurm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in item.path.parts:
            item.add_marker("cluster")


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    """login, n0 and n1."""
    require_namespaces()
    made = Hosts()
    yield made
    made.close()


@pytest.fixture(scope="session")
def slurm(hosts: Hosts) -> Iterator[Slurm]:
    """A Slurm on those hosts."""
    require_slurm()
    made = Slurm(hosts)
    yield made
    made.close()
