"""How ranks find each other: they greet, then share the run's store, and know who is on which host.

Under torchrun the agent serves the store. Else rank 0 does, and the others ask it for the port where it is met: at the
launcher's address, at one derived from the launch, or on one host through an abstract Unix socket.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil

from distbench.greet import Door, Hello, Met, NotThisRun, difference, hello, knock
from distbench.launch import Launch

if TYPE_CHECKING:
    from torch.distributed import Store

    from distbench.alive import Watch


def open_store(launch: Launch, watch: Watch) -> tuple[Store, Launch]:
    """The store that the groups are formed through, and the launch with its local ranks known.

    The watch begins to beat through a connection of its own, and ends a process that hangs here. Raises NotThisRun where
    the ranks are not of one run, RuntimeError or OSError where rank 0's store cannot be reached.
    """
    own = hello(launch)
    door: Door | None = None
    near: str | None
    timeout = timedelta(seconds=2 * watch.timeout_s)  # the watch comes first, and knows more
    if launch.store_is_served:
        (host, port), near = launch.places[0], _near(*launch.places[0])
        store = _client(host, port, launch, timeout)
    elif launch.rank == 0:
        store, port, door = _open_door(launch, own, timeout)
        host, near = "127.0.0.1", None
        watch.awaited = door.ranks
        door.await_all()
    else:
        port, host, near, watch.met = _find(launch, own, watch)
        store = _client(host, port, launch, timeout)
    prefix = f"distbench/{launch.restarts}"  # a restarted world must not read what the last one left
    watch.beat_through(lambda: _prefixed(f"{prefix}/watch", _client(host, port, launch, timeout)))
    shared = _prefixed(prefix, store)
    own["near"] = near
    told = _exchange(shared, launch, own, timeout)
    if door is not None:
        door.close()
    if len({other["machine"] for other in told}) == 1:
        _prefer_interface("127.0.0.1")
    elif _own_name_is_loopback() and (address := _towards_others(told, own, near)) is not None:
        _prefer_interface(address)
    return shared, launch if launch.local_is_known else _with_local_rank(launch, told)


def _client(host: str, port: int, launch: Launch, timeout: timedelta) -> Store:
    from torch.distributed import TCPStore

    return TCPStore(host, port, launch.world_size, False, timeout, wait_for_workers=False)


def _prefixed(prefix: str, store: Store) -> Store:
    from torch.distributed import PrefixStore

    return PrefixStore(prefix, store)


def _exchange(store: Store, launch: Launch, own: Hello, timeout: timedelta) -> list[Hello]:
    """Every rank's hello in rank order. Raises NotThisRun where they are not of one run."""
    where = f"{launch.address}:{launch.port}"
    if store.add(f"claim/{launch.rank}", 1) > 1:
        raise NotThisRun(
            f"another process has joined as rank {launch.rank}: two runs share the store at {where}; "
            "give each a MASTER_PORT (torchrun: --master_port, --rdzv_id) of its own"
        )
    store.set(f"hello/{launch.rank}", json.dumps(own))
    if launch.rank != 0:  # a rank that differs says so without waiting for the others
        store.wait(["hello/0"], timeout)
        if (reason := difference(json.loads(store.get("hello/0")), own)) is not None:
            raise NotThisRun(reason)
    keys = [f"hello/{rank}" for rank in range(launch.world_size)]
    store.wait(keys, timeout)
    told: list[Hello] = [json.loads(raw) for raw in store.multi_get(keys)]
    for other in told:
        if (reason := difference(told[0], other)) is not None:
            raise NotThisRun(reason)
    return told


# --- rank 0 ----------------------------------------------------------------------------------------------------------


def _open_door(launch: Launch, own: Hello, timeout: timedelta) -> tuple[Store, int, Door]:
    from torch.distributed import TCPStore

    listener = _listen(launch)  # before the store: a port that is taken is told at once
    store = TCPStore("127.0.0.1", 0, launch.world_size, True, timeout, wait_for_workers=False)
    return store, store.port, Door(own, listener, store.port)


def _listen(launch: Launch) -> socket.socket:
    if not launch.places:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.bind(_meeting_point(launch))
        except OSError as error:
            raise NotThisRun(f"another rank 0 of this launch is already on this host ({error.strerror})") from None
        server.listen(launch.world_size)
        return server
    if launch.address is None and all(_is_elsewhere(host) for host, _ in launch.places):
        raise NotThisRun(
            f"rank 0 is on {os.uname().nodename}, not where {launch.launcher} says ({launch.places[0][0]}): set "
            "MASTER_ADDR to rank 0's host, and MASTER_PORT"
        )
    ports = list(dict.fromkeys(port for _, port in launch.places))
    for port in ports:
        try:
            dual = socket.has_dualstack_ipv6()
            return socket.create_server(
                ("", port), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual, backlog=1024
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise NotThisRun(f"cannot listen on port {port}: {error.strerror}") from None
    raise NotThisRun(
        f"port {' and '.join(map(str, ports))} is taken on {os.uname().nodename} by another program or another run: "
        "choose another MASTER_PORT"
    )


# --- the other ranks -------------------------------------------------------------------------------------------------


def _find(launch: Launch, own: Hello, watch: Watch) -> Met:
    """Tries each place in turn until the watch ends it."""
    why: dict[str, str] = {}
    watch.unreached = lambda: "; ".join(f"{where}: {reason}" for where, reason in list(why.items())[:3])
    while True:
        for where, attempt in _attempts(launch, own, why):
            try:
                return attempt()
            except NotThisRun as error:
                why[where] = str(error)
                if launch.address is not None or not launch.places:  # the one place there is
                    raise NotThisRun(f"{where}: {error}" if launch.places else str(error)) from None
            except OSError as error:  # not there yet
                why[where] = error.strerror or str(error)
        time.sleep(0.02 if not launch.places else 0.1)


Attempt = tuple[str, Callable[[], Met]]


def _attempts(launch: Launch, own: Hello, why: dict[str, str]) -> list[Attempt]:
    if not launch.places:
        return [("this host", lambda: knock(own, socket.AF_UNIX, _meeting_point(launch)))]
    found: list[Attempt] = []
    for host, port in launch.places:
        try:
            known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            why[f"{host}:{port}"] = f"no such host name ({error.strerror})"
            continue
        for family, _, _, _, where in known:
            found.append((f"{host}:{port}", lambda family=family, where=where: knock(own, family, where)))  # type: ignore[misc]
    return found


def _meeting_point(launch: Launch) -> str:
    """An abstract Unix socket: private to the host, gone with its owner, nothing to clean up."""
    return f"\0distbench-{os.getuid()}-{launch.job}"


# --- hosts -----------------------------------------------------------------------------------------------------------


def _with_local_rank(launch: Launch, told: list[Hello]) -> Launch:
    here = [other["rank"] for other in told if other["machine"] == told[launch.rank]["machine"]]
    return replace(launch, local_rank=here.index(launch.rank), local_world_size=len(here))


def _prefer_interface(address: str) -> None:
    """Gloo need not resolve this host's name, which often leads nowhere or back to itself. The user's choice stands."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    wanted = _plain(address)
    up = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        if name in up and up[name].isup and any(_plain(entry.address) == wanted for entry in addresses):
            os.environ["GLOO_SOCKET_IFNAME"] = name
            return


def _plain(address: str) -> str:
    """Without a zone, and an IPv4 address in IPv6's clothes (::ffff:10.0.0.1) as itself."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def _own_name_is_loopback() -> bool:
    try:
        found = socket.getaddrinfo(os.uname().nodename, None, type=socket.SOCK_STREAM)
    except OSError:
        return True
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def _is_elsewhere(host: str) -> bool:
    """True if `host` is surely not this host: a name that Debian maps to 127.0.1.1, or one unknown here, may be."""
    try:
        found = {_plain(str(entry[4][0])) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    own = {_plain(entry.address) for entries in psutil.net_if_addrs().values() for entry in entries}
    return not found & own and not any(_is_loopback(address) for address in found)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(_plain(address)).is_loopback
    except ValueError:
        return False


def _towards_others(told: list[Hello], own: Hello, near: str | None) -> str | None:
    """This host's address towards the other hosts; on rank 0's host, MASTER_ADDR may lead to the loopback only."""
    theirs = [other["near"] for other in told if other["machine"] != own["machine"] and other["near"]]
    reached = [address for address in theirs if not _is_loopback(address)]
    return _near(reached[0], 9) if reached else near  # 9: discard; nothing is sent


def _near(host: str, port: int) -> str | None:
    """This host's address towards `host`; nothing is sent."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return None
