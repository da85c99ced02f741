"""Threads per rank: the mask, who shares it, and the limit of the control group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distbench import cores


@pytest.mark.parametrize(
    ("mask", "local_masks", "quota", "threads"),
    [
        ([0, 1, 2, 3], [[0, 1, 2, 3]], None, 4),
        ([0, 1, 2, 3], [[0, 1, 2, 3]] * 2, None, 2),  # two ranks that share four cores
        ([0, 1], [[0, 1], [2, 3]], None, 2),  # bound apart: nobody shares
        ([0, 1, 2, 3], [[0, 1, 2, 3]] * 3, None, 1),  # rounded down: never more threads than cores
        ([0], [[0]] * 8, None, 1),  # more ranks than cores
        ([0, 1, 2, 3], [[0, 1, 2, 3]], 2.5, 2),  # the quota of the control group
        ([0, 1, 2, 3], [[0, 1, 2, 3]] * 2, 2.0, 1),
        ([0, 1], [[0, 1], [2, 3]], 3.0, 1),  # a quota is shared even where masks are not
        ([0, 1, 2, 3], [[0, 1, 2, 3]], 0.5, 1),
        ([0, 1, 2, 3], [[0, 1, 2, 3]], 64.0, 4),
    ],
)
def test_a_rank_gets_its_share_of_the_cores_and_of_the_quota(
    mask: list[int], local_masks: list[list[int]], quota: float | None, threads: int
) -> None:
    assert cores.share_of(mask, local_masks, quota) == threads


def test_the_mask_is_the_kernels() -> None:
    assert cores.affinity() == sorted(os.sched_getaffinity(0))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file system with nothing in it but what the test writes."""
    monkeypatch.setattr(cores, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_no_control_group_is_no_limit(root: Path) -> None:
    assert cores.cgroup_quota() is None


def test_version_2_reads_its_own_group(root: Path) -> None:
    write(root, "/proc/self/cgroup", "0::/pod/one\n")
    write(root, "/sys/fs/cgroup/pod/one/cpu.max", "250000 100000\n")
    assert cores.cgroup_quota() == 2.5


def test_version_2_heeds_a_tighter_group_above(root: Path) -> None:
    write(root, "/proc/self/cgroup", "0::/pod/one\n")
    write(root, "/sys/fs/cgroup/pod/one/cpu.max", "800000 100000\n")
    write(root, "/sys/fs/cgroup/pod/cpu.max", "150000 50000\n")
    write(root, "/sys/fs/cgroup/cpu.max", "max 100000\n")
    assert cores.cgroup_quota() == 3.0


def test_version_2_in_a_container_of_its_own_reads_the_root(root: Path) -> None:
    write(root, "/proc/self/cgroup", "0::/\n")
    write(root, "/sys/fs/cgroup/cpu.max", "400000 100000\n")
    assert cores.cgroup_quota() == 4.0


def test_version_2_without_a_limit_is_none(root: Path) -> None:
    write(root, "/proc/self/cgroup", "0::/pod\n")
    write(root, "/sys/fs/cgroup/pod/cpu.max", "max 100000\n")
    assert cores.cgroup_quota() is None


def test_version_1_divides_quota_by_period(root: Path) -> None:
    write(root, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n")
    write(root, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert cores.cgroup_quota() == 1.5


def test_version_1_heeds_its_own_group_and_those_above(root: Path) -> None:
    write(root, "/proc/self/cgroup", "4:memory:/other\n2:cpu,cpuacct:/pod/one\n0::/\n")
    for folder, quota in (("", "-1"), ("pod/", "150000"), ("pod/one/", "300000")):
        write(root, f"/sys/fs/cgroup/cpu/{folder}cpu.cfs_quota_us", quota)
        write(root, f"/sys/fs/cgroup/cpu/{folder}cpu.cfs_period_us", "100000")
    assert cores.cgroup_quota() == 1.5


def test_version_1_without_a_limit_is_none(root: Path) -> None:
    write(root, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(root, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert cores.cgroup_quota() is None


@pytest.mark.parametrize(
    ("text", "threads"), [("4", 4), ("4,2", 4), (" 8 ", 8), ("0", None), ("", None), ("many", None), ("-1", None)]
)
def test_the_users_omp_num_threads_counts_where_it_is_a_number(
    text: str, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert cores.users_omp_threads("single") == threads


def test_torchruns_own_omp_num_threads_is_not_taken_for_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # what torchrun sets for its workers
    monkeypatch.setattr(cores, "_environment_of", lambda pid: {"PATH": "/bin"})
    assert cores.users_omp_threads("torchrun") is None
    monkeypatch.setattr(cores, "_environment_of", lambda pid: {"OMP_NUM_THREADS": "6"})
    assert cores.users_omp_threads("torchrun") == 6


def test_the_environment_of_a_process_is_read_as_it_was_started_with() -> None:
    assert cores._environment_of(os.getpid()).get("PATH") == os.environ.get("PATH")
    assert cores._environment_of(2**22 + 1) == {}
