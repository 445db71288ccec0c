"""Quiet instants before and after a point, and samples in between, over a scripted server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from endpoints.counters import Reading
from sweeps.clock import VirtualLoop, run_virtual
from sweeps.watch import Observed, ServerWatch

Server = Callable[[float], Reading | None]


def server(running: float, tokens: float) -> Reading:
    return Reading({"running": {(): running}, "generated_tokens": {(): tokens}})


class Scripted:
    """What a server says at each second of virtual time."""

    def __init__(self, loop: VirtualLoop, says: Server) -> None:
        self.loop, self.says, self.unread = loop, says, "refused"

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
    assert [round(at / 1e9) for at, _ in seen.samples] == list(range(1, 10))
    assert all(s.busy == 4 for _, s in seen.samples)
    assert not seen.restless_before and not seen.restless_after and not seen.unread


def test_it_waits_for_what_is_still_running() -> None:
    """Requests that were cancelled run on for two seconds, and count."""
    seen = watched(lambda t: server(1 if 1 <= t < 13 else 0, 10 * min(max(t - 1, 0), 12)))
    assert seen.after is not None and seen.after.total("generated_tokens") == 120
    assert not seen.restless_after


def test_a_server_that_never_rests_is_called_so() -> None:
    seen = watched(lambda t: server(1, t))
    assert seen.restless_before and seen.restless_after
    assert seen.before is not None and seen.after is not None


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
