"""The transport for load: bytes go from the socket into the reply as they arrive, with no task between them.

One asyncio protocol a connection, llhttp (what uvicorn and Node.js parse with) for HTTP/1.1, one future a request.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any, cast

import aiohttp
from yarl import URL

from endpoints import attempts
from endpoints.attempts import REFUSAL_BYTES, REFUSAL_S, Attempts, Bounds, Timeouts, Watched, progress_of, refusal
from endpoints.dialling import Dialler
from endpoints.incoming import Incoming, Unreadable
from endpoints.outcomes import Outcome, of_dialling, of_exception, of_status
from endpoints.ratelimit import pause_of
from endpoints.reply import EventTooLarge, Reply
from endpoints.transport import Call, Exchange, Progress

_KEPT_NS = 300 * 10**9  # an idle connection is not trusted for longer
_OURS = ("connection", "content-length", "transfer-encoding")  # headers that say how a message travels
_AT_ONCE = 32  # blocks of a body that are read together
_MOST_EARLY = 64 * 1024  # bytes that a server may send before it is asked


class _Wire(asyncio.Protocol):
    """One connection. Bytes go to the flight that it carries; bytes that nobody asked for end it."""

    __slots__ = ("descriptor", "early", "flight", "idle_ns", "lost", "now_ns", "pool", "transport", "used", "why")

    transport: asyncio.Transport

    def __init__(self, pool: dict[_Wire, None], now_ns: Callable[[], int]) -> None:
        self.pool = pool
        self.now_ns = now_ns
        self.descriptor: int | None = None  # of a socket whose bytes are sent as they are
        self.flight: _Flight | None = None
        self.used = False  # a request has gone out
        self.early = b""  # what came before the first one
        self.lost = False
        self.why: Exception | None = None  # what tore it down; None after an orderly close
        self.idle_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        if transport.get_extra_info("sslcontext") is None:
            self.descriptor = transport.get_extra_info("socket").fileno()

    def data_received(self, data: bytes) -> None:
        at = self.now_ns()
        if self.flight is not None:
            self.flight.take(data, at)
        elif not self.used and len(self.early) < _MOST_EARLY:
            self.early += data
        else:
            self.drop()  # a reply that nobody asked for: it must not answer the next request

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.pop(self, None)
        self.lost, self.why = True, exc
        if self.flight is not None:
            self.flight.broke(exc)

    def carry(self, flight: _Flight, request: bytes) -> None:
        """Send a request, and hand what comes to its flight."""
        self.used, self.flight, flight.wire = True, flight, self
        flight.launched(self.now_ns())
        if not self.transport.is_closing():
            self.write(request)
        if self.early:
            early, self.early, flight.keep = self.early, b"", False
            flight.take(early, self.now_ns())
        if self.lost:
            flight.broke(self.why)

    def write(self, request: bytes) -> None:
        """To the kernel now. uvloop's own write waits until every callback of its turn has run, behind the stamp."""
        if self.descriptor is not None and not self.transport.get_write_buffer_size():
            try:
                request = request[os.write(self.descriptor, request) :]
            except OSError:
                pass  # the transport will meet it too, and end the connection
        if request:
            self.transport.write(request)

    def drop(self) -> None:
        self.pool.pop(self, None)
        self.transport.abort()


class _Flight(Watched):
    """One request under way, from the write of its head to the end of its reply. `landed` is set at that end."""

    __slots__ = (
        "_arrivals",
        "_at_once",
        "_exchange",
        "_headed",
        "_idle_ns",
        "_incoming",
        "_most_body",
        "_now",
        "_on_progress",
        "_over",
        "_refused",
        "_reply",
        "_size",
        "_timer",
        "_waiting",
        "fault",
        "heard",
        "keep",
        "landed",
        "wire",
    )

    def __init__(
        self,
        exchange: Exchange,
        reply: Reply,
        on_progress: Progress | None,
        bounds: Bounds,
        timeouts: Timeouts,
        keep: bool,
        now_ns: Callable[[], int],
    ) -> None:
        super().__init__(timeouts.first_byte, now_ns())
        self._exchange, self._reply, self._on_progress, self._now = exchange, reply, on_progress, now_ns
        self._most_body, self._idle_ns = bounds.body, int(timeouts.idle * 1e9)
        self.keep = keep  # the connection, for another request
        self._incoming = Incoming()
        self._refused: bytearray | None = None  # what a refusal says
        # What by its size is no news waits for more of its kind: code that has just run runs several times as fast.
        self._waiting: list[bytes] = []
        self._arrivals = array("q")  # theirs; no pairs, since the collector would look at each of them
        self._at_once = _AT_ONCE if on_progress is None else 1
        self._headed = self._over = False
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self.heard = False
        self.wire: _Wire | None = None
        self.fault: Exception | None = None  # one of ours
        self.landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- what happens to it ------------------------------------------------------------------------------------------

    def launched(self, at: int) -> None:
        self._exchange.sent_ns = self.since_ns = at

    def take(self, data: bytes, at: int) -> None:
        """Read what has come."""
        self.heard = True
        incoming, reply = self._incoming, self._reply
        try:
            blocks = incoming.feed(data)
            if not self._headed and incoming.status is not None:
                self._head(incoming.status, at)
            for block in blocks:
                if self._refused is not None:
                    self._refused += block
                else:
                    self.since_ns = at
                    self._waiting.append(block)
                    self._arrivals.append(at)
                    if len(block) not in reply.likely or len(self._waiting) >= self._at_once:
                        self._read()
            if incoming.whole:
                self._whole(at, keep=incoming.reusable)
            elif incoming.error is not None:
                self._spoilt(Outcome.IDLE_TIMEOUT if incoming.stalled else Outcome.BAD_STREAM, incoming.error, at)
            elif self._timer is None:
                if reply.done:
                    self._end_within(attempts.AFTER_DONE_S)
            elif self._refused is not None and len(self._refused) >= REFUSAL_BYTES:
                self._whole(at)
        except (EventTooLarge, Unreadable) as exc:
            self._spoilt(Outcome.BAD_STREAM, str(exc), at)
        except Exception as exc:  # of ours: `FastTransport.send` raises it
            self.fault = exc
            self._land(at)

    def broke(self, exc: Exception | None) -> None:
        """The connection is gone."""
        at = self._now()
        if self._incoming.ends_with_the_connection and exc is None:
            self._whole(at)
        elif exc is not None:
            outcome = of_exception(exc, reply_began=self.heard)
            if outcome is Outcome.BAD_STREAM:
                outcome = Outcome.RESET  # some other fault of the network
            self._spoilt(outcome, f"{type(exc).__name__}: {exc}", at)
        elif self.heard:
            self._spoilt(Outcome.TRUNCATED, "the connection was closed before the reply had ended", at)
        else:
            self._spoilt(Outcome.RESET, "the connection was closed before any byte of a reply", at)

    def give_up(self) -> None:
        self._spoilt(*self.lapsed, self._now())

    def leave(self) -> None:
        """Nobody waits for it any longer: where it still goes on, the socket is given up."""
        at = self._now()
        self._read_all(at)
        self._land(at)
        self._incoming.close()

    # -- what its bytes mean -----------------------------------------------------------------------------------------

    def _head(self, status: int, at: int) -> None:
        self._headed = True
        e, headers = self._exchange, self._incoming.headers
        e.status, e.headers_ns = status, at
        e.pause_s = pause_of(headers, status, time.time())
        if not 200 <= status < 300:
            self._refused = bytearray()
            e.retry_after = headers.get("retry-after")
            self._end_within(min(REFUSAL_S, self.limit_ns / 1e9))

    def _read(self) -> None:
        """Read the blocks of body that wait. Raises EventTooLarge."""
        reply = self._reply
        waiting, self._waiting = self._waiting, []
        arrivals, self._arrivals = self._arrivals, array("q")
        for block, at in zip(waiting, arrivals, strict=True):
            if reply.done:
                return
            self._size += len(block)
            if self._size > self._most_body:
                raise EventTooLarge(f"the body is larger than {self._most_body:,} bytes")
            if reply.feed(block, at) and self._on_progress is not None:
                self._on_progress(progress_of(reply))
        if self.lapse is not Outcome.IDLE_TIMEOUT:
            self.limit_ns, self.lapse = self._idle_ns, Outcome.IDLE_TIMEOUT

    def _read_all(self, at: int) -> None:
        try:
            self._read()
        except EventTooLarge as exc:
            self._land(at, Outcome.BAD_STREAM, str(exc))

    # -- its end -----------------------------------------------------------------------------------------------------

    def _end_within(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self.give_up)

    def _whole(self, at: int, *, keep: bool = False) -> None:
        """The body ended in order."""
        self._read_all(at)
        if self._refused is None:
            self._land(at, keep=keep)
        else:
            self._refusal(at, bytes(self._refused[:REFUSAL_BYTES]), keep=keep)

    def _spoilt(self, outcome: Outcome, why: str, at: int) -> None:
        """It did not: which is nothing to a reply that had said [DONE], nor to a refusal."""
        self._read_all(at)
        if self._refused is not None:
            self._refusal(at)
        elif self._reply.done:
            self._land(at)
        else:
            self._land(at, outcome, " ".join(why.split()))

    def _refusal(self, at: int, body: bytes = b"", *, keep: bool = False) -> None:
        status = self._incoming.status or 0
        self._land(at, of_status(status), refusal(status, body), keep=keep)

    def _land(self, at: int, outcome: Outcome | None = None, error: str | None = None, *, keep: bool = False) -> None:
        if self._over:
            return
        self._over = True
        if not self.landed.done():  # a cancelled task has cancelled what it waited for
            self.landed.set_result(None)
        e = self._exchange
        e.outcome, e.error, e.ended_ns = outcome, error, at
        if self._timer is not None:
            self._timer.cancel()
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.flight = None
            if keep and self.keep:
                wire.idle_ns = at
                wire.pool[wire] = None
            else:
                wire.drop()


class FastTransport(Attempts):
    """HTTP/1.1 and nothing else: no proxies. (See `Attempts`.)"""

    name = "httptools"

    def __init__(self, url: str, headers: Mapping[str, str], **options: Any) -> None:
        """`options` as those of `Attempts`. Raises ValueError for a URL or a header that HTTP cannot carry."""
        super().__init__(url, headers, **options)
        at = URL(url)
        if not at.host or not at.port:
            raise ValueError(f"no host to send to: {url!r}")
        if at.user is not None:
            self._headers.setdefault("Authorization", aiohttp.BasicAuth(at.user, at.password or "").encode())
        tls = (self._tls or ssl.create_default_context()) if at.scheme == "https" else None
        self._dialler = Dialler(at.raw_host or at.host, at.port, tls, self._timeouts.connect)
        self._kept: dict[_Wire, None] = {}  # idle connections, the last used last
        self._heads = {close: _head(at, self._headers, close=close) for close in (False, True)}

    async def _attempt(
        self, call: Call, exchange: Exchange, reply: Reply, on_progress: Progress | None, *, fresh: bool
    ) -> bool:
        wire = None if fresh else self._idle()
        exchange.reused = wire is not None
        if wire is None:
            try:
                wire = await self._dialler.dial(lambda: _Wire(self._kept, self._now))
            except (OSError, UnicodeError) as exc:
                exchange.outcome, exchange.error = of_dialling(exc), " ".join(f"{type(exc).__name__}: {exc}".split())
                return False
        exchange.connected_ns = self._now()
        flight = _Flight(exchange, reply, on_progress, self._bounds, self._timeouts, not fresh, self._now)
        self._watched.add(flight)
        try:
            wire.carry(flight, b"%s%d\r\n\r\n%s" % (self._heads[fresh], len(call.body), call.body))
            await flight.landed
        finally:
            self._watched.discard(flight)
            flight.leave()
        if flight.fault is not None:
            raise flight.fault
        if exchange.outcome is None:
            exchange.outcome, exchange.error = reply.verdict()
        return flight.heard

    def _idle(self) -> _Wire | None:
        """A kept connection, the last used first."""
        while self._kept:
            wire, _ = self._kept.popitem()
            if self._now() - wire.idle_ns < _KEPT_NS and not wire.transport.is_closing():
                return wire
            wire.drop()
        return None

    async def close(self) -> None:
        await super().close()
        for wire in list(self._kept):
            wire.drop()
        for flight in list(self._watched):
            assert isinstance(flight, _Flight)
            flight.broke(ConnectionAbortedError("the transport was closed"))


def _head(url: URL, headers: Mapping[str, str], *, close: bool) -> bytes:
    """A request's head up to the length of its body. Raises ValueError."""
    lines = {name: value for name, value in headers.items() if name.lower() not in _OURS}
    if not any(name.lower() == "host" for name in lines):
        lines = {"Host": url.host_port_subcomponent or ""} | lines
    if close:
        lines["Connection"] = "close"
    if any({*name, *value} & {"\r", "\n", "\0"} for name, value in lines.items()):
        raise ValueError("a header cannot hold a line end or a NUL")
    said = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {url.raw_path_qs} HTTP/1.1\r\n{said}Content-Length: ".encode()
