"""What all unit tests share: one world of one in this process, one thread, and an environment left as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from distbench.alive import Watch
from distbench.cores import set_threads
from distbench.launch import Launch
from distbench.world import World


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    """Fails a test that leaves os.environ changed.

    In place of tests/conftest.py's, which looks for processes too: unit tests start none, and share a process group.
    """
    before = _environment()
    yield
    after = _environment()
    leaked = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in leaked:
        os.environ.pop(name, None)
    os.environ.update({name: before[name] for name in leaked if name in before})
    if leaked:
        pytest.fail(f"left behind: {', '.join(leaked)} in os.environ")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The matrices here are small: more threads only wait for each other."""
    set_threads(1)


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """A world of one in this process: the real thing, without connections or watching threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")  # so that joining has no need to set it
        launch = Launch("single", 0, 1, 0, 1)
        alone = World(launch, Watch(launch, 60.0, 1800.0))
        alone.join()
        yield alone
        alone.leave()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
