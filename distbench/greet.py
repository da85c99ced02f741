"""Before anything else the ranks greet: rank 0 answers on a socket, and lets in only ranks of this very run.

A greeting is one line of JSON each way. Whoever is let in is told the port of the run's store, which the system chose:
so a port that is taken, one where something else answers or nothing, and a rank of another run are told at once and by
name, where a store's own client would hang or mix two runs.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import socket
import sys
import threading
import time
from importlib.metadata import version
from typing import Any, NamedTuple

from distbench import __version__
from distbench.launch import Launch

_SILENCE_S = 5.0
"""A rank 0 of ours answers within milliseconds."""
_GRACE_S = 10.0
"""After a wrong rank was sent away, the right one may still come for so long."""
_LIMIT = 65536
Hello = dict[str, Any]


class Met(NamedTuple):
    """What a rank knows once rank 0 has let it in."""

    store_port: int
    zero_address: str
    own_address: str
    zero: str
    """Rank 0 in words, for the message should it fall silent."""


class NotThisRun(RuntimeError):
    """What answers is not this run's rank 0, or a rank of it differs from the others. One line for a person."""


def hello(launch: Launch) -> Hello:
    """What a rank tells of itself: its place, and what must be equal in all ranks."""
    from distbench.clock import domain

    return {
        "distbench": __version__,
        "torch": version("torch"),
        "python": platform.python_version(),
        "size": launch.world_size,
        "job": launch.job,
        "arguments": hashlib.sha256(json.dumps(sys.argv[1:]).encode()).hexdigest()[:16],
        "shown": " ".join(sys.argv[1:])[:200],
        "rank": launch.rank,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "machine": f"{os.uname().nodename} {domain()} {_network()}",
    }


def _network() -> str:
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""


def _title(told: Hello) -> str:
    return f"rank {told.get('rank')} (host {told.get('host')}, pid {told.get('pid')})"


def difference(zero: Hello, other: Hello) -> str | None:
    """Why `other` cannot be a rank of rank 0's run; None if it can."""
    title = _title(other)
    if other.get("job") != zero["job"]:
        return f"{title} belongs to another run"
    if other.get("size") != zero["size"]:
        return f"{title} is of a world of {other.get('size')}, rank 0 of one of {zero['size']}"
    for key in ("distbench", "torch", "python"):
        if other.get(key) != zero[key]:
            return f"{title} has {key} {other.get(key)}, rank 0 has {zero[key]}"
    if other.get("arguments") != zero["arguments"]:
        return f"{title} was given other arguments ({other.get('shown')}) than rank 0 ({zero['shown']})"
    return None


class Door:
    """Rank 0's side: a listening socket and a thread that answers, until `close`."""

    def __init__(self, own: Hello, listener: socket.socket, store_port: int) -> None:
        self.arrived: dict[int, Hello] = {0: own}
        self._own, self._listener, self._store_port = own, listener, store_port
        self._turned_away: list[tuple[float, int, str]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def ranks(self) -> list[int]:
        """Those that were let in so far."""
        return list(self.arrived)

    def await_all(self) -> None:
        """Until every rank was let in; the watch ends a wait that lasts too long.

        Raises NotThisRun where a rank was sent away and no right one came in its place.
        """
        while len(self.arrived) < self._own["size"]:
            for when, rank, reason in list(self._turned_away):
                if rank not in self.arrived and time.monotonic() - when > _GRACE_S:
                    raise NotThisRun(reason)
            time.sleep(0.01)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(_SILENCE_S)
                told = _receive(connection)
                refusal = self._let_in(told) if told is not None else "not a greeting"
                answer = (
                    {"store": self._store_port, "zero": _title(self._own)} if refusal is None else {"refused": refusal}
                )
                connection.sendall(json.dumps({"distbench": __version__, **answer}).encode() + b"\n")
            except OSError:
                return  # it went away

    def _let_in(self, told: Hello) -> str | None:
        rank = told.get("rank")
        if not isinstance(rank, int) or "job" not in told:
            return "not a greeting of distbench"
        reason = difference(self._own, told)
        with self._lock:
            before = self.arrived.get(rank)
            if reason is None and before is not None and before["pid"] != told["pid"]:
                reason = (
                    f"rank {rank} has arrived already (host {before['host']}, pid {before['pid']}): another run uses "
                    "this address and port; give each run a MASTER_PORT of its own"
                )
            if reason is None:
                self.arrived[rank] = told
            elif told.get("job") == self._own["job"]:
                self._turned_away.append((time.monotonic(), rank, reason))
        return reason


def knock(own: Hello, family: socket.AddressFamily, where: Any) -> Met:
    """Greet rank 0, which lets this rank in.

    Raises OSError where nobody listens (yet), TimeoutError (an OSError) where someone does and says nothing, and
    NotThisRun where the answer is not this run's rank 0's.
    """
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(_SILENCE_S)
        client.connect(where)
        if client.getsockname() == client.getpeername() != "":  # the kernel may pick that port for this very socket
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
        client.sendall(json.dumps(own).encode() + b"\n")
        try:
            answer = _receive(client)
        except TimeoutError:
            raise NotThisRun(f"something listens there and has said nothing for {_SILENCE_S:g} s") from None
        if answer is None or not (answer.keys() >= {"store", "zero"} or "refused" in answer):
            raise NotThisRun("something other than distbench answers there")
        if "refused" in answer:
            raise NotThisRun(str(answer["refused"]))
        unix = family == socket.AF_UNIX
        return Met(
            int(answer["store"]),
            "127.0.0.1" if unix else str(client.getpeername()[0]),
            "127.0.0.1" if unix else str(client.getsockname()[0]),
            str(answer["zero"]),
        )


def _receive(connection: socket.socket) -> dict[str, Any] | None:
    """One line of JSON; None for anything else. Raises OSError and TimeoutError."""
    data = b""
    while not data.endswith(b"\n") and len(data) < _LIMIT:
        part = connection.recv(4096)
        if not part:
            break
        data += part
    try:
        told = json.loads(data)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None
