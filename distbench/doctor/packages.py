"""What is installed, and what is not."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from distbench.doctor.machine import Finding, Level, Machine, ok

EXTRAS = (
    ("nvidia-ml-py", "nvml", "clocks, power and heat of GPUs"),
    ("plotly", "report", "distbench report's plots"),
    ("scipy", "report", "distbench report's and compare's statistics"),
    ("hydra-submitit-launcher", "submitit", "sweeps as batch jobs"),
)
"""(package, extra, what it is for)."""


def extras(machine: Machine) -> list[Finding]:
    """Optional packages that are missing; cupy comes in one package for each CUDA version."""
    found = [
        Finding(Level.note, f"{package} is not installed: {purpose}", f"pip install 'distbench[{extra}]'")
        for package, extra, purpose in EXTRAS
        if installed(package) is None and (machine.has_gpu or extra != "nvml")
    ]
    if machine.has_gpu and not any(installed(f"cupy{suffix}") for suffix in ("", "-cuda11x", "-cuda12x", "-cuda13x")):
        found.append(Finding(Level.note, "cupy is not installed: engine=cupy", "pip install cupy-cuda13x (or 12x)"))
    return found or ok("every extra is installed")


def installed(package: str) -> str | None:
    """Its version; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
