"""Quiet instants before and after a point, and samples in between, over a scripted server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from endpoints.counters import Reading
from sweeps.clock import VirtualLoop, run_virtual
from sweeps.watch import Observed, ServerWatch

Server = Callable[[float], Reading | None]


def server(running: float, tokens: float, engine: str = "vllm") -> Reading:
    return Reading({"running": {(): running}, "generated_tokens": {(): tokens}}, {}, {}, engine)


class Scripted:
    """What a server says at each second of virtual time."""

    def __init__(self, loop: VirtualLoop, says: Server) -> None:
        self.loop, self.says, self.unread, self.cost_s, self.model = loop, says, "refused", 0.0, "m"

    async def read(self) -> Reading | None:
        return self.says(self.loop.time())


def watched(says: Server, seconds: float = 10.0) -> Observed:
    """A point that begins at 1 s and takes so long."""
    loop = VirtualLoop()

    async def point() -> Observed:
        watch = ServerWatch(Scripted(loop, says), loop.now_ns)
        await watch.before()
        await asyncio.sleep(1.0 - loop.time() if loop.time() < 1.0 else 0.0)
        watch.begin(loop.now_ns())
        await asyncio.sleep(seconds)
        return await watch.after()

    return run_virtual(point(), loop)


def test_it_reads_at_rest_and_samples_in_between() -> None:
    seen = watched(lambda t: server(4 if 1 <= t < 11 else 0, 100 + 10 * min(max(t - 1, 0), 10)))
    assert seen.before is not None and seen.before.total("generated_tokens") == 100
    assert seen.after is not None and seen.after.total("generated_tokens") == 200
    assert [round(at / 1e9) for at, _ in seen.samples] == list(range(1, 1 + len(seen.samples)))
    assert len(seen.samples) >= 9 and all(s.busy == 4 for _, s in seen.samples[:9])
    assert not seen.restless and not seen.disagree and not seen.missed and not seen.unread


def test_it_waits_for_what_is_still_running() -> None:
    """Requests that were cancelled run on for two seconds, and count."""
    seen = watched(lambda t: server(1 if 1 <= t < 13 else 0, 10 * min(max(t - 1, 0), 12)))
    assert seen.after is not None and seen.after.total("generated_tokens") == 120


def test_a_server_that_never_rests_is_called_so() -> None:
    seen = watched(lambda t: server(1, t))
    assert seen.restless
    assert seen.before is not None and seen.after is not None


@pytest.mark.parametrize(("engine", "restless"), [("vllm", False), ("sglang", False), ("llamacpp", True)])
def test_a_gauge_that_is_stale_is_no_work(engine: str, restless: bool) -> None:
    """Engines renew their gauges with their next step. llama.cpp's are live, and its counters move only at ends."""
    assert watched(lambda t: server(3, 5, engine)).restless is restless


def test_looks_that_lead_to_several_processes() -> None:
    turn = iter(range(10**9))
    assert watched(lambda t: server(0, 100 + 50 * (next(turn) % 2))).disagree


def test_a_void_point_waits_for_no_rest() -> None:
    loop = VirtualLoop()

    async def point() -> float:
        watch = ServerWatch(Scripted(loop, lambda t: server(1, t)), loop.now_ns)
        loop.call_later(0.3, watch.hurry)
        await watch.before()
        await watch.after()
        return loop.time()

    assert run_virtual(point(), loop) < 1


def test_a_look_under_way_is_not_lost() -> None:
    """What it brings is handed out once."""
    loop = VirtualLoop()

    class Slow(Scripted):
        async def read(self) -> Reading | None:
            await asyncio.sleep(0.8)
            return Reading({}, {}, {"drafts": 1.0} if 2 <= loop.time() < 11 else {})

    async def point() -> Observed:
        watch = ServerWatch(Slow(loop, lambda t: None), loop.now_ns)
        await watch.before()
        watch.begin(loop.now_ns())
        await asyncio.sleep(3.0)  # in the middle of a look
        return await watch.after()

    seen = run_virtual(point(), loop)
    assert [s.added for _, s in seen.samples] == [{"drafts": 1.0}, {"drafts": 1.0}]


def test_dear_looks_are_rare() -> None:
    loop = VirtualLoop()

    class Dear(Scripted):
        async def read(self) -> Reading | None:
            self.cost_s = 0.02
            return server(1, 0)

    async def point() -> Observed:
        watch = ServerWatch(Dear(loop, lambda t: None), loop.now_ns)
        watch.begin(loop.now_ns())
        await asyncio.sleep(100.0)
        watch.hurry()
        return await watch.after()

    assert len(run_virtual(point(), loop).samples) == 10  # 0.2 % of the time, after the first


def test_counters_that_still_move_are_not_at_rest() -> None:
    seen = watched(lambda t: server(0, min(t, 12.0)))
    assert seen.after is not None and seen.after.total("generated_tokens") == 12


def test_a_server_that_is_gone_afterwards() -> None:
    seen = watched(lambda t: server(0, 5) if t < 5 else None)
    assert seen.before is not None and seen.after is None
    assert seen.unread == "refused"


def test_a_server_that_cannot_be_read_before() -> None:
    seen = watched(lambda t: None if t < 1 else server(0, 5))
    assert seen.before is None and seen.unread == "refused"


def test_long_points_keep_few_samples() -> None:
    seen = watched(lambda t: server(1 if 1 <= t < 5001 else 0, 0), 5000.0)
    assert 300 <= len(seen.samples) <= 601
    assert seen.samples[-1][0] > 4980e9


def test_what_is_handed_out_once_is_never_dropped() -> None:
    given = iter(range(10**9))
    seen = watched(lambda t: Reading({}, {}, {"drafts": 1.0} if 1 <= t < 2001 and next(given) >= 0 else {}), 2000.0)
    assert sum(s.added.get("drafts", 0) for _, s in seen.samples) >= 1990
