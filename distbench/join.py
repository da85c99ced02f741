"""How ranks find each other: the run's store, at the launcher's address or at one that this host's ranks agree on."""

from __future__ import annotations

import os
import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil

from distbench.launch import Launch

if TYPE_CHECKING:
    from torch.distributed import Store

    from distbench.alive import Watch


def open_store(launch: Launch, watch: Watch) -> Store:
    """The store that the groups are formed through; the watch begins to beat through a connection of its own.

    Raises RuntimeError or OSError where rank 0's store cannot be reached; the watch ends a process that hangs here.
    """
    from torch.distributed import PrefixStore, TCPStore

    timeout = timedelta(seconds=watch.timeout_s)
    host = launch.address or "127.0.0.1"
    serves = launch.rank == 0 and not launch.store_is_served
    port = launch.port if launch.port is not None else (0 if serves else _ask_port(launch, watch.timeout_s))
    store = TCPStore(host, port, launch.world_size, serves, timeout, wait_for_workers=False)
    if launch.port is None and serves:
        port = store.port
        _tell_port(launch, port)
    prefix = f"distbench/{launch.restarts}"  # a restarted world must not read what the last one left

    def connect() -> Store:
        client = TCPStore(host, port, launch.world_size, False, timeout, wait_for_workers=False)
        return PrefixStore(f"{prefix}/watch", client)

    watch.beat_through(connect)
    return PrefixStore(prefix, store)


def prefer_loopback() -> None:
    """All ranks are on this host: gloo need not resolve its name. The user's own choice stands."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    loopback = psutil.net_if_stats().get("lo")
    if loopback is not None and loopback.isup:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def _meeting_point(launch: Launch) -> str:
    """An abstract Unix socket: private to the host, gone with its owner, nothing to clean up."""
    return f"\0distbench-{os.getuid()}-{launch.job}"


def _tell_port(launch: Launch, port: int) -> None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(_meeting_point(launch))
    except OSError as error:
        raise RuntimeError(f"another distbench run of this launch is already on this host: {error}") from None
    server.listen(launch.world_size)

    def serve() -> None:
        for _ in range(launch.world_size - 1):
            connection, _ = server.accept()
            with connection:
                connection.sendall(str(port).encode())
        server.close()

    threading.Thread(target=serve, daemon=True).start()


def _ask_port(launch: Launch, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            try:
                client.connect(_meeting_point(launch))
                return int(client.recv(16))
            except (ConnectionRefusedError, FileNotFoundError):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"rank 0 did not come within {timeout_s:g} s") from None
        time.sleep(0.02)
