"""How many CPU threads a rank may use, and what it really uses."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path


def affinity() -> list[int]:
    """The cores that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def cgroup_quota() -> float | None:
    """Cores' worth of CPU time that this process's control group allows (cgroup v2 and v1); None: no limit."""
    quotas = [quota for quota in (_v2_quota(), _v1_quota()) if quota is not None]
    return min(quotas) if quotas else None


def share_of(mask: list[int], local_masks: list[list[int]], quota: float | None) -> int:
    """Threads for one rank: the cores of its mask ÷ the local ranks whose masks overlap it, within the quota's share.

    local_masks: the masks of all ranks of the host, this one's among them.
    """
    cores = set(mask)
    sharing = sum(1 for other in local_masks if cores & set(other))
    threads = len(cores) // max(1, sharing)
    if quota is not None:
        threads = min(threads, math.floor(quota / max(1, len(local_masks))))
    return max(1, threads)


def users_omp_threads(launcher: str) -> int | None:
    """OMP_NUM_THREADS as the user set it, None where a launcher did or nobody.

    torchrun sets it to 1 for its workers; the environment that torchrun itself was started with tells the two apart.
    """
    text = os.environ.get("OMP_NUM_THREADS")
    if launcher == "torchrun":
        text = _environment_of(os.getppid()).get("OMP_NUM_THREADS")
    digits = (text or "").split(",")[0].strip()
    return int(digits) if digits.isdecimal() and int(digits) > 0 else None


def set_threads(threads: int) -> None:
    """Give torch and every loaded BLAS this many threads."""
    import numpy  # noqa: F401  (its BLAS must be loaded for threadpoolctl to find it)
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(threads)
    threadpool_limits(limits=threads)


def thread_pools() -> list[dict[str, object]]:
    """The thread pools of this process as they are: library, version, threads, the kernels that BLAS chose."""
    from threadpoolctl import threadpool_info

    kept = ("internal_api", "version", "num_threads", "architecture", "threading_layer", "prefix")
    pools = [{key: pool[key] for key in kept if pool.get(key) is not None} for pool in threadpool_info()]
    return sorted(pools, key=lambda pool: str(pool))


def torch_kernels() -> dict[str, object]:
    """What torch multiplies with on the CPU: libraries (one linked statically is no pool), instructions, threads."""
    import torch

    told = libraries_of(torch.__config__.show())
    capability = torch.backends.cpu.get_cpu_capability()
    return {"libraries": told, "capability": capability, "threads": torch.get_num_threads()}


def libraries_of(config: str) -> list[str]:
    """BLAS and oneDNN with their versions, as torch.__config__.show() tells them; BLAS alone where it tells no version."""
    found = [
        f"{name} {match[1]}"
        for name, pattern in (("MKL", r"Math Kernel Library Version ([\d.]+)"), ("oneDNN", r"MKL-DNN v([\d.]+)"))
        if (match := re.search(pattern, config))
    ]
    blas = re.search(r"BLAS_INFO=(\w+)", config)
    if blas and not any(name.lower().startswith(blas[1].lower()) for name in found):
        found.insert(0, {"open": "OpenBLAS"}.get(blas[1], blas[1]))
    return found


def _environment_of(pid: int) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def read(path: Path) -> str | None:
    """A small file's text, stripped; None where there is none to read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def cgroup_folders() -> list[Path]:
    """This process's cgroup (v2) and every one above it: a limit of any of them counts."""
    return _folders("", Path("/sys/fs/cgroup"))


def cpu_cgroup_folders() -> list[Path]:
    """The same for the cgroups that share out CPU time, of v1 and of v2."""
    return [*_folders("cpu", Path("/sys/fs/cgroup/cpu")), *cgroup_folders()]


def _folders(controller: str, root: Path) -> list[Path]:
    """The cgroup that /proc names for a controller of v1 ('' is v2's tree), and every one above it."""
    groups = [line.split(":", 2) for line in (read(Path("/proc/self/cgroup")) or "").splitlines()]
    own = next((path for _, names, path in groups if controller in names.split(",")), "/")
    folder = root / own.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent == root or root in parent.parents)]


def _v2_quota() -> float | None:
    quotas = []
    for folder in cgroup_folders():
        quota, _, period = (read(folder / "cpu.max") or "max").partition(" ")
        if quota.isdecimal():
            quotas.append(int(quota) / int(period or 100000))
    return min(quotas) if quotas else None


def _v1_quota() -> float | None:
    quotas = []
    for folder in _folders("cpu", Path("/sys/fs/cgroup/cpu")):
        quota, period = read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us")
        if quota is not None and period is not None and int(quota) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas) if quotas else None
