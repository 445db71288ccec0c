"""What every real transport does around its tries: waits and bounds, the second try, the watch, and the books."""

from __future__ import annotations

import asyncio
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from endpoints.dialects import NotAnEvent, error_of, parse
from endpoints.eventstream import MAX_EVENT_BYTES
from endpoints.outcomes import Outcome
from endpoints.reply import Reply, WholeReply
from endpoints.tokens import TokenCounter
from endpoints.transport import Call, Exchange, Progress

REFUSAL_S = 2.0  # how long the text of a refusal is waited for
AFTER_DONE_S = 0.25  # how long a server may take to end the body after [DONE] before the socket is given up
REFUSAL_BYTES = 64 * 1024  # of a refusal's text
_SWEEP_S = 0.1
_ERROR_TEXT, _NAME_TEXT = 500, 200  # characters kept of what a server says in errors, and in names
_DEATHS_BEFORE_FRESH = 2
_HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream", "User-Agent": "endsweep"}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds without progress before a request is given up."""

    connect: float = 30.0
    first_byte: float = 300.0
    idle: float = 120.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most bytes of one reply's body (as unpacked), and of one event in it, that are taken before it is given up.

    Far beyond any real reply: they keep an endless one from filling the memory. (The head has a bound of its own.)
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


class Watched(ABC):
    """A request under way, as the time-out sweep sees it: given up `limit_ns` after `since_ns`, with `lapse`."""

    __slots__ = ("expired", "lapse", "limit_ns", "since_ns")

    def __init__(self, limit_s: float, now_ns: int) -> None:
        self.limit_ns = int(limit_s * 1e9)
        self.since_ns = now_ns
        self.lapse = Outcome.FIRST_BYTE_TIMEOUT
        self.expired = False

    @property
    def lapsed(self) -> tuple[Outcome, str]:
        return self.lapse, f"no byte for {self.limit_ns / 1e9:g} s"

    @abstractmethod
    def give_up(self) -> None:
        """Called once, when the time is over."""


class Attempts(ABC):
    """POSTs calls to one URL and reads event streams.

    Connections are kept alive and reused, except where the server shows (`ReusePolicy`) that it closes them unsaid.
    A request on a reused connection that dies before any reply byte is sent again, once, on a fresh connection.
    """

    name: str

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        timeouts: Timeouts | None = None,
        bounds: Bounds | None = None,
        policy: ReusePolicy | None = None,
        tls: ssl.SSLContext | None = None,
        streamed: bool = True,
        keep_text: bool = False,
        counter: TokenCounter | None = None,
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
        self._tls = tls
        self._streamed = streamed
        self._keep_text, self._counter = keep_text, counter
        self._scrub = scrub
        self._now = now_ns
        self._watched: set[Watched] = set()
        self._sweeper: asyncio.Task[None] | None = None

    async def send(self, call: Call, exchange: Exchange, on_progress: Progress | None = None) -> None:
        """See `Transport.send`."""
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        died = await self._try(call, exchange, on_progress, fresh=not self._policy.reuse)
        if died:
            self._policy.deaths += 1
            exchange.retry_lost_ns = self._now() - (exchange.sent_ns or exchange.issued_ns)
            exchange.connected_ns = exchange.sent_ns = exchange.ended_ns = None
            exchange.outcome = exchange.error = None
            await self._try(call, exchange, on_progress, fresh=True)

    async def _try(self, call: Call, exchange: Exchange, on_progress: Progress | None, *, fresh: bool) -> bool:
        """One try. True when it died on a reused connection before any reply byte (and is worth one more)."""
        exchange.attempts += 1
        exchange.reused = False
        exchange.streamed = self._streamed
        keep = self._keep_text or self._counter is not None
        reply = (Reply if self._streamed else WholeReply)(keep_text=keep, max_event_bytes=self._bounds.event)
        try:
            began = await self._attempt(call, exchange, reply, on_progress, fresh=fresh)
        finally:
            if reply.error is not None and exchange.outcome is not None:  # explains whatever happened after it
                exchange.outcome, exchange.error = Outcome.ERROR_EVENT, reply.error
            exchange.ended_ns = exchange.ended_ns or self._now()
            _copy(reply, exchange)
            if not self._keep_text:
                exchange.text = exchange.token_ids = None
            _clean(exchange, self._scrub)
        if self._counter is not None and exchange.outcome is Outcome.OK:
            await _count(reply, exchange, self._counter)
        return exchange.reused and not began and exchange.outcome is Outcome.RESET

    @abstractmethod
    async def _attempt(
        self, call: Call, exchange: Exchange, reply: Reply, on_progress: Progress | None, *, fresh: bool
    ) -> bool:
        """Carry the call on a connection of its own (`fresh`) or any; fill `reply` and the exchange's outcome.

        Returns whether any byte of a reply came. Raises only asyncio.CancelledError.
        """

    async def _sweep(self) -> None:
        """One timer for all requests: a timer each would cost as much as reading a chunk."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = self._now()
            for watched in list(self._watched):
                if not watched.expired and now - watched.since_ns > watched.limit_ns:
                    watched.expired = True
                    watched.give_up()

    async def close(self) -> None:
        """Close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None


def progress_of(reply: Reply) -> int:
    """Tokens that have arrived, or fragments where the server does not tell."""
    usage = reply.usage
    return max(len(reply.chunk_ns), (usage.output_tokens or 0) if usage else 0)


def refusal(status: int, body: bytes) -> str:
    """What a reply that is no success says, in one line."""
    try:
        said = error_of(parse(body))
    except NotAnEvent:
        said = None
    text = said or " ".join(body.decode("utf-8", "replace").split())
    return f"HTTP {status}: {text}" if text else f"HTTP {status}"


def _clean(exchange: Exchange, scrub: Callable[[str], str] | None) -> None:
    """A server may echo a key anywhere in what it says: take it out, and only then cut long texts, never through it."""
    limits = {"error": _ERROR_TEXT, "text": None}
    for name in (*limits, "finish_reason", "model", "system_fingerprint", "request_id", "retry_after"):
        said = getattr(exchange, name)
        if said:
            setattr(exchange, name, (scrub(said) if scrub else said)[: limits.get(name, _NAME_TEXT)])


async def _count(reply: Reply, exchange: Exchange, counter: TokenCounter) -> None:
    """In a thread, which a tokenizer leaves the interpreter to others in: arrivals of other streams are stamped on."""
    fragments = reply.fragments
    if not fragments:
        return
    counts = await asyncio.to_thread(counter.count, fragments)
    exchange.counted_tokens = sum(counts)
    if exchange.chunk_tokens is None and exchange.counted_tokens:
        exchange.chunk_tokens = counts


def _copy(reply: Reply, exchange: Exchange) -> None:
    exchange.chunk_ns = reply.chunk_ns
    exchange.chunk_tokens = reply.chunk_tokens()
    exchange.first_visible_ns = reply.first_visible_ns
    exchange.text_bytes = reply.text_bytes
    exchange.text_hash = reply.text_hash
    exchange.text = reply.text
    exchange.token_ids = reply.token_ids()
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
    if reply.drafting is not None:
        exchange.drafts = reply.drafting.drafts
        exchange.drafted_tokens, exchange.accepted_tokens = reply.drafting.drafted, reply.drafting.accepted
