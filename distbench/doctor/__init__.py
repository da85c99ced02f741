"""distbench doctor: what will make numbers wrong or slow here, and what to do about it.

One table of checks, each a small function of a `Machine` that returns findings. Under a launcher every rank checks its
own host, what is the same on several ranks is told once, and what differs between ranks is a finding of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from typing import Any

from distbench import __version__, cores
from distbench.doctor import blas, cpu, gpu, memory, network, packages
from distbench.doctor.machine import Finding, Level, Machine
from distbench.launch import Launch, LaunchError, detect
from distbench.record import cpu_name

Check = Callable[[Machine], list[Finding]]

CHECKS: dict[str, Check] = {
    "busy": cpu.busy,  # first, and with all ranks asleep: the others make work of their own
    "threads": cpu.threads,
    "affinity": cpu.affinity,
    "quota": cpu.quota,
    "governor": cpu.governor,
    "numa": cpu.numa,
    "kernels": blas.kernels,
    "engines": blas.engines,
    "huge pages": memory.huge_pages,
    "locked memory": memory.locked_memory,
    "shared memory": memory.shared_memory,
    "host name": network.host_name,
    "interfaces": network.interfaces,
    "gpu": gpu.devices,
    "versions": gpu.versions,
    "extras": packages.extras,
}
_BY_HOST = ("busy", "engines")  # measured by one rank of a host while the others are quiet

Row = dict[str, Any]
"""A finding as JSON: check, level, text, remedy, and the ranks that found it."""


def main(arguments: list[str]) -> int:
    """`distbench doctor`; exit status 0 (nothing makes numbers wrong), 1 (something does), 2 (refused)."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = argparse.ArgumentParser(
        prog="distbench doctor",
        description="Say what will make numbers wrong or slow here, with the remedy. Works under torchrun, mpirun, srun.",
        epilog="Exit status: 0 nothing makes numbers wrong, 1 something does.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--verbose", action="store_true", help="a line for what is in order too")
    try:
        launch = detect(os.environ)
    except LaunchError as error:
        print(f"distbench: {error}", file=sys.stderr)
        return 2
    try:
        with ExitStack() as silence:
            if launch.rank != 0:  # every rank must see that there is nothing to do, one says why
                nowhere = silence.enter_context(open(os.devnull, "w"))
                silence.enter_context(redirect_stdout(nowhere))
                silence.enter_context(redirect_stderr(nowhere))
            options = parser.parse_args(arguments)
    except SystemExit as answered:
        return int(answered.code or 0) if launch.rank == 0 else 0
    began = time.monotonic()
    told = _together(launch) if launch.world_size > 1 else [alone(launch)]
    if launch.rank != 0:
        return 0
    rows = merged([rank["findings"] for rank in told]) + differing([rank["facts"] for rank in told])
    is_wrong = any(row["level"] == Level.wrong.value for row in rows)
    if options.json:
        print(json.dumps({"schema": 1, "ok": not is_wrong, "ranks": len(told), "findings": rows}, ensure_ascii=False))
    else:
        _print(rows, [rank["facts"] for rank in told], time.monotonic() - began, options.verbose)
    if is_wrong and launch.world_size > 1:
        from distbench.alive import write_error_file

        write_error_file("distbench doctor: " + next(row["text"] for row in rows if row["level"] == Level.wrong.value))
    return 1 if is_wrong else 0


def _together(launch: Launch) -> list[dict[str, Any]]:
    """Every rank's findings and facts, on all ranks."""
    from distbench.alive import Watch
    from distbench.member import first_line
    from distbench.world import World

    watch = Watch(launch, 60.0, 1800.0)
    watch.start()
    world = World(launch, watch)
    try:
        world.join()
    except (LaunchError, RuntimeError, OSError) as error:
        watch.end(f"the ranks could not join: {first_line(error)}", "failed")
    masks = world.gather_json(cores.affinity())
    hosts = [member.host for member in world.members]
    local = [member for member in world.members if member.host == hosts[world.rank]]
    machine = Machine(
        launch,
        os.environ,
        cores.affinity(),
        [masks[member.rank] for member in local],
        hosts=len(set(hosts)),
        local_pids={member.pid for member in local},
    )
    told = world.gather_json(examined(machine, world.barrier))
    world.leave()
    return told


def alone(launch: Launch) -> dict[str, Any]:
    """The findings and facts of a world of one."""
    return examined(Machine(launch, os.environ, cores.affinity(), [cores.affinity()]))


def examined(machine: Machine, barrier: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """One rank's findings and facts, as JSON values. barrier: all ranks are here."""
    findings: list[dict[str, str]] = []
    for name, check in CHECKS.items():
        if name in _BY_HOST:
            barrier()
        if name not in _BY_HOST or machine.launch.local_rank == 0:
            findings += [
                {"check": name, "level": item.level.value, "text": item.text, "remedy": item.remedy}
                for item in attempted(check, machine)
            ]
        if name in _BY_HOST:
            barrier()
    return {"findings": findings, "facts": facts(machine)}


def attempted(check: Check, machine: Machine) -> list[Finding]:
    """A check's findings; a check that breaks on a strange machine must not keep the others from being told."""
    try:
        return check(machine)
    except Exception as error:
        return [Finding(Level.note, f"could not be checked: {type(error).__name__}: {error}")]


def facts(machine: Machine) -> dict[str, Any]:
    """What should be the same on all ranks."""
    prefixes = ("OMP_", "MKL_", "OPENBLAS_", "GLOO_", "NCCL_", "CUDA_", "THP_", "TORCH_NCCL")
    own = ("CUDA_VISIBLE_DEVICES",)
    return {
        "host": os.uname().nodename,
        "distbench": __version__,
        "python": platform.python_version(),
        "torch": packages.installed("torch"),
        "numpy": packages.installed("numpy"),
        "processor": cpu_name(),
        "kernel": platform.release(),
        "driver": _driver(machine),
        "threads": cores.users_omp_threads(machine.launch.launcher)
        or cores.share_of(machine.mask, machine.local_masks, cores.cgroup_quota()),
        "variables": {
            key: value
            for key, value in sorted(machine.environment.items())
            if key.startswith(prefixes) and key not in own
        },
    }


def _driver(machine: Machine) -> str | None:
    text = machine.read("proc/driver/nvidia/version") or ""
    words = text.splitlines()[0].split() if text else []
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def merged(findings: list[list[dict[str, str]]]) -> list[Row]:
    """Each different finding once, with the ranks that found it; the worst first, then in the table's order."""
    rows: dict[tuple[str, ...], Row] = {}
    for rank, found in enumerate(findings):
        for item in found:
            rows.setdefault(tuple(item.values()), {**item, "ranks": []})["ranks"].append(rank)
    order = [level.value for level in Level]
    checks = list(CHECKS)
    return sorted(rows.values(), key=lambda row: (order.index(row["level"]), checks.index(row["check"])))


def differing(told: list[dict[str, Any]]) -> list[Row]:
    """A finding for each fact that is not the same on all ranks."""
    rows: list[Row] = []
    flat = [
        {key: value for key, value in one.items() if key not in ("host", "variables")}
        | {f"${key}": value for key, value in one["variables"].items()}
        for one in told
    ]
    for name in sorted({key for one in flat for key in one}):
        groups: dict[str, list[int]] = {}
        for rank, one in enumerate(flat):
            groups.setdefault(str(one.get(name, "not set")), []).append(rank)
        if len(groups) > 1:
            shown = "; ".join(f"{value} on rank{_ranks(ranks)}" for value, ranks in list(groups.items())[:4])
            level = Level.note if name == "kernel" else Level.wrong
            rows.append(
                {
                    "check": "differs",
                    "level": level.value,
                    "text": f"{name.lstrip('$')}: {shown}",
                    "remedy": "make it the same on all ranks",
                    "ranks": list(range(len(told))),
                }
            )
    return rows


def _print(rows: list[Row], told: list[dict[str, Any]], seconds: float, verbose: bool) -> None:
    hosts = sorted({one["host"] for one in told})
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    ranks = f", {len(told)} ranks" if len(told) > 1 else ""
    print(f"distbench doctor: {where}, {told[0]['processor']}{ranks}, {seconds:.1f} s")
    for row in rows:
        if row["level"] == Level.ok.value and not verbose:
            continue
        who = f" [rank{_ranks(row['ranks'])}]" if len(row["ranks"]) < len(told) and row["check"] not in _BY_HOST else ""
        remedy = f"  → {row['remedy']}" if row["remedy"] else ""
        print(f"  {row['level']:<6}{row['check']:<15}{row['text']}{who}{remedy}")
    fine = list(dict.fromkeys(row["check"] for row in rows if row["level"] == Level.ok.value))
    if fine and not verbose:
        print(f"  ok    {', '.join(fine)}")


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:6])) + (", …" if len(ranks) > 6 else "")
    return f"{'s' * (len(ranks) > 1)} {shown}"
