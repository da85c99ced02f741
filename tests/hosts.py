"""Several hosts on one machine: each a network namespace with its own name, /etc/hosts and network card.

They are joined by a switch (a bridge) in the first of them, `login`. Nothing outside sees them: addresses and ports are
the same in each test session and yet never clash, and abstract Unix sockets are apart as on real hosts. Processes,
memory and files are shared, and so is the clock.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import uuid
from pathlib import Path

from helpers import missing, require, require_root

LOGIN = "login"
NODES = ("n0", "n1")
_NET = "192.168.77"  # above 127 in order: gloo lets the lower address connect, and a loopback must not win by luck
_NET6 = "fd77::"


def require_namespaces() -> None:
    """Skip (on CI: fail) where hosts cannot be made."""
    require_root()
    for program in ("ip", "nsenter", "unshare", "mount"):
        require(program)
    probe = f"dbt-{uuid.uuid4().hex[:8]}"
    told = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if told.returncode != 0:
        missing(f"no network namespaces here: {told.stderr.strip()}")
    subprocess.run(["ip", "netns", "delete", probe], check=True)


class Hosts:
    """`login`, `n0` and `n1`, up and reaching each other by name; `close` removes them."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="distbench-hosts-"))
        self.names = (LOGIN, *NODES)
        self._token = f"dbt{uuid.uuid4().hex[:6]}"
        table = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        table += [f"{self.address(name)} {name}" for name in self.names]
        (self.folder / "hosts").write_text("\n".join(table) + "\n")
        for name in self.names:
            _ip("netns", "add", self._space(name))
            self._in(name, "link", "set", "lo", "up")
        self._in(LOGIN, "link", "add", "eth0", "type", "bridge")
        for name in NODES:
            peer = ("peer", "name", f"to-{name}", "netns", self._space(LOGIN))
            _ip("link", "add", "eth0", "netns", self._space(name), "type", "veth", *peer)
            self._in(LOGIN, "link", "set", f"to-{name}", "master", "eth0", "up")
        for name in self.names:
            self._in(name, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            self._in(name, "address", "add", f"{self.address6(name)}/64", "dev", "eth0", "nodad")
            self._in(name, "link", "set", "eth0", "up")
            # What stands before a command to run it there; each word execs the next, so the process id stays.
            # Not `ip netns exec`: that mounts a /sys of its own, without cgroups.
            script = self.folder / f"on-{name}"
            inner = f'hostname {name}; mount --bind {shlex.quote(str(self.folder / "hosts"))} /etc/hosts; exec "$@"'
            script.write_text(
                f"#!/bin/sh\nexec nsenter --net=/run/netns/{self._space(name)} "
                f'unshare --uts --mount sh -c {shlex.quote(inner)} on-{name} "$@"\n'
            )
            script.chmod(0o755)
        # What mpirun calls in place of ssh: agent <host> <words of a shell command>.
        self.agent.write_text(f'#!/bin/sh\nhost=$1; shift\nexec {self.folder}/on-"$host" sh -c "$*"\n')
        self.agent.chmod(0o755)

    @property
    def agent(self) -> Path:
        return self.folder / "agent"

    def on(self, name: str) -> list[str]:
        """The words before a command that run it on that host."""
        return [str(self.folder / f"on-{name}")]

    def address(self, name: str) -> str:
        return f"{_NET}.{1 + self.names.index(name)}"

    def address6(self, name: str) -> str:
        return f"{_NET6}{1 + self.names.index(name)}"

    def cut(self, name: str) -> None:
        """Pull that host's cable: nothing reaches it and nothing comes from it, without a word to either side."""
        self._in(LOGIN, "link", "set", f"to-{name}", "nomaster")

    def mend(self, name: str) -> None:
        self._in(LOGIN, "link", "set", f"to-{name}", "master", "eth0")

    def narrow(self, name: str, rate: str) -> None:
        """Let that host's cable carry no more than `rate` (as tc writes it), in both directions."""
        bucket = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms")
        for space, device in ((LOGIN, f"to-{name}"), (name, "eth0")):
            _run("tc", "-n", self._space(space), "qdisc", "add", "dev", device, *bucket)

    def widen(self, name: str) -> None:
        for space, device in ((LOGIN, f"to-{name}"), (name, "eth0")):
            _run("tc", "-n", self._space(space), "qdisc", "delete", "dev", device, "root")

    def close(self) -> None:
        for name in self.names:
            _ip("netns", "delete", self._space(name))
        subprocess.run(["rm", "-rf", str(self.folder)], check=True)

    def _space(self, name: str) -> str:
        return f"{self._token}-{name}"

    def _in(self, name: str, *words: str) -> None:
        _ip("-n", self._space(name), *words)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    told = subprocess.run(words, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert told.returncode == 0, f"{' '.join(words)}: {told.stderr}"
