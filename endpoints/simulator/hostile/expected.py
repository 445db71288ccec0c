"""What a client that is right about everything reports for one request, and the case that it is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from endpoints.simulator.hostile.sse import INPUT_TOKENS, OUTPUT_TOKENS, TEXT
from endpoints.simulator.hostile.wire import Play


@dataclass(frozen=True, slots=True)
class Expected:
    """Of one request. Where None means something, it is said here.

    `outcome`: "ok" or the class of the failure. `status`: None when no whole head came.
    `output_tokens`, `input_tokens`, `cached_tokens`, `reasoning_tokens`: as the server stated them; None: unknown.
    `streamed_tokens`: output tokens that could be seen to arrive; None: as `output_tokens`.
    `token_source`: "usage"; "chunks", when only the fragments can be counted; "none", when there are none either.
    `fragments`: events that brought generated text (content, reasoning, tool calls); None: as many as were read.
    `tokens_per_fragment`: None where it cannot be known.
    `ttft_at_least`, `ttft_at_most`: seconds from the request's first byte to the first fragment; None: any.
    `visible_at_least`: the same to the first text that a reader sees.
    `dropped_events`: events that were no JSON object. `attempts`: how often it was sent, at most.
    `text`: all the generated text, in order of arrival; None: any.
    """

    why: str
    outcome: str = "ok"
    status: int | None = 200
    output_tokens: int | None = None
    input_tokens: int | None = None
    streamed_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    token_source: str = "none"
    fragments: int | None = 0
    tokens_per_fragment: tuple[int, ...] | None = None
    ttft_at_least: float | None = None
    ttft_at_most: float | None = None
    visible_at_least: float | None = None
    dropped_events: int = 0
    attempts: int = 1
    finish_reason: str | None = None
    retry_after: str | None = None
    text: str | None = None


def whole(why: str, **but: Any) -> Expected:
    """The ordinary reply: eight tokens in eight fragments, counted by usage, finished with "stop"."""
    ordinary: dict[str, Any] = {
        "output_tokens": OUTPUT_TOKENS,
        "input_tokens": INPUT_TOKENS,
        "token_source": "usage",
        "fragments": OUTPUT_TOKENS,
        "finish_reason": "stop",
        "text": TEXT,
    }
    return Expected(why, **(ordinary | but))


def uncounted(why: str, **but: Any) -> Expected:
    """The ordinary reply of a server that states no count that can be used."""
    return whole(why, **({"output_tokens": None, "input_tokens": None, "token_source": "chunks"} | but))


def failed(outcome: str, why: str, **but: Any) -> Expected:
    """A failure; with `fragments`, after so much text."""
    return Expected(why, outcome, **({"token_source": "chunks" if but.get("fragments") else "none"} | but))


@dataclass(frozen=True, slots=True)
class Case:
    """One behaviour of a server. `what` it does is a phrase; `expected` is of the `asks`-th request a client sends.

    `everywhere`: it answers GETs so, too, which otherwise are answered as they should be.
    `endless`: it sends for as long as anybody reads. `greeting`: sent as a connection opens, before any request.
    """

    name: str
    kind: str
    what: str
    expected: Expected
    play: Play
    asks: int = 1
    everywhere: bool = False
    endless: bool = False
    greeting: bytes = b""
