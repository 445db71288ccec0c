"""The transport for what only a whole HTTP client speaks: aiohttp, no queue of its own, stamps as near as it goes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from endpoints import attempts, dialling
from endpoints.attempts import REFUSAL_BYTES, Attempts, Watched, progress_of, refusal
from endpoints.outcomes import Outcome, of_exception, of_status
from endpoints.ratelimit import pause_of
from endpoints.reply import EventTooLarge, Reply
from endpoints.transport import Call, Exchange, Progress


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
            limit=0, limit_per_host=0, force_close=force_close, keepalive_timeout=keep, socket_factory=dialling.made
        )
        self._dialling = asyncio.Semaphore(dialling.MOST)
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


class _Watch(Watched):
    """A request under way, the protocol that carries it and that one's last arrival before.

    (The last of an earlier reply, that is, which may still be unread when its connection serves again.)
    """

    __slots__ = ("_task", "before_ns", "handler")

    def __init__(self, task: asyncio.Task[Any], limit_s: float, now_ns: int) -> None:
        super().__init__(limit_s, now_ns)
        self._task = task
        self.handler: _StampedHandler | None = None
        self.before_ns = 0

    @property
    def heard(self) -> bool:
        """Whether any byte of the reply has come."""
        return self.handler is not None and self.handler.arrived_ns > self.before_ns

    def give_up(self) -> None:
        self._task.cancel()


_watch: ContextVar[_Watch] = ContextVar("watch")


class HttpTransport(Attempts):
    """Over aiohttp: speaks whatever that speaks, proxies and codings too. (See `Attempts`.)"""

    name = "aiohttp"

    def __init__(self, url: str, headers: Mapping[str, str], *, proxy: bool = False, **options: Any) -> None:
        """`options` as those of `Attempts`; `proxy`: go through the environment's."""
        super().__init__(url, headers, **options)
        self._proxy = proxy
        self._pooled: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    async def _attempt(
        self, call: Call, exchange: Exchange, reply: Reply, on_progress: Progress | None, *, fresh: bool
    ) -> bool:
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        watch = _Watch(task, self._timeouts.first_byte, self._now())
        _watch.set(watch)
        self._watched.add(watch)
        try:
            async with self._session(fresh).post(
                self._url,
                data=call.body,
                headers=self._headers,
                allow_redirects=False,
                ssl=self._tls or True,
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
                exchange.outcome, exchange.error = watch.lapsed
        except EventTooLarge as exc:
            exchange.outcome, exchange.error = Outcome.BAD_STREAM, str(exc)
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            if exchange.outcome is None:
                self._failed(exc, exchange, watch)
        finally:
            self._watched.discard(watch)
        return exchange.status is not None or watch.heard

    def _failed(self, exc: Exception, exchange: Exchange, watch: _Watch) -> None:
        """Class what the HTTP library raised."""
        began = exchange.status is not None or watch.heard
        torn = watch.handler.lost if watch.handler is not None and isinstance(exc, aiohttp.ClientPayloadError) else None
        exchange.outcome = of_exception(torn or exc, reply_began=began)
        exchange.error = " ".join(f"{type(exc).__name__}: {exc}".split())

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
            watch.since_ns, watch.limit_ns, watch.lapse = at, idle_ns, Outcome.IDLE_TIMEOUT
            fragments = reply.feed(block, at)
            if fragments and on_progress is not None:
                on_progress(progress_of(reply))
            if reply.done:
                if not content.at_eof():
                    await self._end_of_body(response)
                return

    async def _end_of_body(self, response: aiohttp.ClientResponse) -> None:
        """After [DONE]: read on to the end of the body, so that the connection can serve again, but not for long."""
        try:
            async with asyncio.timeout(attempts.AFTER_DONE_S):
                while await response.content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError, OSError):
            response.close()

    async def _refusal(self, response: aiohttp.ClientResponse, exchange: Exchange) -> None:
        exchange.outcome = of_status(response.status)
        exchange.error = f"HTTP {response.status}"
        exchange.retry_after = response.headers.get("Retry-After")
        with contextlib.suppress(TimeoutError):  # the class is known; a body that never comes adds nothing to it
            async with asyncio.timeout(attempts.REFUSAL_S):
                raw = await read_some(response.content, REFUSAL_BYTES)
                exchange.error = refusal(response.status, raw)

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

    async def close(self) -> None:
        await super().close()
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
