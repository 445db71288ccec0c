"""How late an event loop is, as a kernel timer and as a thread see it, on both kinds of loop."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable

import pytest
import uvloop

from endpoints.vitals import BEAT_NS, KernelMetronome, Metronome, ThreadMetronome, Vitals, VitalsWatch

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
METRONOMES: dict[str, Callable[[int], Metronome]] = {"thread": ThreadMetronome}
if sys.platform == "linux":
    METRONOMES["kernel"] = KernelMetronome

on_every_loop = pytest.mark.parametrize("factory", LOOPS.values(), ids=LOOPS)
by_metronome = pytest.mark.parametrize("make", METRONOMES.values(), ids=METRONOMES)


def watched(
    factory: Callable[[], asyncio.AbstractEventLoop], make: Callable[[int], Metronome], block_s: float
) -> Vitals:
    async def main() -> Vitals:
        watch = VitalsWatch(make)
        watch.start()
        await asyncio.sleep(0.1)
        time.sleep(block_s)  # noqa: ASYNC251
        await asyncio.sleep(0.1)
        return watch.stop()

    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())


@on_every_loop
@by_metronome
def test_a_stall_is_seen_by_every_beat_it_held_up(
    factory: Callable[[], asyncio.AbstractEventLoop], make: Callable[[int], Metronome]
) -> None:
    seen = watched(factory, make, 0.2)
    assert [b - a for a, b in zip(seen.due, seen.due[1:], strict=False)] == [BEAT_NS] * (len(seen.due) - 1)
    assert max(seen.late) > 0.19e9 - BEAT_NS
    # 200 ms hold up 18 beats, the first by nearly all of it, each next one by 11 ms less.
    assert sum(late > 0.1e9 for late in seen.late) >= 8
    assert min(seen.late) >= 0
    assert min(seen.late) < 0.01e9


def test_marks_follow_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(asyncio.new_event_loop, ThreadMetronome, 0.4)
    times, cpu = list(seen.marks[::3]), list(seen.marks[1::3])
    assert len(times) >= 3
    assert times == sorted(times)
    assert cpu == sorted(cpu)


async def test_the_collector_is_watched() -> None:
    watch = VitalsWatch()
    watch.start()
    gc.collect()
    seen = watch.stop()
    assert seen.gc_pause_ns > 0
    count = len(gc.callbacks)
    watch.start()
    assert len(gc.callbacks) == count + 1
    watch.stop()
    assert len(gc.callbacks) == count
