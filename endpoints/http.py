"""The real transport: aiohttp, one pool for the arm, no client-side queue, stamps as near the wire as it goes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from endpoints.dialects import NotAnEvent, error_of, parse
from endpoints.eventstream import MAX_EVENT_BYTES
from endpoints.outcomes import Outcome, of_exception, of_status
from endpoints.ratelimit import pause_of
from endpoints.reply import EventTooLarge, Reply, WholeReply
from endpoints.transport import Call, Exchange, Progress

_REFUSAL_S = 2.0  # how long the text of a refusal is waited for
_AFTER_DONE_S = 0.25  # how long a server may take to end the body after [DONE] before the socket is given up
_SWEEP_S = 0.1
_ERROR_BODY = 64 * 1024
_ERROR_TEXT, _NAME_TEXT = 500, 200  # characters kept of what a server says in errors, and in names
_HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream"}
_DEATHS_BEFORE_FRESH = 2
_MOST_DIALLING = 128  # connections being made at once
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}  # seconds, but the count


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds without progress before a request is given up."""

    connect: float = 30.0
    first_byte: float = 300.0
    idle: float = 120.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most bytes of one reply's body (as unpacked), and of one event in it, that are taken before it is given up.

    Far beyond any real reply: they keep an endless one from filling the memory. (aiohttp bounds the head.)
    """

    body: int = 256 * 1024 * 1024
    event: int = MAX_EVENT_BYTES


@dataclass(slots=True)
class ReusePolicy:
    """Whether an origin's streams may reuse connections: not after two of them died before any reply byte.

    Outlives a transport, since what was learnt at one point holds for the next.
    """

    deaths: int = 0

    @property
    def reuse(self) -> bool:
        return self.deaths < _DEATHS_BEFORE_FRESH


class _StampedHandler(ResponseHandler):
    """aiohttp's protocol, noting when bytes arrive: before any task is woken, so that no queue of ours counts.

    `arrived_ns`: when the last bytes came, 0 before the first. `used`: a request has gone out. `lost`: what tore the
    connection down, None while it stands and after an orderly close.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ns: Callable[[], int]) -> None:
        super().__init__(loop)
        self._now_ns = now_ns
        self.arrived_ns = 0
        self.used = False
        self.lost: BaseException | None = None

    def data_received(self, data: bytes) -> None:
        if data:  # without any, aiohttp goes on unpacking what had come before
            self.arrived_ns = self._now_ns()
        if self._payload is None or self._payload.is_eof():
            # A head by itself: aiohttp would forget a reply that came in one piece with nonsense behind it.
            head, blank, rest = data.partition(b"\r\n\r\n")
            if rest:
                super().data_received(head + blank)
                data = rest
        super().data_received(data)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        body = self._payload
        if body is not None and not body.is_eof() and isinstance(exc, aiohttp.http_exceptions.HttpProcessingError):
            # aiohttp would leave the body's reader waiting. Soon, not now: what came before is to be read first.
            self._loop.call_soon(body.set_exception, aiohttp.ClientPayloadError(str(exc)), exc)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost = exc
        super().connection_lost(exc)


class _Connector(aiohttp.TCPConnector):
    """No limit on connections, and each request's watch learns which protocol carries it, also when no reply comes."""

    def __init__(self, now_ns: Callable[[], int], *, force_close: bool) -> None:
        keep = None if force_close else 300
        super().__init__(
            limit=0, limit_per_host=0, force_close=force_close, keepalive_timeout=keep, socket_factory=_socket
        )
        self._dialling = asyncio.Semaphore(_MOST_DIALLING)
        # aiohttp has no public way to see bytes arrive; without this attribute stamps are taken one task switch later.
        if hasattr(self, "_factory"):
            self._factory = functools.partial(_StampedHandler, self._loop, now_ns)  # type: ignore[assignment]

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        handler = connection.protocol
        while isinstance(handler, _StampedHandler) and handler.used and handler.should_close:
            connection.close()  # holds a reply that nobody asked for: it must not answer this request
            connection = await super().connect(req, traces, timeout)
            handler = connection.protocol
        if isinstance(handler, _StampedHandler):
            handler.used = True
            watch = _watch.get()
            watch.handler, watch.before_ns = handler, handler.arrived_ns
        return connection

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        async with self._dialling:  # thousands of SYNs at once overflow a server's listen queue
            return await super()._create_connection(req, traces, timeout)


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket whose silent peer is found out: middleboxes drop idle connections without a word."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


@dataclass(slots=True, eq=False)
class _Watch:
    """A request under way: what the time-out sweep goes by, the protocol that carries it and its last arrival before.

    (The last of an earlier reply, that is, which may still be unread when its connection serves again.)
    """

    task: asyncio.Task[Any]
    limit_ns: int
    since_ns: int
    outcome: Outcome = Outcome.FIRST_BYTE_TIMEOUT
    expired: bool = False
    handler: _StampedHandler | None = None
    before_ns: int = 0

    @property
    def heard(self) -> bool:
        """Whether any byte of the reply has come."""
        return self.handler is not None and self.handler.arrived_ns > self.before_ns


_watch: ContextVar[_Watch] = ContextVar("watch")


class HttpTransport:
    """POSTs calls to one URL and reads event streams.

    Connections are kept alive and reused, except where the server shows (`ReusePolicy`) that it closes them unsaid.
    A request on a reused connection that dies before any reply byte is sent again, once, on a fresh connection.
    """

    name = "aiohttp"

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        timeouts: Timeouts | None = None,
        bounds: Bounds | None = None,
        policy: ReusePolicy | None = None,
        tls: ssl.SSLContext | None = None,
        proxy: bool = False,
        streamed: bool = True,
        keep_text: bool = False,
        scrub: Callable[[str], str] | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._url = url
        given = {name.lower() for name in headers}
        self._headers = {name: value for name, value in _HEADERS.items() if name.lower() not in given}
        self._headers |= {name: value for name, value in headers.items() if name.lower() != "accept-encoding"}
        self._headers["Accept-Encoding"] = "identity"  # compression holds a stream back; it is still read
        self._timeouts = timeouts or Timeouts()
        self._bounds = bounds or Bounds()
        self._policy = policy or ReusePolicy()
        self._tls = tls or True
        self._proxy = proxy
        self._streamed = streamed
        self._keep_text = keep_text
        self._scrub = scrub
        self._now = now_ns
        self._pooled: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None
        self._watches: set[_Watch] = set()
        self._sweeper: asyncio.Task[None] | None = None

    async def send(self, call: Call, exchange: Exchange, on_progress: Progress | None = None) -> None:
        """See `Transport.send`."""
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        died = await self._attempt(call, exchange, on_progress, fresh=not self._policy.reuse)
        if died:
            self._policy.deaths += 1
            exchange.retry_lost_ns = self._now() - (exchange.sent_ns or exchange.issued_ns)
            exchange.connected_ns = exchange.sent_ns = None
            exchange.outcome = exchange.error = None
            await self._attempt(call, exchange, on_progress, fresh=True)

    async def _attempt(self, call: Call, exchange: Exchange, on_progress: Progress | None, *, fresh: bool) -> bool:
        """One try. True when it died on a reused connection before any reply byte (and is worth one more)."""
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        watch = _Watch(task, int(self._timeouts.first_byte * 1e9), self._now())
        _watch.set(watch)
        exchange.attempts += 1
        exchange.reused = False
        exchange.streamed = self._streamed
        reply = (Reply if self._streamed else WholeReply)(keep_text=self._keep_text, max_event_bytes=self._bounds.event)
        self._watches.add(watch)
        try:
            async with self._session(fresh).post(
                self._url,
                data=call.body,
                headers=self._headers,
                allow_redirects=False,
                ssl=self._tls,
                trace_request_ctx=exchange,
            ) as response:
                exchange.headers_ns = self._arrival(watch)
                exchange.status = response.status
                exchange.pause_s = pause_of(response.headers, response.status, time.time())
                if 200 <= response.status < 300:
                    await self._read(response, reply, exchange, watch, on_progress)
                    if exchange.outcome is None:
                        exchange.outcome, exchange.error = reply.verdict()
                else:
                    await self._refusal(response, exchange)
        except asyncio.CancelledError:
            # Ours, unless someone else wants the task to end as well.
            if not watch.expired or task.uncancel() > cancelling:
                raise
            if exchange.outcome is None:
                exchange.outcome, exchange.error = watch.outcome, f"no byte for {watch.limit_ns / 1e9:g} s"
        except EventTooLarge as exc:
            exchange.outcome, exchange.error = Outcome.BAD_STREAM, str(exc)
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            if exchange.outcome is None:
                return self._failed(exc, exchange, watch)
        finally:
            self._watches.discard(watch)
            if reply.error is not None and exchange.outcome is not None:  # explains whatever happened after it
                exchange.outcome, exchange.error = Outcome.ERROR_EVENT, reply.error
            exchange.ended_ns = self._now()
            _copy(reply, exchange)
            _clean(exchange, self._scrub)
        return False

    def _failed(self, exc: Exception, exchange: Exchange, watch: _Watch) -> bool:
        """Class what the HTTP library raised; True when the request is worth sending again."""
        began = exchange.status is not None or watch.heard
        torn = watch.handler.lost if watch.handler is not None and isinstance(exc, aiohttp.ClientPayloadError) else None
        exchange.outcome = of_exception(torn or exc, reply_began=began)
        exchange.error = " ".join(f"{type(exc).__name__}: {exc}".split())
        return exchange.reused and not began and exchange.outcome is Outcome.RESET

    def _arrival(self, watch: _Watch) -> int:
        return watch.handler.arrived_ns if watch.handler is not None else self._now()

    async def _read(
        self,
        response: aiohttp.ClientResponse,
        reply: Reply,
        exchange: Exchange,
        watch: _Watch,
        on_progress: Progress | None,
    ) -> None:
        idle_ns = int(self._timeouts.idle * 1e9)
        content = response.content
        size = 0
        while True:
            block = await content.readany()
            if not block:
                return
            size += len(block)
            if size > self._bounds.body:
                exchange.outcome = Outcome.BAD_STREAM
                exchange.error = f"the body is larger than {self._bounds.body:,} bytes"
                return
            at = self._arrival(watch)
            watch.since_ns, watch.limit_ns, watch.outcome = at, idle_ns, Outcome.IDLE_TIMEOUT
            fragments = reply.feed(block, at)
            if fragments and on_progress is not None:
                usage = reply.usage
                on_progress(max(len(reply.chunk_ns), (usage.output_tokens or 0) if usage else 0))
            if reply.done:
                if not content.at_eof():
                    await self._end_of_body(response)
                return

    async def _end_of_body(self, response: aiohttp.ClientResponse) -> None:
        """After [DONE]: read on to the end of the body, so that the connection can serve again, but not for long."""
        try:
            async with asyncio.timeout(_AFTER_DONE_S):
                while await response.content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError, OSError):
            response.close()

    async def _refusal(self, response: aiohttp.ClientResponse, exchange: Exchange) -> None:
        exchange.outcome = of_status(response.status)
        exchange.error = f"HTTP {response.status}"
        exchange.retry_after = response.headers.get("Retry-After")
        raw = b""
        with contextlib.suppress(TimeoutError):  # the class is known; a body that never comes adds nothing to it
            async with asyncio.timeout(_REFUSAL_S):
                raw = await read_some(response.content, _ERROR_BODY)
        try:
            said = error_of(parse(raw))
        except NotAnEvent:
            said = None
        text = said or " ".join(raw.decode("utf-8", "replace").split())
        if text:
            exchange.error += f": {text}"

    def _session(self, fresh: bool) -> aiohttp.ClientSession:
        if fresh:
            if self._fresh is None:
                self._fresh = self._new_session(force_close=True)
            return self._fresh
        if self._pooled is None:
            self._pooled = self._new_session(force_close=False)
        return self._pooled

    def _new_session(self, *, force_close: bool) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=_Connector(self._now, force_close=force_close),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect),
            trace_configs=[self._trace()],
            auto_decompress=True,
            read_bufsize=2**20,  # the default's high-water mark pauses the socket and moves every stamp after it
            trust_env=self._proxy,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def _trace(self) -> aiohttp.TraceConfig:
        now = self._now

        async def connected(_s: Any, context: SimpleNamespace, _p: Any) -> None:
            context.trace_request_ctx.connected_ns = now()
            context.trace_request_ctx.reused = False

        async def reused(_s: Any, context: SimpleNamespace, _p: Any) -> None:
            context.trace_request_ctx.connected_ns = now()
            context.trace_request_ctx.reused = True

        async def sending(_s: Any, context: SimpleNamespace, _p: Any) -> None:
            context.trace_request_ctx.sent_ns = now()  # aiohttp calls this just before it writes the head

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(connected)
        trace.on_connection_reuseconn.append(reused)
        trace.on_request_headers_sent.append(sending)
        return trace

    async def _sweep(self) -> None:
        """One timer for all requests: a timer each would cost as much as reading a chunk."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = self._now()
            for watch in self._watches:
                if not watch.expired and now - watch.since_ns > watch.limit_ns:
                    watch.expired = True
                    watch.task.cancel()

    async def close(self) -> None:
        """Close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for session in (self._pooled, self._fresh):
            if session is not None:
                await session.close()
        self._pooled = self._fresh = None


async def read_some(content: aiohttp.StreamReader, most: int) -> bytes:
    """The body to its end, or its first `most` bytes."""
    raw = bytearray()
    while len(raw) < most and (block := await content.read(most - len(raw))):
        raw += block
    return bytes(raw)


def _clean(exchange: Exchange, scrub: Callable[[str], str] | None) -> None:
    """A server may echo a key anywhere in what it says: take it out, and only then cut long texts, never through it."""
    limits = {"error": _ERROR_TEXT, "text": None}
    for name in (*limits, "finish_reason", "model", "system_fingerprint", "request_id", "retry_after"):
        said = getattr(exchange, name)
        if said:
            setattr(exchange, name, (scrub(said) if scrub else said)[: limits.get(name, _NAME_TEXT)])


def _copy(reply: Reply, exchange: Exchange) -> None:
    exchange.chunk_ns = reply.chunk_ns
    exchange.chunk_tokens = reply.chunk_tokens()
    exchange.first_visible_ns = reply.first_visible_ns
    exchange.text_bytes = reply.text_bytes
    exchange.text_hash = reply.text_hash
    exchange.text = reply.text
    exchange.reasoned = reply.reasoned
    exchange.finish_reason = reply.finish_reason
    exchange.model = reply.model
    exchange.system_fingerprint = reply.fingerprint
    exchange.request_id = reply.request_id
    exchange.dropped_events = reply.dropped
    if reply.usage is not None:
        exchange.input_tokens = reply.usage.input_tokens
        exchange.output_tokens = reply.usage.output_tokens or None  # no reply has none: a count of 0 is no count
        exchange.cached_tokens = reply.usage.cached_tokens
        exchange.reasoning_tokens = reply.usage.reasoning_tokens
