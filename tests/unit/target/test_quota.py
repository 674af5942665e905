"""What containers grant of processors is read from either version of cgroups, and limits threads."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tessera import settings
from tessera.lazy import policy, threads
from tessera.target.quota import quota, threads_within
from tests.threads import torch_threads


def system(folder: Path, groups: str, **files: str) -> Path:
    """A root with files of cgroups; names have "__" for "/" and "_of_" for "."."""
    for name, text in {"proc__self__cgroup": groups, **files}.items():
        path = folder / name.replace("__", "/").replace("_of_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "granted"), [("150000 100000\n", 1.5), ("max 100000\n", math.inf), ("none", math.inf)]
)
def test_the_second_version_says_time_and_period(tmp_path: Path, text: str, granted: float) -> None:
    assert quota(system(tmp_path, "0::/\n", sys__fs__cgroup__cpu_of_max=text)) == granted


def test_the_least_of_all_groups_around_counts(tmp_path: Path) -> None:
    files = {"sys__fs__cgroup__cpu_of_max": "400000 100000", "sys__fs__cgroup__a__cpu_of_max": "200000 100000"}
    root = system(tmp_path, "0::/a/b\n", **files, sys__fs__cgroup__a__b__cpu_of_max="300000 100000")
    assert quota(root) == 2.0


@pytest.mark.parametrize("controllers", ["cpu,cpuacct", "cpu"])
def test_the_first_version_says_them_in_two_files(tmp_path: Path, controllers: str) -> None:
    root = system(tmp_path, f"4:memory:/x\n2:{controllers}:/x\n")
    folder = root / "sys/fs/cgroup" / controllers / "x"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    (folder / "cpu.cfs_quota_us").write_text("50000\n")
    assert quota(root) == 0.5
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert math.isinf(quota(root))


def test_nothing_limits_where_linux_says_nothing(tmp_path: Path) -> None:
    assert math.isinf(quota(tmp_path))


def test_threads_are_those_that_a_share_keeps_busy() -> None:
    assert [threads_within(granted) for granted in (0.5, 1.4, 1.5, 8.0, math.inf)] == [1, 1, 2, 8, None]


def test_kernels_use_no_more_threads_than_are_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_granted", lambda: 2)
    with torch_threads(3):
        assert threads.worker_count() == 2
        assert policy.is_current(2)  # what was bound for as many as there are
        assert not policy.is_current(1)
        with settings.override(threads=3):
            assert threads.worker_count() == 3  # what the user asks for
            assert not policy.is_current(2)
    with torch_threads(1):
        assert threads.worker_count() == torch.get_num_threads() == 1
