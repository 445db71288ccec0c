"""Watching the server of one point: its counters at quiet instants before and after, its gauges in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from endpoints.counters import COUNTERS, Reading, of_model

_PERIOD_S, _LONGEST_PERIOD_S = 1.0, 30.0
_SHARE = 0.002  # of the time that looking may take from the loop that stamps arrivals
_MOST_SAMPLES = 600  # then every second one goes, and they are taken half as often
_SETTLED_S = 0.25  # between two looks that must agree
_STILL_LOOKS = 4  # so many that agree stand for rest, whatever gauges say that an engine has not renewed
_REST_S = 5.0  # at most, for a quiet instant
_AT_ENDS = ("llamacpp",)  # engines whose counters move only when a request ends: still is not idle


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of a server: readings at rest `before` warmup and `after` the drain (None, with the reason in
    `unread`, where there is none), and `samples`: (ns from the point's origin, reading) in between.

    `restless`: it was at work before anything was sent. `disagree`: one look showed less than the one before it, so
    several processes answer behind the page. `missed`: a look in between brought nothing.
    """

    before: Reading | None = None
    after: Reading | None = None
    samples: tuple[tuple[int, Reading], ...] = ()
    restless: bool = False
    disagree: bool = False
    missed: bool = False
    unread: str = "no page of metrics was found"


class Source(Protocol):
    """Where readings come from. `unread`: why the last one was None; `cost_s`: what it took of this process's time in
    one piece; `model`: whose series are ours."""

    unread: str
    cost_s: float
    model: str

    async def read(self) -> Reading | None: ...


@dataclass(frozen=True, slots=True)
class _Rest:
    reading: Reading | None = None
    restless: bool = False
    disagree: bool = False


@dataclass(slots=True)
class ServerWatch:
    """Before, during and after one point. `now_ns`: the clock of the point."""

    source: Source
    now_ns: Callable[[], int]
    _before: _Rest = field(default_factory=_Rest)
    _unread: str = ""
    _origin_ns: int = 0
    _samples: list[tuple[int, Reading]] = field(default_factory=list)
    _missed: bool = False
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _hurried: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    async def before(self) -> None:
        """Read the counters at rest, before anything is sent; for at most 5 s."""
        self._before = await self._at_rest()
        self._unread = self.source.unread if self._before.reading is None else ""

    def begin(self, origin_ns: int) -> None:
        """Sample from now on."""
        self._origin_ns = origin_ns
        self._task = asyncio.create_task(self._sample())

    def hurry(self) -> None:
        """Wait for no rest any more: the point is void."""
        self._hurried.set()

    async def stop(self) -> None:
        """Stop sampling. A look under way ends first: some engines hand each count out once."""
        self._ended.set()
        if self._task is not None:
            await self._task
            self._task = None

    async def after(self) -> Observed:
        """Stop sampling, and read the counters once what was sent has ended; for at most 5 s."""
        await self.stop()
        before, after = self._before, await self._at_rest()
        unread = self._unread or (self.source.unread if after.reading is None else "")
        first, last, samples = before.reading, after.reading, self._samples
        if first is not None and last is not None:
            first, *between, last = of_model([first, *(s for _, s in samples), last], self.source.model)
            samples = [(at, s) for (at, _), s in zip(samples, between, strict=True)]
        disagree = before.disagree or after.disagree
        return Observed(first, last, tuple(samples), before.restless, disagree, self._missed, unread)

    async def _at_rest(self) -> _Rest:
        """Two looks that agree, of a server that says it does nothing, or several that agree of one whose gauges may be
        stale: engines fill their counters in when a request ends, or a moment later. Else the last look."""
        began, still, moved = self.now_ns(), 0, False
        last = await self.source.read()
        while last is not None and not self._hurried.is_set():
            await _sleep(_SETTLED_S, self._hurried)
            found = await self.source.read()
            if found is None:
                break
            if any((found.total(q) or 0.0) < (last.total(q) or 0.0) for q in COUNTERS):
                return _Rest(found, disagree=True)
            same = not found.added and all(found.total(q) == last.total(q) for q in COUNTERS)
            still, moved = (still + 1 if same else 0), moved or not same
            last = _sum(last, found)
            if same and (not found.busy or (still >= _STILL_LOOKS and found.engine not in _AT_ENDS)):
                return _Rest(last)
            if self.now_ns() - began > _REST_S * 1e9:
                return _Rest(last, restless=moved or found.engine in _AT_ENDS)
        return _Rest(last)

    async def _sample(self) -> None:
        period = _PERIOD_S
        while not await _sleep(period, self._ended):
            found = await self.source.read()
            if found is None:
                self._missed = True
            else:
                self._samples.append((self.now_ns() - self._origin_ns, found))
            if len(self._samples) > _MOST_SAMPLES and not any(found.added for _, found in self._samples):
                del self._samples[::2]
                period *= 2
            period = max(period, min(self.source.cost_s / _SHARE, _LONGEST_PERIOD_S))


async def _sleep(seconds: float, until: asyncio.Event) -> bool:
    """Whether it was ended by the event."""
    try:
        async with asyncio.timeout(seconds):
            await until.wait()
    except TimeoutError:
        return False
    return True


def _sum(earlier: Reading, later: Reading) -> Reading:
    """The later one, with what was handed out to the earlier one too."""
    if not earlier.added:
        return later
    added = {q: earlier.added.get(q, 0.0) + later.added.get(q, 0.0) for q in {*earlier.added, *later.added}}
    return replace(later, added=added)
