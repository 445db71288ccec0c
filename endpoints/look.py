"""One page or one small reply, looked at whole: status, headers, every document, and whom the connection led to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp.client import ClientSession
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from endpoints.dialects import NotAnEvent, RequestShape, error_of, parse
from endpoints.eventstream import EventStreamDecoder, EventTooLarge
from endpoints.http import read_some
from endpoints.outcomes import Outcome, of_exception, of_status
from endpoints.ratelimit import pause_of
from endpoints.reply import Reply, WholeReply
from endpoints.target import Target

_MOST_REPLY, _MOST_REFUSAL = 4 * 1024 * 1024, 64 * 1024
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Page:
    """What a GET brought; the body is cut at the most that was asked for."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float


@dataclass(slots=True)
class Look:
    """A small request and its reply. `asked`: tokens; `docs`: the JSON objects of the reply, in order."""

    asked: int
    outcome: Outcome = Outcome.RESET
    status: int | None = None
    error: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    pause_s: float | None = None
    docs: list[dict[str, Any]] = field(default_factory=list)
    reply: Reply = field(default_factory=Reply)

    @property
    def ok(self) -> bool:
        """Whether it was answered, if only by thoughts that are not shown and were cut."""
        return self.outcome is Outcome.OK or (self.outcome is Outcome.EMPTY and self.reply.finish_reason == "length")

    @property
    def refused(self) -> bool:
        """Whether the request was understood and turned down, which is what an unknown field brings."""
        return self.status in (400, 404, 422, 501)

    @property
    def tokens(self) -> int:
        """Output tokens as stated, else fragments: at least so many tokens."""
        stated = self.reply.usage.output_tokens if self.reply.usage else None
        return stated or len(self.reply.chunk_ns)


class Connector(aiohttp.TCPConnector):
    """Remembers whom its last connection led to: (host, port, ...), the proxy's where there is one."""

    peer: tuple[Any, ...] | None = None

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        if connection.transport is not None:
            self.peer = connection.transport.get_extra_info("peername") or self.peer
        return connection

    def address(self) -> str | None:
        if self.peer is None:
            return None
        host, port = self.peer[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.asynccontextmanager
async def looking(target: Target, *, reuse: bool = False) -> AsyncIterator[tuple[ClientSession, Connector]]:
    """A session that carries the target's headers, for its origin only, and keeps no cookies.

    `reuse`: keep connections, which some servers close unsaid after a stream.
    """
    connector = Connector(force_close=not reuse)
    options: dict[str, Any] = {"connector": connector, "headers": dict(target.headers), "trust_env": target.proxy}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=target.timeouts.connect)
    async with ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), **options) as session:
        yield session, connector


async def read(session: ClientSession, target: Target, url: str, *, most: int, seconds: float) -> Page:
    """GET a page, within `seconds`. Raises what aiohttp raises (ClientError, OSError, TimeoutError, ValueError)."""
    timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=target.timeouts.connect)
    began = time.monotonic()
    async with session.get(url, allow_redirects=False, ssl=target.tls, timeout=timeout) as response:
        body = await read_some(response.content, most)
        return Page(response.status, response.headers, body, time.monotonic() - began)


async def ask(session: ClientSession, target: Target, shape: RequestShape, question: str) -> Look:
    """POST one small request of this shape. Never raises for what the network or the server does."""
    look = Look(shape.max_tokens, reply=Reply() if shape.stream else WholeReply())
    body = shape.body([{"role": "user", "content": question}])
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream" if shape.stream else "*/*"}
    route = target.route_of(shape.api)
    try:
        async with (
            asyncio.timeout(min(target.timeouts.first_byte, _PATIENCE_S)),
            session.post(route, data=body, headers=headers, allow_redirects=False, ssl=target.tls) as response,
        ):
            look.status, look.headers = response.status, response.headers
            look.pause_s = pause_of(response.headers, response.status, time.time())
            raw = await read_some(response.content, _MOST_REPLY if response.ok else _MOST_REFUSAL)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as exc:
        look.outcome = of_exception(exc, reply_began=look.status is not None)
        look.error = f"{type(exc).__name__}: {exc}"
        return look
    if 200 <= look.status < 300:
        _take(look, raw, shape.stream)
    else:
        look.outcome, look.error = of_status(look.status), f"HTTP {look.status}: {_said(raw)}"
    return look


def _take(look: Look, raw: bytes, stream: bool) -> None:
    try:
        look.reply.feed(raw, time.monotonic_ns())
        datas = [event.data for event in EventStreamDecoder().feed(raw)] if stream else [raw]
    except EventTooLarge as exc:
        look.outcome, look.error = Outcome.BAD_STREAM, str(exc)
        return
    for data in datas:
        with contextlib.suppress(NotAnEvent):
            look.docs.append(parse(data))
    look.outcome, look.error = look.reply.verdict()


def _said(raw: bytes) -> str:
    try:
        said = error_of(parse(raw))
    except NotAnEvent:
        said = None
    return said or " ".join(raw.decode("utf-8", "replace").split())
