"""When tokens come, how many at a time, and servers that answer some requests only."""

from __future__ import annotations

import asyncio
from typing import Any

from endpoints.simulator.hostile import sse
from endpoints.simulator.hostile.errors import JSON
from endpoints.simulator.hostile.expected import Case, Expected, failed, uncounted, whole
from endpoints.simulator.hostile.sse import (
    BODY,
    DONE,
    FINISH,
    PAUSE_S,
    REPLY,
    ROLE,
    TAIL,
    TOKENS,
    WORDS,
    chat,
    counts,
    token,
    usage,
)
from endpoints.simulator.hostile.wire import LAST_CHUNK, STREAM, Play, Wire, body, chunk, chunked, head, raw, stream

KIND = "pacing"
T = TOKENS
_late: dict[str, Any] = {"ttft_at_least": PAUSE_S}
_soon: dict[str, Any] = {"ttft_at_most": PAUSE_S}
HEAD = head("200 OK", *STREAM)


def _case(name: str, what: str, expected: Expected, play: Play, asks: int = 1) -> Case:
    return Case(name, KIND, what, expected, play, asks)


def _spaced(*blocks: bytes, every: float = 0.02) -> tuple[bytes | float, ...]:
    return tuple(item for block in blocks for item in (block, every))


def _by_turns(*plays: Play) -> Play:
    """The first for the first request, and so on; the last for all that follow."""

    async def play(wire: Wire) -> None:
        await plays[min(wire.nth, len(plays)) - 1](wire)

    return play


async def _held_back(wire: Wire) -> None:
    """A proxy that collects the whole reply, and then gives it out in pieces with no time between them."""
    await asyncio.sleep(PAUSE_S)
    await wire.send(HEAD, *map(chunk, REPLY), LAST_CHUNK)


_busy = body("429 Too Many Requests", b'{"error":{"message":"slow down"}}', JSON, "Retry-After: 1")
_good = stream(*REPLY)
_broken = body("500 Internal Server Error", b"", "Connection: close")

CASES = [
    _case(
        "one-token",
        "a reply of one token",
        whole("no time per token in it, but a whole reply", output_tokens=1, fragments=1, text="The"),
        stream(ROLE, T[0], FINISH, usage(counts(1)), DONE),
    ),
    _case(
        "one-token-uncounted",
        "a reply of one token, and no usage",
        uncounted("a whole reply", fragments=1, text="The"),
        stream(ROLE, T[0], FINISH, DONE),
    ),
    _case(
        "no-token",
        "a reply of no tokens, counted as such",
        Expected("a reply without any text is no success", "empty", input_tokens=5, finish_reason="stop"),
        stream(ROLE, FINISH, usage(counts(0)), DONE),
    ),
    _case(
        "all-in-one-event",
        "eight tokens in one event",
        whole("one fragment of eight tokens, not one token", fragments=1),
        stream(ROLE, token(sse.TEXT), *TAIL),
    ),
    _case(
        "all-in-one-event-uncounted",
        "eight tokens in one event, and no usage",
        uncounted("one fragment, and nobody knows of how many tokens", fragments=1),
        stream(ROLE, token(sse.TEXT), FINISH, DONE),
    ),
    _case(
        "several-tokens-an-event",
        "4, 1 and 3 tokens in three events (speculation)",
        whole("tokens come from usage, not from counting events", fragments=3, **_soon),
        stream(ROLE, token("".join(WORDS[:4])), PAUSE_S, T[4], 0.02, token("".join(WORDS[5:])), *TAIL),
    ),
    _case(
        "bursts-of-one-token-events",
        "an event a token, the 3, 1, 2 and 2 of each step in one write (speculation)",
        whole("eight fragments at four moments", **_soon),
        stream(ROLE, b"".join(T[:3]), PAUSE_S, T[3], 0.02, b"".join(T[4:6]), 0.02, b"".join(T[6:]), *TAIL),
    ),
    _case(
        "bursts-of-five",
        "a proxy passes on five events at a time",
        whole("what it does to time, the stamps show"),
        stream(*_spaced(b"".join(REPLY[:5]), b"".join(REPLY[5:10]), b"".join(REPLY[10:]))),
    ),
    _case(
        "held-back",
        "everything at the end, head included (a buffering proxy)",
        whole("the first token came when it came", **_late),
        _held_back,
    ),
    _case(
        "held-back-after-the-head",
        "the head at once, everything else at the end",
        whole("a head is no token", **_late),
        raw(HEAD, PAUSE_S, *map(chunk, REPLY), LAST_CHUNK, then="keep"),
    ),
    _case(
        "one-packet",
        "head and body in one write",
        whole("every stamp is there, though they are one moment"),
        raw(HEAD + chunked(*REPLY), then="keep"),
    ),
    _case(
        "one-packet-with-length",
        "the same with a length",
        whole("every stamp is there, though they are one moment"),
        body("200 OK", BODY, STREAM[0]),
    ),
    _case("steady", "a token every 20 ms", whole("the ordinary pace"), stream(*_spaced(*REPLY))),
    _case(
        "slow-start",
        "the head at once, the first event later",
        whole("the wait is in the time to the first token", **_late),
        stream(PAUSE_S, *REPLY),
    ),
    _case(
        "slow-head",
        "head and body late",
        whole("the wait is in the time to the first token", **_late),
        raw(PAUSE_S, HEAD + chunked(*REPLY), then="keep"),
    ),
    _case(
        "kept-alive-by-comments",
        "a comment every 100 ms for 0.8 s, then the tokens",
        whole("bytes come: not idle", ttft_at_least=0.8),
        stream(*_spaced(*[b": waiting\n\n"] * 8, every=0.1), *REPLY),
    ),
    _case(
        "kept-alive-by-empty-deltas",
        "an empty delta every 100 ms for 0.8 s, then the tokens",
        whole("bytes come: not idle; nor is it text", ttft_at_least=0.8),
        stream(*_spaced(*[chat({"content": ""})] * 8, every=0.1), *REPLY),
    ),
    _case(
        "pause-mid-stream",
        "a pause of 0.25 s between two tokens",
        whole("slow is not dead"),
        stream(*REPLY[:4], 0.25, *REPLY[4:]),
    ),
    _case(
        "slow-finish",
        "all tokens, a pause, and then finish reason and usage",
        whole("the last token's time is not that of the last byte", **_soon),
        stream(ROLE, *T, PAUSE_S, *TAIL),
    ),
    _case(
        "rate-limited-first",
        "429 for the first request",
        failed("rate_limited", "neither slow nor failed: asked to wait", status=429, retry_after="1"),
        _by_turns(_busy, _good),
    ),
    _case(
        "rate-limited-then-not",
        "429 for the first request; the second",
        whole("a refusal harms no other request"),
        _by_turns(_busy, _good),
        2,
    ),
    _case(
        "every-third-fails",
        "500 and a close for every third request; the third",
        failed("http_5xx", "a failure enters no ratio", status=500),
        _by_turns(_good, _good, _broken, _good),
        3,
    ),
    _case(
        "recovers-from-a-reset",
        "a reset for the first request; the second",
        whole("a reset harms no other request"),
        _by_turns(raw(then="reset"), _good),
        2,
    ),
    _case(
        "recovers-from-nonsense",
        "no HTTP for the first request; the second",
        whole("one connection's nonsense harms no other"),
        _by_turns(raw(bytes(range(256))), _good),
        2,
    ),
    _case(
        "recovers-from-a-bad-chunk",
        "a bad chunk size in the first reply; the second",
        whole("one connection's nonsense harms no other"),
        _by_turns(raw(HEAD + b"zz\r\n"), _good),
        2,
    ),
]
