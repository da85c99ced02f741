"""Going on with a run that ended early: which of its cells stand, and the command line that goes on.

`run.resume=<folder>` names the run. A world that torchrun restarted finds the folder of the attempt before it in the
store of torchrun's agent, which outlives the ranks.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distbench import __version__, record
from distbench.launch import Launch

if TYPE_CHECKING:
    from torch.distributed import Store

KEY = "run.resume"
_HANDED_ON = "folder"


@dataclass
class Past:
    """What the folder of an earlier launch, or of an earlier world of this launch, holds."""

    folder: Path
    since: int = 0
    """Bytes of results.jsonl that lay there before this launch: what follows is by earlier worlds of this launch."""
    before: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per cell its last record by other launches."""
    restarted: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per cell its last record by this launch."""

    def standing(self, cell: str) -> dict[str, Any] | None:
        """The record that stands in for running the cell; None where it is to run.

        ok stands. Anything this launch recorded before torchrun restarted it stands too, else a cell that takes a rank
        down would do it again in every world.
        """
        if cell in self.restarted:
            return self.restarted[cell]
        told = self.before.get(cell)
        return told if told is not None and told["status"] == "ok" else None

    def note(self) -> str | None:
        """What a person should know of the old records: another schema or version wrote them."""
        others = {
            f"distbench {(told.get('environment') or {}).get('distbench')}, schema {told.get('schema')}"
            for told in self.before.values()
        } - {f"distbench {__version__}, schema {record.SCHEMA}"}
        if not others:
            return None
        return (
            f"records of {self.folder.name} are by {'; '.join(sorted(others))}; "
            f"this is distbench {__version__}, schema {record.SCHEMA}"
        )


def folder_of(value: str) -> Path:
    """The folder that run.resume names: a run's folder, or its results.jsonl. Raises ValueError with a line for a person."""
    path = Path(value).expanduser().absolute()
    if path.is_file() and path.name == record.RESULTS:
        path = path.parent
    if not path.is_dir():
        raise ValueError(f"{KEY}={value}: no such folder; name a run's folder, or its {record.RESULTS}")
    results = path / record.RESULTS
    signs = (results, path / ".hydra", path / "multirun.yaml")
    try:
        if not any(sign.exists() for sign in signs) and any(path.iterdir()):
            raise ValueError(f"{KEY}={value}: no run's folder, there is no {record.RESULTS} in it")
        if results.exists():
            results.open("rb").close()
    except OSError as error:
        raise ValueError(f"{KEY}={value}: cannot be read: {error.strerror}") from None
    if not os.access(results if results.exists() else path, os.W_OK):
        raise ValueError(f"{KEY}={value}: cannot be written to, and new records are added there")
    return path


def past_of(folder: Path, since: int | None = None) -> Past:
    """Read what lies in a run's folder. since: where this launch's own records begin, None: there are none."""
    past = Past(folder)
    path = folder / record.RESULTS
    content = path.read_bytes() if path.exists() else b""
    past.since = len(content) if since is None else since
    past.before = {told["cell"]: told for told in record.parse(content[: past.since], path)}
    own, first = content[past.since :], content[: past.since].count(b"\n") + 1
    past.restarted = {told["cell"]: told for told in record.parse(own, path, first)}
    return past


# --- torchrun --max-restarts -----------------------------------------------------------------------------------------


def taken_over(launch: Launch) -> Past | None:
    """What the worlds before this one left, if torchrun restarted it; None where it is the first, or left nothing."""
    if launch.restarts == 0 or not launch.store_is_served:
        return None
    store = _agents_store(launch)
    if not store.check([_HANDED_ON]):
        return None
    told = json.loads(store.get(_HANDED_ON).decode())
    folder = Path(told["folder"])
    return past_of(folder, told["since"]) if folder.is_dir() else None  # rank 0 may have moved to another host


def hand_on(launch: Launch, folder: Path) -> None:
    """Tell the world that torchrun may start after this one where the records are."""
    if not launch.store_is_served:
        return
    store = _agents_store(launch)
    if not store.check([_HANDED_ON]):
        results = folder / record.RESULTS
        since = results.stat().st_size if results.exists() else 0
        store.set(_HANDED_ON, json.dumps({"folder": str(folder), "since": since}))


def _agents_store(launch: Launch) -> Store:
    from torch.distributed import PrefixStore, TCPStore

    assert launch.address is not None
    assert launch.port is not None
    client = TCPStore(launch.address, launch.port, None, False, timedelta(seconds=20), wait_for_workers=False)
    return PrefixStore("distbench/launch", client)


# --- the command line ------------------------------------------------------------------------------------------------


def command(launch: Launch, folder: Path) -> str:
    """The shell command that goes on with the run whose records lie in `folder`."""
    here = Path.cwd()
    shown = str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)
    words = [word for word in record.command_words(launch) if not word.lstrip("+").startswith(f"{KEY}=")]
    return shlex.join([*words, f"{KEY}={quoted(shown)}"])


def quoted(text: str) -> str:
    """`text` as a value in Hydra's grammar: bare where that is safe, else in quotes."""
    if re.fullmatch(r"[A-Za-z_./-][\w./-]*", text, re.ASCII):
        return text
    escaped = re.sub(r"(\\+)(?='|$)", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"
