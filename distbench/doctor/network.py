"""How the ranks will find and reach each other."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading

import psutil

from distbench.doctor.machine import Finding, Level, Machine, ok

_PATIENCE_S = 2.0
_VIRTUAL = ("docker", "br-", "veth", "virbr", "cni", "flannel", "ifb", "tun", "tap", "dummy")


def host_name(machine: Machine, name: str | None = None) -> list[Finding]:
    """Whether this host's name leads to an address that others can reach: gloo listens there."""
    name = name or os.uname().nodename
    addresses = _resolve(name)
    several = machine.hosts > 1
    if "GLOO_SOCKET_IFNAME" in machine.environment:
        return ok(f"GLOO_SOCKET_IFNAME={machine.environment['GLOO_SOCKET_IFNAME']}: the host's name is not asked")
    level = Level.wrong if several else Level.note
    remedy = f"GLOO_SOCKET_IFNAME={_likely() or '<interface>'}, or the address in /etc/hosts"
    if addresses is None:
        return [Finding(level, f"the name {name} is not resolved within {_PATIENCE_S:g} s: joining hangs", remedy)]
    if not addresses:
        return [Finding(level, f"the name {name} has no address", remedy)]
    if all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        return [Finding(level, f"the name {name} leads to {addresses[0]}: other hosts cannot reach that", remedy)]
    return ok(f"{name} is {addresses[0]}")


def interfaces(machine: Machine) -> list[Finding]:
    """The interfaces that gloo and NCCL are told to use, or may choose among."""
    here = psutil.net_if_stats()
    found = []
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        for told in (machine.environment.get(variable) or "").split(","):
            exact = told.lstrip("=")
            if not told or told.startswith("^"):
                continue
            prefix_will_do = variable == "NCCL_SOCKET_IFNAME" and not told.startswith("=")
            fits = [name for name in here if name == exact or (prefix_will_do and name.startswith(exact))]
            if not any(here[name].isup for name in fits):
                what = "is down" if fits else "does not exist"
                remedy = f"{variable}={_likely() or '<interface>'}"
                found.append(Finding(Level.wrong, f"{variable}={told}: that interface {what}", remedy))
            if exact == "lo" and machine.hosts > 1:
                found.append(
                    Finding(Level.wrong, f"{variable}=lo with ranks on {machine.hosts} hosts", f"unset {variable}")
                )
    choices = _real()
    if not found and len(choices) > 1 and "NCCL_SOCKET_IFNAME" not in machine.environment:
        level = Level.slow if machine.hosts > 1 else Level.note
        best = max(choices, key=lambda name: here[name].speed)
        text = f"{len(choices)} interfaces ({', '.join(choices)}): with ranks on several hosts each library picks for itself"
        found.append(Finding(level, text, f"GLOO_SOCKET_IFNAME={best} NCCL_SOCKET_IFNAME={best}"))
    return found or ok(f"interfaces: {', '.join(choices) or 'loopback only'}")


def _real() -> list[str]:
    """Interfaces that are up, have an IPv4 or global IPv6 address and are no container's."""
    stats = psutil.net_if_stats()
    return [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if name != "lo"
        and not name.startswith(_VIRTUAL)
        and name in stats
        and stats[name].isup
        and any(address.family in (socket.AF_INET, socket.AF_INET6) for address in addresses)
    ]


def _likely() -> str | None:
    return next(iter(_real()), None)


def _resolve(name: str) -> list[str] | None:
    """The addresses of a name; empty: it has none; None: no answer in time. In a thread: it cannot be interrupted."""
    answers: list[list[str]] = []

    def ask() -> None:
        try:
            answers.append(sorted({str(item[4][0]) for item in socket.getaddrinfo(name, None)}))
        except OSError:
            answers.append([])

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return answers[0] if answers else None
