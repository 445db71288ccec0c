"""Is the client itself keeping up? How late its event loop runs, and how much of a core it burns."""

from __future__ import annotations

import asyncio
import math
import time

_TICK_S = 0.01
_RESOLUTION_S = 0.001  # event loops round their timers up to a millisecond: that much is not lateness
_MOST = 100_000


class LoopMonitor:
    """Sleeps 10 ms over and over and notes how late it wakes, to a millisecond: the delay any send may suffer."""

    def __init__(self) -> None:
        self._late_ms: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._cpu = self._wall = 0.0

    def start(self) -> None:
        self._cpu, self._wall = time.process_time(), time.monotonic()
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(_TICK_S)
            if len(self._late_ms) < _MOST:
                self._late_ms.append(max(0.0, (time.monotonic() - before - _TICK_S - _RESOLUTION_S) * 1e3))

    def stop(self) -> dict[str, float | None]:
        """`loop_lag_ms_p99` and `cpu_fraction` (of one core) since `start`."""
        if self._task is not None:
            self._task.cancel()
        wall = time.monotonic() - self._wall
        late = sorted(self._late_ms)
        return {
            "loop_lag_ms_p99": late[math.ceil(0.99 * len(late)) - 1] if late else None,
            "cpu_fraction": (time.process_time() - self._cpu) / wall if wall > 0 else None,
        }
