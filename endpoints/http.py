"""The real transport: aiohttp, one pool for the arm, no client-side queue, stamps as near the wire as it goes."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from endpoints.dialects import error_of, parse
from endpoints.outcomes import Outcome, of_exception, of_status
from endpoints.reply import EventTooLarge, Reply
from endpoints.transport import Call, Exchange, Progress

_AFTER_DONE_S = 0.25  # how long a server may take to end the body after [DONE] before the socket is given up
_SWEEP_S = 0.1
_ERROR_BODY = 64 * 1024
_DEATHS_BEFORE_FRESH = 2


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds without progress before a request is given up."""

    connect: float = 30.0
    first_byte: float = 300.0
    idle: float = 120.0


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
    """aiohttp's protocol, noting when bytes arrive: before any task is woken, so that no queue of ours counts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ns: Callable[[], int]) -> None:
        super().__init__(loop)
        self._now_ns = now_ns
        self.arrived_ns = 0

    def data_received(self, data: bytes) -> None:
        self.arrived_ns = self._now_ns()
        super().data_received(data)


@dataclass(slots=True, eq=False)
class _Watch:
    """A request under way, for the time-out sweep."""

    task: asyncio.Task[Any]
    limit_ns: int
    since_ns: int
    expired: Outcome | None = None
    outcome: Outcome = Outcome.FIRST_BYTE_TIMEOUT


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
        policy: ReusePolicy | None = None,
        verify_tls: bool = True,
        keep_text: bool = False,
        scrub: Callable[[str], str] | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._url = url
        # Compression would hold a stream back; a compressed body is still read.
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"} | dict(headers)
        self._headers["Accept-Encoding"] = "identity"
        self._timeouts = timeouts or Timeouts()
        self._policy = policy or ReusePolicy()
        self._verify_tls = verify_tls
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
        watch = _Watch(task, int(self._timeouts.first_byte * 1e9), self._now())
        exchange.attempts += 1
        exchange.reused = False
        reply = Reply(keep_text=self._keep_text)
        handler: _StampedHandler | None = None
        self._watches.add(watch)
        try:
            async with self._session(fresh).post(
                self._url,
                data=call.body,
                headers=self._headers,
                allow_redirects=False,
                ssl=self._verify_tls,
                trace_request_ctx=exchange,
            ) as response:
                handler = _handler_of(response)
                exchange.headers_ns = handler.arrived_ns if handler else self._now()
                exchange.status = response.status
                if 200 <= response.status < 300:
                    await self._read(response, handler, reply, exchange, watch, on_progress)
                    if exchange.outcome is None:
                        exchange.outcome, exchange.error = reply.verdict()
                else:
                    await self._refusal(response, exchange)
        except asyncio.CancelledError:
            if watch.expired is None:
                raise
            task.uncancel()
            exchange.outcome = watch.expired
            exchange.error = f"no byte for {watch.limit_ns / 1e9:g} s"
        except EventTooLarge as exc:
            exchange.outcome, exchange.error = Outcome.BAD_STREAM, str(exc)
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            began = exchange.status is not None
            exchange.outcome = of_exception(exc, reply_began=began)
            exchange.error = " ".join(f"{type(exc).__name__}: {exc}".split())[:300]
            if exchange.reused and not began and exchange.outcome is Outcome.RESET and exchange.attempts == 1:
                return True
        finally:
            self._watches.discard(watch)
            exchange.ended_ns = self._now()
            _copy(reply, exchange)
            if self._scrub is not None:
                _clean(exchange, self._scrub)
        return False

    async def _read(
        self,
        response: aiohttp.ClientResponse,
        handler: _StampedHandler | None,
        reply: Reply,
        exchange: Exchange,
        watch: _Watch,
        on_progress: Progress | None,
    ) -> None:
        idle_ns = int(self._timeouts.idle * 1e9)
        content = response.content
        while True:
            block = await content.readany()
            if not block:
                return
            at = handler.arrived_ns if handler else self._now()
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
        exchange.retry_after = response.headers.get("Retry-After")
        raw = await response.content.read(_ERROR_BODY)
        said: str | None = None
        try:
            said = error_of(parse(raw))
        except ValueError:
            pass
        text = said or " ".join(raw[:300].decode("utf-8", "replace").split())
        exchange.error = f"HTTP {response.status}" + (f": {text}" if text else "")

    def _session(self, fresh: bool) -> aiohttp.ClientSession:
        if fresh:
            if self._fresh is None:
                self._fresh = self._new_session(force_close=True)
            return self._fresh
        if self._pooled is None:
            self._pooled = self._new_session(force_close=False)
        return self._pooled

    def _new_session(self, *, force_close: bool) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        connector = (
            aiohttp.TCPConnector(limit=0, limit_per_host=0, force_close=True)
            if force_close
            else aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=300)
        )
        # aiohttp has no public way to see bytes arrive; without this attribute stamps are taken one task switch later.
        if hasattr(connector, "_factory"):
            connector._factory = functools.partial(_StampedHandler, loop, self._now)  # type: ignore[assignment]
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect),
            trace_configs=[self._trace()],
            auto_decompress=True,
            read_bufsize=2**20,  # the default's high-water mark pauses the socket and moves every stamp after it
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def _trace(self) -> aiohttp.TraceConfig:
        now = self._now

        async def connected(_s: Any, context: SimpleNamespace, _p: Any) -> None:
            context.trace_request_ctx.connected_ns = now()

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
                if watch.expired is None and now - watch.since_ns > watch.limit_ns:
                    watch.expired = watch.outcome
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


def _handler_of(response: aiohttp.ClientResponse) -> _StampedHandler | None:
    protocol = response.connection.protocol if response.connection is not None else None
    return protocol if isinstance(protocol, _StampedHandler) else None


def _clean(exchange: Exchange, scrub: Callable[[str], str]) -> None:
    """A server may echo a key anywhere in what it says."""
    for name in ("error", "text", "finish_reason", "model", "system_fingerprint", "request_id", "retry_after"):
        said = getattr(exchange, name)
        if said:
            setattr(exchange, name, scrub(said))


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
        exchange.output_tokens = reply.usage.output_tokens
        exchange.cached_tokens = reply.usage.cached_tokens
        exchange.reasoning_tokens = reply.usage.reasoning_tokens
