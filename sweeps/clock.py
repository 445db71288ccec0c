"""Time as the load sees it: the machine's monotonic clock, or a virtual one that jumps to the next event."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """`now_ns`: monotonic nanoseconds. Waiting is asyncio's own, on a loop whose time agrees with the clock."""

    def now_ns(self) -> int: ...


class RealClock:
    """CLOCK_MONOTONIC, which all processes of a machine share."""

    def now_ns(self) -> int:
        return time.monotonic_ns()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits: when nothing is ready, its time jumps to the next timer.

    Whatever runs on it with asyncio's timers runs in virtual time, from 0, with nanosecond steps, and the same way
    every time. Raises RuntimeError when everything waits for something that no timer will bring.
    """

    def __init__(self) -> None:
        self._ns = 0
        super().__init__(_JumpSelector(self))
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._ns / 1e9

    def now_ns(self) -> int:
        return self._ns

    def jump(self, seconds: float) -> None:
        self._ns = max(self._ns, round(self._ns + seconds * 1e9))


class _JumpSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("virtual time stands still: every task waits and no timer is set")
        if timeout > 0:
            self._loop.jump(timeout)
        return []


class VirtualClock:
    """The running `VirtualLoop`'s time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_ns(self) -> int:
        return self._loop.now_ns()


def run_virtual(main: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run a coroutine on a virtual loop to its end and close the loop."""
    try:
        return loop.run_until_complete(main)
    finally:
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        if pending:
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.close()
