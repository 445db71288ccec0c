"""Is the client itself keeping up? What `point.json` says of it, from the vitals of its processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from endpoints.vitals import Vitals, VitalsWatch
from endpoints.workers import WorkerPool


class ClientMonitor:
    """Watches this process, and the workers where there are any, while a point runs."""

    def __init__(self, pool: WorkerPool | None = None) -> None:
        self._pool = pool
        self._own = VitalsWatch()

    def start(self) -> None:
        self._own.start()
        if self._pool is not None:
            self._pool.watch()

    async def stop(self, since_ns: int | None = None, until_ns: int | None = None) -> dict[str, Any]:
        """What was seen between two times on the monotonic clock (None: from the start, to the end)."""
        own = self._own.stop()
        workers = await self._pool.vitals() if self._pool is not None else None
        return client_health(own, workers, since_ns, until_ns)


def client_health(
    own: Vitals, workers: Sequence[Vitals | None] | None, since_ns: int | None = None, until_ns: int | None = None
) -> dict[str, Any]:
    """The keys of `client` that processes answer for. `workers`: None where this process carries the load itself.

    Of several processes the worst counts: `loop_lag_ms_p99`, `cpu_fraction` (of one core) and `cpu_wait_fraction` (of
    the time; null where the system does not tell) are the highest of any. `sockets` is the sum.
    """
    span = (since_ns or 0, until_ns or 2**63 - 1)
    parent = _one(own, span)
    rows = [parent] if workers is None else [_one(v, span) if v is not None else _UNKNOWN for v in workers]
    everyone = rows if workers is None else [parent, *rows]
    return {
        "loop_lag_ms_p99": _most(everyone, "loop_lag_ms_p99"),
        "cpu_fraction": _most(everyone, "cpu_fraction"),
        "cpu_wait_fraction": _most(everyone, "cpu_wait_fraction"),
        "gc_pause_ms_max": _most(everyone, "gc_pause_ms_max"),
        "sockets": sum(row["sockets"] or 0 for row in rows),
        "workers": len(rows),
        "per_worker": [{"worker": number, **row} for number, row in enumerate(rows)],
        "parent": None if workers is None else parent,
    }


_UNKNOWN: dict[str, Any] = dict.fromkeys(
    ("loop_lag_ms_p99", "cpu_fraction", "cpu_wait_fraction", "gc_pause_ms_max", "sockets")
)


def _one(vitals: Vitals, span: tuple[int, int]) -> dict[str, Any]:
    due, late = np.asarray(vitals.due), np.asarray(vitals.late)
    late = late[(due >= span[0]) & (due < span[1])]
    cpu, wait = _shares(vitals, span)
    return {
        "loop_lag_ms_p99": float(np.percentile(late, 99, method="lower")) / 1e6 if len(late) else None,
        "cpu_fraction": cpu,
        "cpu_wait_fraction": wait,
        "gc_pause_ms_max": vitals.gc_pause_ns / 1e6,
        "sockets": vitals.sockets,
    }


def _shares(vitals: Vitals, span: tuple[int, int]) -> tuple[float | None, float | None]:
    """CPU used and waited for, as shares of the time between the first and last marks in the span (of all marks, when
    the span is too short to hold two)."""
    marks = np.asarray(vitals.marks).reshape(-1, 3)
    inside = marks[(marks[:, 0] >= span[0]) & (marks[:, 0] <= span[1])]
    first, last = (inside if len(inside) > 1 else marks)[[0, -1]]
    wall = last[0] - first[0]
    if wall <= 0:
        return None, None
    cpu = float((last[1] - first[1]) / wall)
    return cpu, None if first[2] < 0 else float((last[2] - first[2]) / wall)


def _most(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    return max((row[name] for row in rows if row[name] is not None), default=None)
