"""The kernels that compute: measured side by side rather than guessed from names."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from distbench import cores
from distbench.doctor.machine import Finding, Level, Machine, ok

_N = 768
_ROUNDS = 8
_BEHIND = 0.8
_FORCING = ("OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "ATEN_CPU_CAPABILITY")
_NARROW = ("haswell", "zen", "sandybridge", "nehalem", "prescott", "core2", "generic")


def kernels(machine: Machine) -> list[Finding]:
    """What holds BLAS to narrower kernels than the processor has."""
    found = []
    for name in _FORCING:
        if name in machine.environment:
            text = f"{name}={machine.environment[name]} chooses the kernels, not the processor"
            found.append(Finding(Level.slow, text, f"unset {name}"))
    import numpy  # noqa: F401  (its BLAS must be loaded to be seen)

    for pool in cores.thread_pools():
        kind = str(pool.get("architecture", "")).lower()
        if pool["internal_api"] == "openblas" and kind in _NARROW and "avx512f" in machine.flags:
            text = f"OpenBLAS {pool.get('version')} runs its {pool['architecture']} kernels on a processor with AVX-512"
            found.append(Finding(Level.slow, text, "a newer numpy, or one whose OpenBLAS knows this processor"))
    return found or ok(
        ", ".join(f"{pool['internal_api']} {pool.get('architecture', '')}" for pool in cores.thread_pools())
    )


def engines(machine: Machine) -> list[Finding]:
    """One thread's rate of torch and of numpy, in turns."""
    rates = measured_gflops()
    found = []
    for dtype, told in rates.items():
        slow, fast = sorted(told, key=lambda engine: told[engine])
        if told[slow] < _BEHIND * told[fast]:
            why = ""
            if slow == "torch" and "avx512f" in machine.flags and _is_amd(machine):
                why = " (MKL takes its AVX2 path on AMD)"
            text = f"{dtype}: {slow} {told[slow]:.0f} GFLOP/s a thread, {fast} {told[fast]:.0f}{why}"
            found.append(Finding(Level.slow, text, f"engine={fast}"))
    shown = "; ".join(f"{dtype} {', '.join(f'{e} {r:.0f}' for e, r in told.items())}" for dtype, told in rates.items())
    return found or ok(f"GFLOP/s a thread: {shown}")


def measured_gflops(n: int = _N, rounds: int = _ROUNDS) -> dict[str, dict[str, float]]:
    """dtype → engine → GFLOP/s of the best of some n³ products on one thread, the engines in turns."""
    import numpy as np
    import torch
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    told: dict[str, dict[str, float]] = {}
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            for dtype in ("float64", "float32"):
                a, b = (np.random.default_rng(seed).standard_normal((n, n)).astype(dtype) for seed in (0, 1))
                c, parts = np.empty_like(a), [torch.from_numpy(part) for part in (a, b)]
                out = torch.empty_like(parts[0])
                calls: dict[str, Callable[[], Any]] = {
                    "torch": partial(torch.mm, *parts, out=out),
                    "numpy": partial(np.matmul, a, b, out=c),
                }
                best = dict.fromkeys(calls, float("inf"))
                for _ in range(rounds + 1):
                    for engine, call in calls.items():
                        began = time.perf_counter()
                        call()
                        best[engine] = min(best[engine], time.perf_counter() - began)
                told[dtype] = {engine: 2 * n**3 / seconds / 1e9 for engine, seconds in best.items()}
    finally:
        torch.set_num_threads(threads)
    return told


def _is_amd(machine: Machine) -> bool:
    return "AuthenticAMD" in (machine.read("proc/cpuinfo") or "")
