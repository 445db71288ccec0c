"""Reading a server's counters while it is measured: which page has them, and one bounded, harmless look at a time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import aiohttp
from aiohttp.client import ClientSession

from endpoints.counters import Reading, reading_of, together
from endpoints.engines import METRICS_PAGES
from endpoints.look import looking, read
from endpoints.target import Target, at_root, beside
from profiles.hosts import origin

_MOST_BYTES = 16 * 1024 * 1024
_SECONDS = 5.0


class ServerMetrics:
    """One arm's pages of metrics, one a replica, read again and again."""

    def __init__(self, target: Target, urls: Sequence[str]) -> None:
        self.unread = ""  # why the last look brought nothing
        self._pages = [_Page(target, url) for url in urls]

    async def read(self) -> Reading | None:
        """One look at every replica; None, with the reason in `unread`, when one brings nothing. Never raises for what
        a server does."""
        found = await asyncio.gather(*(page.read() for page in self._pages))
        self.unread = "; ".join(page.unread for page in self._pages if page.unread)
        readings = [reading for reading in found if reading is not None]
        return together(readings) if len(readings) == len(found) else None

    async def close(self) -> None:
        """Give its connections back."""
        for page in self._pages:
            await page.close()


class _Page:
    def __init__(self, target: Target, url: str) -> None:
        self.unread = ""
        if origin(url) != origin(target.url):  # gets nothing that is meant for the endpoint: no key, no certificate
            target = replace(target, headers={}, tls=ssl.create_default_context())
        self._target, self._url = target, url
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
        found = reading_of(page.body, self._target.metrics, self._target.shape.model)
        if found is None:
            self._miss("it names no counter that is known")
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
    beside_it = [beside(target.url, route) for route in METRICS_PAGES]
    for url in dict.fromkeys([*beside_it, at_root(target.url, METRICS_PAGES[0])]):
        metrics = ServerMetrics(target, [url])
        try:
            if await metrics.read() is not None:
                return (url,)
        finally:
            await metrics.close()
    return ()
