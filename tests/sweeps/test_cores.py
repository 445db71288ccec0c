"""The cores a process may use, by what the kernel says in small files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sweeps.cores import cores_here, cpu_quota

V1 = "4:memory:/docker/1f\n3:cpu,cpuacct:/docker/1f\n1:name=systemd:/docker/1f\n"
CASES: dict[str, tuple[dict[str, str], float | None]] = {
    "no control groups": ({}, None),
    "no file": ({"proc/self/cgroup": "0::/\n"}, None),
    "second version, no limit": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
    "a container": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
    "the default period": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000\n"}, 2.0),
    "a group above is tighter": (
        {
            "proc/self/cgroup": "0::/user.slice/mine\n",
            "sys/fs/cgroup/user.slice/mine/cpu.max": "800000 100000\n",
            "sys/fs/cgroup/user.slice/cpu.max": "300000 100000\n",
        },
        3.0,
    ),
    "both versions mounted": (
        {"proc/self/cgroup": "2:cpu:/\n0::/a\n", "sys/fs/cgroup/unified/a/cpu.max": "50000 100000\n"},
        0.5,
    ),
    "first version": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu,cpuacct/docker/1f/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/1f/cpu.cfs_period_us": "100000\n",
        },
        2.5,
    ),
    "first version, the host's path": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "40000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "20000\n",
        },
        2.0,
    ),
    "first version, no limit": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        None,
    ),
    "nonsense": ({"proc/self/cgroup": "what?\n0::/\n", "sys/fs/cgroup/cpu.max": "a b c\n"}, None),
}


@pytest.mark.parametrize(("files", "quota"), CASES.values(), ids=CASES)
def test_quota(files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == quota
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert cores_here(tmp_path) == (here if quota is None else max(1, min(here or 1, int(quota))))
