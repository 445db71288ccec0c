"""The least a Python client can do: uvloop, llhttp, one stamp a block, nothing read of what it says."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

from httptools import HttpResponseParser

from endpoints.outcomes import Outcome
from endpoints.transport import Call, Exchange, Progress


class _Connection(asyncio.Protocol):
    def __init__(self, free: list[_Connection]) -> None:
        self._free = free
        self._parser = HttpResponseParser(self)
        self.stamps: list[int] = []
        self.done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.descriptor = transport.get_extra_info("socket").fileno()

    def data_received(self, data: bytes) -> None:
        self.at = time.monotonic_ns()
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.stamps.append(self.at)

    def on_message_complete(self) -> None:
        self._free.append(self)
        if self.done is not None:
            self.done.set_result(None)


class FloorTransport:
    """Carries calls to a server that does nothing unexpected; fills the stamps alone."""

    name = "floor"

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._head = f"POST {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: ".encode()
        self._free: list[_Connection] = []
        self._few = asyncio.Semaphore(128)

    async def send(self, call: Call, exchange: Exchange, on_progress: Progress | None = None) -> None:
        if self._free:
            connection = self._free.pop()
        else:
            make: Callable[[], Any] = lambda: _Connection(self._free)  # noqa: E731
            async with self._few:
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(make, self._host, self._port)
        exchange.chunk_ns = connection.stamps = []
        connection.done = asyncio.get_running_loop().create_future()
        exchange.sent_ns = time.monotonic_ns()
        os.write(connection.descriptor, self._head + b"%d\r\n\r\n%s" % (len(call.body), call.body))
        await connection.done
        exchange.ended_ns, exchange.outcome = time.monotonic_ns(), Outcome.OK

    async def close(self) -> None:
        for connection in self._free:
            connection.transport.abort()
