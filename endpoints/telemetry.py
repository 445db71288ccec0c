"""Reading a server's counters while it is measured: which page has them, and one bounded, harmless look at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import aiohttp
from aiohttp.client import ClientSession

from endpoints.counters import Reading, reading_of, together, wanted_lines
from endpoints.engines import METRICS_PAGES
from endpoints.look import looking, read
from endpoints.target import Target, at_root, beside

_MOST_BYTES = 16 * 1024 * 1024
_SECONDS = 5.0
_PIECE = 64 * 1024  # bytes that are looked through at a time


class ServerMetrics:
    """One arm's pages of metrics, one a replica, read again and again."""

    def __init__(self, target: Target, urls: Sequence[str]) -> None:
        self.unread = ""  # why the last look brought nothing
        self.cost_s = 0.0  # of this process's time, that the last look took in one piece
        self.model = target.shape.model
        self._pages = [_Page(target, url) for url in urls]

    async def read(self) -> Reading | None:
        """One look at every replica; None, with the reason in `unread`, when one brings nothing. Never raises for what
        a server does."""
        found = await asyncio.gather(*(page.read() for page in self._pages))
        self.cost_s = max(page.cost_s for page in self._pages)
        self.unread = "; ".join(page.unread for page in self._pages if page.unread)
        readings = [reading for reading in found if reading is not None]
        return together(readings) if len(readings) == len(found) else None

    async def close(self) -> None:
        """Give its connections back."""
        for page in self._pages:
            await page.close()


class _Page:
    def __init__(self, target: Target, url: str) -> None:
        self.unread, self.cost_s = "", 0.0
        self._target, self._url = target.towards(url), url
        self._stack = AsyncExitStack()
        self._session: ClientSession | None = None

    async def read(self) -> Reading | None:
        self.unread = ""
        if self._session is None:
            opened, _ = await self._stack.enter_async_context(looking(self._target))
            self._session = opened
        try:
            page = await read(self._session, self._target, self._url, most=_MOST_BYTES, seconds=_SECONDS)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as exc:
            self._miss(str(exc) or type(exc).__name__)
            return None
        if page.status != 200:
            self._miss(f"it answers {page.status}")
            return None
        found = await self._parsed(page.body)
        if found is None:
            self._miss("it names no counter that is known")
        return found

    async def _parsed(self, body: bytes) -> Reading | None:
        """Piece by piece, so that bytes of the load that arrive meanwhile are stamped in between."""
        self.cost_s, kept, at = 0.0, [], 0
        while at < len(body):
            began = time.perf_counter()
            end = body.find(b"\n", at + _PIECE) + 1 if body[:1] != b"[" else 0
            kept.append(wanted_lines(body[at : end or len(body)], self._target.metrics))
            at = end or len(body)
            self.cost_s = max(self.cost_s, time.perf_counter() - began)
            await asyncio.sleep(0)
        began = time.perf_counter()
        # Labels are stored and shown, and a server may have echoed a key into one.
        lines = self._target.scrub(b"\n".join(kept).decode("utf-8", "replace")).encode()
        found = reading_of(lines, self._target.metrics)
        self.cost_s = max(self.cost_s, time.perf_counter() - began)
        return found

    def _miss(self, why: str) -> None:
        self.unread = self._target.scrub(f"{self._url}: {why}")[:300]

    async def close(self) -> None:
        await self._stack.aclose()
        self._session = None


async def find_metrics(target: Target) -> tuple[str, ...]:
    """Pages with counters that are known: the profile's, else the first beside or at the root of the endpoint's URL."""
    if target.metrics_url:
        return target.metrics_url
    candidates = list(
        dict.fromkeys([*(beside(target.url, page) for page in METRICS_PAGES), at_root(target.url, METRICS_PAGES[0])])
    )
    looks = await asyncio.gather(*(_look(target, url) for url in candidates))
    known = [(url, found) for url, found in zip(candidates, looks, strict=True) if found is not None]
    # A page that hands counts out once has none while nothing runs: it is taken where no other page has any.
    known.sort(key=lambda page: not (page[1].values or page[1].added))
    return (known[0][0],) if known else ()


async def _look(target: Target, url: str) -> Reading | None:
    metrics = ServerMetrics(target, [url])
    try:
        return await metrics.read()
    finally:
        await metrics.close()
