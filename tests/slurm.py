"""A real Slurm of two nodes, n0 and n1, on the hosts of hosts.py: munged, slurmctld and two slurmd of its own.

Two cores and two tasks' room per node. Everything it keeps lies in its own folder; `close` ends what it started.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers import MARK, is_launchers, require
from hosts import LOGIN, NODES, Hosts

_CONF = """\
ClusterName=test
SlurmctldHost=login
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
KillWait=5
MinJobAge=300
JobRequeue=1
NodeName=n[0-1] CPUs={cpus} RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""
_DAEMONS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")


def require_slurm() -> None:
    for program in _DAEMONS:
        require(program)


class Slurm:
    """A running cluster; `on` its hosts' login node srun and sbatch reach it."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.folder = Path(tempfile.mkdtemp(prefix="distbench-slurm-"))
        self.folder.chmod(0o755)
        self._daemons: list[subprocess.Popen[bytes]] = []
        (self.folder / "slurm.conf").write_text(_CONF.format(folder=self.folder, cpus=os.cpu_count() or 1))
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o400)
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid"}
        files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        words = [f"--{option}={self.folder / name}" for option, name in files.items()]
        self._daemon(LOGIN, ["munged", "--foreground", "--force", *words])
        self._await(lambda: (self.folder / "munge.socket").exists(), "munged")
        conf = str(self.folder / "slurm.conf")
        self._daemon(LOGIN, ["slurmctld", "-D", "-f", conf])
        for node in NODES:
            self._daemon(node, ["slurmd", "-D", "-f", conf, "-N", node])
        self._await(lambda: self.ask("sinfo", "--noheader", "--Node", "--format=%T").split() == ["idle"] * 2, "nodes")

    @property
    def env(self) -> dict[str, str]:
        """What a process needs to talk to this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def on_login(self, *words: str) -> list[str]:
        return [*self.hosts.on(LOGIN), *words]

    def ask(self, *words: str) -> str:
        """What a Slurm command says on the login node; empty where it fails."""
        told = subprocess.run(self.on_login(*words), capture_output=True, text=True, env={**os.environ, **self.env})
        return told.stdout if told.returncode == 0 else ""

    def submit(
        self, script: Path, *options: str, arguments: Sequence[str] = (), env: dict[str, str] | None = None
    ) -> int:
        """sbatch in the current folder; the job's number."""
        words = self.on_login("sbatch", "--parsable", *options, str(script), *arguments)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the job's python and torchrun
        variables = {**os.environ, "PATH": path, **self.env, **(env or {})}
        told = subprocess.run(words, capture_output=True, text=True, env=variables)
        assert told.returncode == 0, told.stderr
        return int(told.stdout)

    def state(self, job: int) -> dict[str, str]:
        """What scontrol knows of a job: JobState, ExitCode, Restarts, …"""
        words = self.ask("scontrol", "--oneliner", "show", "job", str(job)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def await_job(self, job: int, timeout_s: float = 90, states: Sequence[str] = ()) -> dict[str, str]:
        """The job's end, or its coming to one of `states`."""
        wanted = tuple(states) or ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
        deadline = time.monotonic() + timeout_s
        while True:
            state = self.state(job)
            if state.get("JobState") in wanted:
                return state
            if time.monotonic() > deadline:
                self.ask("scancel", str(job))
                pytest.fail(f"job {job} is {state.get('JobState')} after {timeout_s:g} s, not {' or '.join(wanted)}")
            time.sleep(0.1)

    def close(self) -> None:
        self.ask("scancel", "--user=root", "--full")
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _daemon(self, host: str, words: list[str]) -> None:
        # It outlives the test that happens to start it, and its jobs must not inherit what that test runs under.
        clean = {name: value for name, value in os.environ.items() if name != MARK and not is_launchers(name)}
        with (self.folder / f"{words[0]}-{host}.told").open("wb") as told:
            self._daemons.append(
                subprocess.Popen(
                    [*self.hosts.on(host), *words], stdin=subprocess.DEVNULL, stdout=told, stderr=told, env=clean
                )
            )

    def _await(self, is_there: object, what: str, timeout_s: float = 30) -> None:
        assert callable(is_there)
        deadline = time.monotonic() + timeout_s
        while not is_there():
            if time.monotonic() > deadline:
                logs = [f"--- {path.name}\n{path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log"))]
                logs += [f"--- {path.name}\n{path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.told"))]
                self.close()
                pytest.fail(f"no {what} of the Slurm under test in {timeout_s:g} s\n" + "\n".join(logs))
            time.sleep(0.05)
