"""The seam between the load and the wire: one request in, one exchange out, whoever carries it.

Real transports measure; the virtual one drives the simulator's engine in virtual time. Both fill the same `Exchange`.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, field
from typing import Protocol

from endpoints.outcomes import Outcome

Progress = Callable[[int], None]
"""Called with how many tokens (or, where they are not told, fragments) have arrived so far."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, serialised before its clock starts. `seed` and `prompt_bytes` are what a virtual server goes by."""

    body: bytes
    requested_tokens: int
    prompt_bytes: int
    seed: int


@dataclass(slots=True)
class Exchange:
    """What happened to one request. Times are ns on the sweep's clock; None where the moment never came.

    `issued_ns` is set by the load; every other stamp by the transport, and `sent_ns` anew for a second attempt.
    The load owns the object, so what is known of a cancelled request is not lost.
    """

    issued_ns: int = 0
    connected_ns: int | None = None
    sent_ns: int | None = None
    headers_ns: int | None = None
    first_visible_ns: int | None = None
    ended_ns: int | None = None
    reused: bool = False
    streamed: bool = True  # False: the reply came as one body, so there is no time of a first token
    attempts: int = 0
    retry_lost_ns: int = 0
    status: int | None = None
    outcome: Outcome | None = None
    error: str | None = None
    retry_after: str | None = None
    pause_s: float | None = None  # how long the server asks to wait before the next request
    chunk_ns: MutableSequence[int] = field(default_factory=list)  # of real transports an array('q')
    chunk_tokens: list[int] | None = None
    counted_tokens: int | None = None  # by a tokenizer of ours
    text_bytes: int = 0
    text_hash: str = ""
    text: str | None = None
    token_ids: list[int] | None = None  # where texts are kept, and the server lists them
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    drafts: int | None = None  # verified for this reply, where it tells; so with the two below
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    reasoned: bool = False
    finish_reason: str | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    request_id: str | None = None
    dropped_events: int = 0
    worker: int = 0  # which worker process carried it


class Transport(Protocol):
    """Carries calls to one arm. `name` is what `point.json` says carried them."""

    name: str

    async def send(self, call: Call, exchange: Exchange, on_progress: Progress | None = None) -> None:
        """Carry one call and fill `exchange`; never raises for what the network or the server does.

        A cancellation (asyncio.CancelledError) passes through, with `exchange` holding what was known by then.
        """
        ...

    async def close(self) -> None: ...
