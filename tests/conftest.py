"""What holds for every test: no launcher's variables, no network group, no process and no setting left behind."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import helpers

_OTHERS = ("PYTEST_CURRENT_TEST", "TORCH_CPP_LOG_LEVEL", "CUDA_MODULE_LOADING", "KMP_DUPLICATE_LIB_OK")
"""Set by pytest, by distbench's main for torch, and by torch and its libraries when they first use a GPU."""


@pytest.fixture(autouse=True, scope="session")
def _no_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The session runs as if typed into a fresh shell, whatever started pytest, and on a machine without ceilings."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if helpers.is_launchers(name)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job, and handed on so
    cache = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("XDG_CACHE_HOME")
    os.environ.update(kept if cache is None else kept | {"XDG_CACHE_HOME": cache})


@pytest.fixture(autouse=True)
def _leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a process, an environment variable or a process group behind."""
    mark = uuid.uuid4().hex
    before = dict(os.environ)
    had_group = _has_group()  # a session's own world, where a fixture keeps one
    os.environ[helpers.MARK] = mark
    yield
    os.environ.pop(helpers.MARK, None)
    leaks = _left_processes(mark)
    leaked = sorted({name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)})
    leaked = [name for name in leaked if name not in _OTHERS]
    os.environ.update(before)
    for name in leaked:
        if name not in before:
            os.environ.pop(name, None)
        leaks.append(f"environment variable {name}")
    if _has_group() and not had_group:
        sys.modules["torch.distributed"].destroy_process_group()
        leaks.append("a torch.distributed process group")
    if leaks:
        pytest.fail("left behind: " + "; ".join(leaks))


def _has_group() -> bool:
    """torch.distributed is initialised in this process; looks without importing torch."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def _left_processes(mark: str) -> list[str]:
    """A launcher may take a moment to reap its ranks; what then still lives is a leak, and is ended."""
    deadline = time.monotonic() + 2
    while helpers.marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"process {told}" for told in helpers.end_all(mark)]


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def marked_module(request: pytest.FixtureRequest) -> Iterator[str]:
    """A mark for runs that several tests of a module share."""
    mark = uuid.uuid4().hex
    yield mark
    if left := _left_processes(mark):
        pytest.fail(f"left behind by {request.node.name}: {'; '.join(left)}")
