"""A scripted endpoint in virtual time, and short ways to write down requests by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from endpoints.dialects import RequestShape
from endpoints.outcomes import Outcome
from endpoints.transport import Call, Exchange, Progress
from profiles.loading import Sweep, load_sweep
from profiles.workloads import Message, Prompt
from sweeps.clock import VirtualClock, VirtualLoop, run_virtual
from sweeps.columns import table_of
from sweeps.load import ClosedLoop, LoadPlan, LoadResult, Sent
from sweeps.prompts import MEASURE, Planned, PromptFeed
from sweeps.requests import Fragments, Requests, requests_of

# A busy machine must not fail a test.

MS = 1_000_000


@dataclass(frozen=True)
class Reply:
    """How the scripted endpoint treats one request: tokens evenly spread over `seconds`, then `outcome`."""

    seconds: float = 1.0
    tokens: int = 4
    outcome: Outcome = Outcome.OK
    hangs: bool = False


class Scripted:
    """A transport that does as the script says. `levels`: (ns, requests in flight) after each change."""

    name = "scripted"

    def __init__(self, script: Callable[[int], Reply], *, streams: bool = True) -> None:
        self.script, self.streams = script, streams
        self.calls = self.in_flight = 0
        self.levels: list[tuple[int, int]] = []

    async def send(self, call: Call, exchange: Exchange, on_progress: Progress | None = None) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        reply = self.script(self.calls)
        self.calls += 1
        self._level(loop, +1)
        began = exchange.connected_ns = exchange.sent_ns = loop.now_ns()
        exchange.attempts, exchange.input_tokens = 1, 10
        try:
            if reply.hangs:
                await asyncio.Event().wait()
            for k in range(1, reply.tokens + 1):
                await self._until(loop, began + round(reply.seconds * 1e9 * k / reply.tokens))
                exchange.chunk_ns.append(loop.now_ns())
                exchange.text_bytes += 4
                if on_progress is not None and self.streams:
                    on_progress(k)
            exchange.outcome = reply.outcome
            if reply.outcome is Outcome.OK:
                exchange.status, exchange.output_tokens, exchange.finish_reason = 200, reply.tokens, "length"
            else:
                exchange.error = "scripted"
        finally:
            exchange.ended_ns = loop.now_ns()
            self._level(loop, -1)

    async def close(self) -> None:
        pass

    async def _until(self, loop: VirtualLoop, ns: int) -> None:
        if ns > loop.now_ns():
            woken = loop.create_future()
            loop.call_at((ns + 0.5) / 1e9, woken.set_result, None)  # the loop may be a nanosecond early
            await woken

    def _level(self, loop: VirtualLoop, change: int) -> None:
        self.in_flight += change
        self.levels.append((loop.now_ns(), self.in_flight))


@dataclass(frozen=True)
class Ran:
    result: LoadResult
    sent: list[Sent]  # by index, as they were handed over
    transport: Scripted
    loop: ClosedLoop

    @property
    def counted(self) -> list[Sent]:
        return [s for s in self.sent if s.counted]

    @property
    def seconds(self) -> tuple[float, float]:
        """t0 and t1, s."""
        window = self.result.window
        assert window.t0_ns is not None and window.t1_ns is not None
        return window.t0_ns / 1e9, window.t1_ns / 1e9

    def phase(self, name: str) -> list[Sent]:
        return [s for s in self.sent if s.phase == name]

    def outcomes(self) -> list[str]:
        return [str(s.exchange.outcome) for s in self.sent]


def make_prompts(n: int, name: str = "p") -> list[Prompt]:
    return [Prompt(f"{name}{i}", f"kind{i % 2}", (Message("user", f"{name} number {i}"),)) for i in range(n)]


def make_feed(max_tokens: int = 4, measured: int = 7, warmup: int = 2, **changes: Any) -> PromptFeed:
    asked: dict[str, Any] = {
        "system": None,
        "salted": True,
        "seed": 0,
        "arm": "a",
        "load": "c1",
        "trial": 1,
    } | changes
    shape = RequestShape("chat", "m", max_tokens, {}, {})
    return PromptFeed(make_prompts(measured), make_prompts(warmup, "w"), shape, **asked)


def drive(
    plan: LoadPlan,
    script: Callable[[int], Reply] | Reply,
    *,
    max_tokens: int = 4,
    streams: bool = True,
    limits: Callable[[ClosedLoop], str | None] = lambda _loop: None,
    stop_after: float | None = None,
    early: float = 0.0,
    remember: bool = True,
) -> Ran:
    """One point against the scripted endpoint. `early`: how much too soon the loop's own timers fire, s."""
    virtual = VirtualLoop()
    call_later = virtual.call_later
    virtual.call_later = lambda delay, *args: call_later(max(0.0, delay - early), *args)  # type: ignore[method-assign]
    transport = Scripted(script if callable(script) else lambda _n: script, streams=streams)
    loop: ClosedLoop
    kept: list[tuple[Sent, bool, str]] = []

    def keep(sent: Sent) -> None:
        if remember:
            kept.append((sent, sent.counted, sent.phase))

    clock = VirtualClock(virtual)
    loop = ClosedLoop(plan, make_feed(max_tokens), transport, clock, lambda: limits(loop), keep=keep)
    if stop_after is not None:
        virtual.call_later(stop_after, loop.stop, "asked to stop")
    result = run_virtual(loop.run(), virtual)
    assert all((s.counted, s.phase) == (counted, phase) for s, counted, phase in kept), "changed after it was kept"
    return Ran(result, sorted((s for s, *_ in kept), key=lambda s: s.planned.index), transport, loop)


def make_sent(
    index: int = 0,
    chunks: Sequence[float] = (100, 110, 120),
    *,
    sent: float = 0,
    ended: float | None = None,
    output: int | None = -1,
    tokens: Sequence[int] | None = None,
    outcome: Outcome = Outcome.OK,
    phase: str = MEASURE,
    counted: bool | None = None,
    requested: int = 3,
    due: float | None = None,
    issued: float | None = None,
    slot: int = 0,
    prompt_id: str | None = None,
    salt: str | None = None,
    category: str = "",
    **fields: Any,
) -> Sent:
    """One request by hand. Times in ms from the origin; `chunks` are arrivals; `output` -1: one token a chunk."""

    def ns(ms: float) -> int:
        return round(ms * MS)

    exchange = Exchange(
        issued_ns=ns(sent if issued is None else issued),
        connected_ns=ns(sent),
        sent_ns=ns(sent),
        ended_ns=ns(ended if ended is not None else (chunks[-1] if chunks else sent)),
        chunk_ns=[ns(c) for c in chunks],
        chunk_tokens=list(tokens) if tokens is not None else None,
        output_tokens=len(chunks) if output == -1 else output,
        outcome=outcome,
        **{"input_tokens": 10, "text_bytes": 4 * len(chunks), **fields},
    )
    call = Call(b"{}", requested, 40, index)
    planned = Planned(
        index, phase, prompt_id or f"p{index}", category, 0, salt if salt is not None else f"[{index}]", call
    )
    is_counted = phase == MEASURE if counted is None else counted
    return Sent(planned, slot, ns(sent if due is None else due), exchange, is_counted, phase)


def make_requests(*sent: Sent) -> Requests:
    return requests_of(table_of(sent, 0))


def fragments_of(r: Requests) -> list[Fragments]:
    """All blocks of a point's fragments."""
    blocks: list[Fragments] = []
    r.tally(SimpleNamespace(add=blocks.append))
    return blocks


def make_sweep(load: dict[str, Any], *, arms: dict[str, Any] | None = None, **sections: Any) -> Sweep:
    document = {
        "arms": arms or {"a": {"url": "http://127.0.0.1:1", "model": "m"}},
        "workload": {"use": "chat-short", "max_tokens": 32},
        "load": load,
        **sections,
    }
    return load_sweep(None, document, {})


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    """The helpers above, for tests, which cannot import one another's files."""
    return SimpleNamespace(
        Reply=Reply,
        Scripted=Scripted,
        drive=drive,
        feed=make_feed,
        prompts=make_prompts,
        sent=make_sent,
        requests=make_requests,
        fragments=fragments_of,
        sweep=make_sweep,
    )
