"""A world of one, joined once: the process group cannot be made twice in a process."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def lone_world():
    from distbench.alive import Watch
    from distbench.launch import Launch
    from distbench.world import World

    launch = Launch("single", 0, 1, 0, 1)
    world = World(launch, Watch(launch, 60.0, 1800.0))
    world.join()
    yield world
    world.leave()
