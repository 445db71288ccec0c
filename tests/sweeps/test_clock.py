"""Virtual time: it jumps from timer to timer, and says so when there is none."""

from __future__ import annotations

import asyncio
import time

import pytest

from sweeps.clock import RealClock, VirtualClock, VirtualLoop, run_virtual


def test_time_jumps_to_the_next_timer() -> None:
    loop = VirtualLoop()
    clock = VirtualClock(loop)
    seen: list[tuple[str, int]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, clock.now_ns()))

    async def main() -> str:
        await asyncio.gather(sleeper("late", 86_400.0), sleeper("soon", 0.001))
        return "done"

    began = time.monotonic()
    assert run_virtual(main(), loop) == "done"
    assert seen == [("soon", 1_000_000), ("late", 86_400_000_000_000)]
    assert time.monotonic() - began < 60
    assert loop.is_closed()


def test_waiting_for_what_never_comes_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="virtual time stands still"):
        run_virtual(asyncio.Event().wait(), VirtualLoop())


def test_the_real_clock_is_monotonic() -> None:
    clock = RealClock()
    assert clock.now_ns() <= time.monotonic_ns()
