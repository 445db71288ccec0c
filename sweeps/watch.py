"""Watching the server of one point: its counters at quiet instants before and after, its gauges in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from endpoints.counters import COUNTERS, Reading

_PERIOD_S = 1.0
_MOST_SAMPLES = 600  # then every second one goes, and they are taken half as often
_SETTLED_S = 0.25  # between two looks that must agree
_MOST_LOOKS = 20  # at most so many for a quiet instant


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of a server: readings at rest `before` warmup and `after` the drain (None, with the reason in
    `unread`, where there is none), and `samples`: (ns from the point's origin, reading) in between.

    `restless`: the reading is of a moment at which requests were still running or counters still moved.
    """

    before: Reading | None = None
    after: Reading | None = None
    samples: tuple[tuple[int, Reading], ...] = ()
    restless_before: bool = False
    restless_after: bool = False
    unread: str = "no page of metrics was found"


class Source(Protocol):
    """Where readings come from. `unread`: why the last one was None."""

    unread: str

    async def read(self) -> Reading | None: ...


@dataclass(slots=True)
class ServerWatch:
    """Before, during and after one point. `now_ns`: the clock of the point."""

    source: Source
    now_ns: Callable[[], int]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _before: tuple[Reading | None, bool] = (None, False)
    _unread: str = ""
    _origin_ns: int = 0
    _samples: list[tuple[int, Reading]] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    async def before(self) -> None:
        """Read the counters at rest, before anything is sent."""
        self._before = await self._at_rest()
        self._unread = self.source.unread if self._before[0] is None else ""

    def begin(self, origin_ns: int) -> None:
        """Sample from now on."""
        self._origin_ns = origin_ns
        self._task = asyncio.create_task(self._sample())

    async def after(self) -> Observed:
        """Stop sampling, and read the counters once what was sent has ended."""
        await self.stop()
        (before, restless_before), (after, restless_after) = self._before, await self._at_rest()
        unread = self._unread or (self.source.unread if after is None else "")
        return Observed(before, after, tuple(self._samples), restless_before, restless_after, unread)

    async def stop(self) -> None:
        """Stop sampling."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _at_rest(self) -> tuple[Reading | None, bool]:
        """Two looks that agree, of a server that says it does nothing; (the last look, True) where that never comes.

        Engines fill their counters in when a request ends, or a moment later.
        """
        last = await self.source.read()
        for _ in range(_MOST_LOOKS):
            if last is None:
                return None, False
            await self.sleep(_SETTLED_S)
            found = await self.source.read()
            if found is None:
                return last, False
            if not found.busy and not found.added and _counts(found) == _counts(last):
                return _sum(last, found), False
            last = _sum(last, found)
        return last, True

    async def _sample(self) -> None:
        period = _PERIOD_S
        while True:
            await self.sleep(period)
            if (found := await self.source.read()) is not None:
                self._samples.append((self.now_ns() - self._origin_ns, found))
            if len(self._samples) > _MOST_SAMPLES and not any(found.added for _, found in self._samples):
                del self._samples[::2]
                period *= 2


def _counts(reading: Reading) -> dict[str, float | None]:
    return {quantity: reading.total(quantity) for quantity in COUNTERS}


def _sum(earlier: Reading, later: Reading) -> Reading:
    """The later one, with what was handed out to the earlier one too."""
    if not earlier.added:
        return later
    added = {q: earlier.added.get(q, 0.0) + later.added.get(q, 0.0) for q in {*earlier.added, *later.added}}
    return replace(later, added=added)
