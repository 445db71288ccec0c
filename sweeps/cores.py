"""How many cores this process may use: by its affinity, and by the quota of its control groups, as in containers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath


def cores_here(root: Path = Path("/")) -> int:
    """Whole cores, at least one. (Affinity alone, as `os.process_cpu_count` has it, knows nothing of a quota.)"""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    quota = cpu_quota(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Seconds of CPU a second that Linux's control groups allow; None without a limit, or where they are not known.

    A group's limit holds for all below it, so the least of a path counts. `root` is that of /proc and /sys.
    """
    found = [quota for folder, read in _groups(root) if (quota := read(folder)) is not None]
    return min(found, default=None)


def _groups(root: Path) -> Iterator[tuple[Path, Callable[[Path], float | None]]]:
    """The folders of this process's groups and of those above, and how each is read."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mounted = root / "sys/fs/cgroup"
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            mounts, read = [mounted, mounted / "unified"], _second_version
        elif "cpu" in controllers.split(","):
            mounts, read = [mounted / "cpu", mounted / controllers], _first_version
        else:
            continue
        # In a container the path may be the host's, of which only the mount's root is seen.
        inside = PurePosixPath(path.lstrip("/"))
        for mount in mounts:
            for group in (inside, *inside.parents):
                yield mount / group, read


def _second_version(folder: Path) -> float | None:
    """`cpu.max`: "QUOTA PERIOD", or "max PERIOD"."""
    quota, *period = _words(folder / "cpu.max")
    return _ratio(quota, period[0] if period else "100000")


def _first_version(folder: Path) -> float | None:
    """`cpu.cfs_quota_us`, -1 without a limit, of `cpu.cfs_period_us`."""
    return _ratio(_words(folder / "cpu.cfs_quota_us")[0], _words(folder / "cpu.cfs_period_us")[0])


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split() or [""]
    except OSError:
        return [""]


def _ratio(quota: str, period: str) -> float | None:
    if not (quota.isdecimal() and period.isdecimal()) or int(quota) == 0 or int(period) == 0:
        return None
    return int(quota) / int(period)
