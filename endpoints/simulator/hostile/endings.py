"""How replies end, and fail to.

A reply is whole with a finish reason or [DONE]; [DONE] ends it wherever the body ends. Without [DONE] the body must end
as HTTP says (RFC 9112, section 8): one that breaks off is truncated, or reset when the connection was torn down.
"""

from __future__ import annotations

import asyncio
from typing import Any

from endpoints.simulator.hostile import sse
from endpoints.simulator.hostile.expected import Case, Expected, failed, uncounted, whole
from endpoints.simulator.hostile.sse import (
    BODY,
    DONE,
    FINISH,
    REPLY,
    ROLE,
    TOKENS,
    USAGE,
    WORDS,
    chat,
    event,
    frame,
    token,
)
from endpoints.simulator.hostile.wire import STREAM, Play, Wire, chunk, chunked, head, raw, stream

KIND = "endings"
T = TOKENS
HEAD = head("200 OK", *STREAM)
WHOLE = HEAD + chunked(*REPLY)
_three = tuple(map(chunk, (ROLE, *T[:3])))
_cut = chunk(T[3])[:40]  # inside an event, and inside its chunk
_finished = (ROLE, *T, FINISH, USAGE)  # whole, but for [DONE]
_counted: dict[str, Any] = {"fragments": 8, "output_tokens": 8, "input_tokens": 5, "token_source": "usage"}


def _case(name: str, what: str, expected: Expected, play: Play, asks: int = 1) -> Case:
    return Case(name, KIND, what, expected, play, asks)


def _after_three(outcome: str, why: str, **but: Any) -> Expected:
    return failed(outcome, why, fragments=3, text="".join(WORDS[:3]), **but)


def _nothing(outcome: str, why: str, **but: Any) -> Expected:
    return failed(outcome, why, status=None, **but)


def _sized(size: int, said: bytes, *, then: str = "close", version: str = "HTTP/1.1") -> Play:
    return raw(head("200 OK", STREAM[0], f"Content-Length: {size}", version=version) + said, then=then)


def _dies_when_reused(*said: bytes, how: str = "close", every_connection: bool = False) -> Play:
    """A good reply that keeps the connection; what comes on it next finds these bytes and the end of it."""

    async def play(wire: Wire) -> None:
        if wire.turn == 1 and not (every_connection and wire.nth > 1):
            await wire.send(WHOLE)
            return
        wire.keep = False
        await wire.send(*said)
        if how == "reset":
            await asyncio.sleep(0.05)
            wire.reset()

    return play


async def _half_closed(wire: Wire) -> None:
    await wire.send(head("200 OK", STREAM[0]) + BODY)
    wire.half_close()
    await wire.until_they_leave()


def _excess(said: bytes) -> Play:
    """A whole reply that keeps the connection, and more bytes behind it that nobody asked for."""
    return raw(WHOLE + said, then="keep")


_stale = HEAD + chunked(token("stale", id="stale"), FINISH, DONE)
_without_done = b"".join(_finished)

CASES = [
    _case("no-done", "a finish reason, and no [DONE]", whole("one of the two is enough"), stream(*_finished)),
    _case(
        "no-finish",
        "[DONE], and no finish reason",
        whole("one of the two is enough", finish_reason=None),
        stream(ROLE, *T, USAGE, DONE),
    ),
    _case(
        "neither",
        "tokens and usage, neither a finish reason nor [DONE]",
        failed("truncated", "a clean end of the body is no end of the reply", **_counted),
        stream(ROLE, *T, USAGE),
    ),
    _case(
        "neither-nor-usage",
        "tokens, and the body ends",
        failed("truncated", "a clean end of the body is no end of the reply", fragments=8),
        stream(ROLE, *T),
    ),
    _case("done-twice", "[DONE] twice", whole("once is enough"), stream(*REPLY, DONE)),
    _case(
        "done-without-space",
        "`data:[DONE]`",
        whole("the space is optional", finish_reason=None),
        stream(ROLE, *T, USAGE, b"data:[DONE]\n\n"),
    ),
    _case(
        "done-with-spaces",
        "`data:  [DONE] `",
        whole("white space is nothing", finish_reason=None),
        stream(ROLE, *T, USAGE, b"data:  [DONE] \n\n"),
    ),
    _case(
        "done-named",
        "[DONE] as an event named `done`, with an id",
        whole("the data says it", finish_reason=None),
        stream(ROLE, *T, USAGE, b"event: done\nid: 9\n" + DONE),
    ),
    _case(
        "done-misspelt",
        "`data: [done]`, after the finish reason",
        whole("no JSON: dropped; the finish reason came", dropped_events=1),
        stream(*_finished, b"data: [done]\n\n"),
    ),
    _case("text-after-done", "tokens after [DONE]", whole("[DONE] is the end"), stream(*REPLY, *T)),
    _case(
        "nonsense-after-done",
        "bytes of all kinds after [DONE]",
        whole("[DONE] is the end"),
        stream(*REPLY, bytes(range(256))),
    ),
    _case(
        "open-after-done",
        "the body never ends after [DONE]",
        whole("the reply is over, and the socket is given up"),
        raw(HEAD, *map(chunk, REPLY), then="open"),
    ),
    _case(
        "comments-after-done",
        "comments for ever after [DONE]",
        whole("the reply is over, and the socket is given up"),
        raw(HEAD, *map(chunk, REPLY), *((0.02, chunk(b": still here\n\n")) * 200)),
    ),
    _case(
        "open-after-finish",
        "everything but [DONE], and the body never ends",
        failed("idle_timeout", "more may come: who waits in vain has no whole reply", finish_reason="stop", **_counted),
        raw(HEAD, *map(chunk, _finished), then="open"),
    ),
    _case(
        "cut-in-an-event",
        "the connection closes inside an event",
        _after_three("truncated", "the body is not whole"),
        raw(HEAD, *_three, _cut),
    ),
    _case(
        "cut-between-events",
        "the connection closes between two chunks",
        _after_three("truncated", "the body is not whole"),
        raw(HEAD, *_three),
    ),
    _case(
        "cut-in-an-event-cleanly",
        "the body ends in order inside an event",
        _after_three("truncated", "a clean end of the body is no end of the reply"),
        stream(ROLE, *T[:3], T[3][:40]),
    ),
    _case(
        "no-last-chunk",
        "[DONE], and the connection closes without the last chunk",
        whole("the reply was over before the body broke off"),
        raw(HEAD, *map(chunk, REPLY)),
    ),
    _case(
        "no-last-chunk-nor-done",
        "a finish reason, and the connection closes without the last chunk",
        failed(
            "truncated",
            "the body is not whole, and no [DONE] says that nothing is missing",
            finish_reason="stop",
            **_counted,
        ),
        raw(HEAD, *map(chunk, _finished)),
    ),
    _case(
        "half-a-last-chunk",
        "[DONE], then half of the last chunk and a close",
        whole("the reply was over before the body broke off"),
        raw(HEAD, *map(chunk, REPLY), b"0\r\n"),
    ),
    _case("length", "a body of a stated length", whole("as good as chunks"), _sized(len(BODY), BODY, then="keep")),
    _case(
        "length-too-long",
        "fewer bytes than the length, with [DONE], and a close",
        whole("the reply was over before the body broke off"),
        _sized(len(BODY) + 100, BODY),
    ),
    _case(
        "length-too-long-no-done",
        "fewer bytes than the length, without [DONE], and a close",
        failed("truncated", "the body is not whole", finish_reason="stop", **_counted),
        _sized(len(BODY), _without_done),
    ),
    _case(
        "length-too-short",
        "more bytes than the length, which ends inside the fourth token",
        _after_three("truncated", "the body ends where its length says; the rest belongs to no reply"),
        _sized(len(b"".join((ROLE, *T[:3]))) + 30, BODY, then="keep"),
    ),
    _case(
        "length-before-done",
        "the length ends before [DONE], which comes all the same",
        whole("whole without it; the rest belongs to no reply"),
        _sized(len(_without_done), BODY, then="keep"),
    ),
    _case(
        "length-zero",
        "a length of 0, and a stream all the same",
        failed("empty", "the body ends where its length says"),
        _sized(0, BODY, then="keep"),
    ),
    _case(
        "reset-mid-stream",
        "a reset after three tokens",
        _after_three("reset", "torn down"),
        raw(HEAD, *_three, then="reset"),
    ),
    _case(
        "reset-in-an-event",
        "a reset inside an event",
        _after_three("reset", "torn down"),
        raw(HEAD, *_three, _cut, then="reset"),
    ),
    _case(
        "reset-at-once",
        "a reset before any byte of a reply",
        _nothing("reset", "torn down; on a fresh connection it is not asked again"),
        raw(then="reset"),
    ),
    _case(
        "reset-in-the-head",
        "a reset inside the head",
        _nothing("reset", "torn down"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Ty", then="reset"),
    ),
    _case("reset-after-the-head", "a reset after the head", failed("reset", "torn down"), raw(HEAD, then="reset")),
    _case(
        "reset-after-done",
        "a reset after [DONE], instead of the last chunk",
        whole("the reply was over"),
        raw(HEAD, *map(chunk, REPLY), then="reset"),
    ),
    _case(
        "reset-after-the-body", "a reset after the last chunk", whole("the reply was over"), raw(WHOLE, then="reset")
    ),
    _case(
        "close-at-once",
        "a close before any byte of a reply",
        _nothing("reset", "no reply at all; on a fresh connection it is not asked again"),
        raw(),
    ),
    _case(
        "close-after-the-status-line",
        "a close after the status line",
        _nothing("truncated", "a reply began"),
        raw(b"HTTP/1.1 200 OK\r\n"),
    ),
    _case(
        "close-in-the-head",
        "a close inside a header",
        _nothing("truncated", "a reply began"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Ty"),
    ),
    _case(
        "close-after-the-head",
        "a close after the head of a chunked reply",
        failed("truncated", "the body is not whole"),
        raw(HEAD),
    ),
    _case(
        "silence",
        "nothing at all, the connection open",
        _nothing("first_byte_timeout", "nothing came"),
        raw(then="open"),
    ),
    _case(
        "silence-in-the-head",
        "a status line, and nothing more",
        _nothing("first_byte_timeout", "no byte of a body came"),
        raw(b"HTTP/1.1 200 OK\r\n", then="open"),
    ),
    _case(
        "silence-after-the-head",
        "the head, and nothing more",
        failed("first_byte_timeout", "no byte of a body came: servers send the head before they begin to work"),
        raw(HEAD, then="open"),
    ),
    _case(
        "silence-after-the-role",
        "a role event, and nothing more",
        failed("idle_timeout", "bytes came, and then none"),
        raw(HEAD, chunk(ROLE), then="open"),
    ),
    _case(
        "silence-mid-stream",
        "three tokens, and nothing more",
        _after_three("idle_timeout", "bytes came, and then none"),
        raw(HEAD, *_three, then="open"),
    ),
    _case(
        "silence-in-an-event",
        "half an event, and nothing more",
        _after_three("idle_timeout", "bytes came, and then none"),
        raw(HEAD, *_three, _cut, then="open"),
    ),
    _case(
        "http-1.0",
        "HTTP/1.0, the body ended by the close",
        whole("an older way to end a body", ttft_at_most=sse.PAUSE_S),
        raw(head("200 OK", STREAM[0], version="HTTP/1.0"), *sse.paused()),
    ),
    _case(
        "http-1.0-length",
        "HTTP/1.0 with a length and `Connection: keep-alive`",
        whole("an older way to keep a connection"),
        raw(
            head("200 OK", STREAM[0], f"Content-Length: {len(BODY)}", "Connection: keep-alive", version="HTTP/1.0")
            + BODY,
            then="keep",
        ),
    ),
    _case(
        "close-delimited",
        "HTTP/1.1 without a length or chunks, ended by the close",
        whole("the close is the body's end"),
        raw(head("200 OK", STREAM[0]), *REPLY),
    ),
    _case(
        "close-delimited-cut",
        "the same, after three tokens",
        _after_three("truncated", "the body may be whole, the reply is not"),
        raw(head("200 OK", STREAM[0]), ROLE, *T[:3]),
    ),
    _case(
        "close-delimited-empty",
        "the same, before any byte of the body",
        failed("empty", "the body is whole, and empty"),
        raw(head("200 OK", STREAM[0])),
    ),
    _case(
        "half-close",
        "the same, by a half-close",
        whole("an end of the body is an end, though the connection is half open"),
        _half_closed,
    ),
    _case(
        "connection-close",
        "`Connection: close`, said and done",
        whole("said: not to be reused"),
        raw(head("200 OK", *STREAM, "Connection: close") + chunked(*REPLY)),
    ),
    _case(
        "connection-close-unmeant",
        "`Connection: close`, and the connection stays open",
        whole("said: not to be waited for"),
        raw(head("200 OK", *STREAM, "Connection: close") + chunked(*REPLY), then="open"),
    ),
    _case(
        "closed-after-each-reply",
        "each connection closes after a reply without a word; the second request",
        whole("asked again on a fresh connection, if it was sent at all", attempts=2),
        raw(WHOLE),
        asks=2,
    ),
    _case(
        "closed-when-reused",
        "a kept connection closes when its second request comes",
        whole("no byte of a reply had come: asked again, once, on a fresh connection", attempts=2),
        _dies_when_reused(),
        asks=2,
    ),
    _case(
        "reset-when-reused",
        "a kept connection is torn down when its second request comes",
        whole("no byte of a reply had come: asked again, once, on a fresh connection", attempts=2),
        _dies_when_reused(how="reset"),
        asks=2,
    ),
    _case(
        "closed-when-reused-mid-head",
        "a kept connection closes after one byte of its second reply",
        _nothing("truncated", "a byte had come: the server may have worked, so it is not asked again"),
        _dies_when_reused(b"H"),
        asks=2,
    ),
    _case(
        "closed-ever-after",
        "the first request is answered; then every connection closes when a request comes",
        _nothing("reset", "asked again once, not for ever", attempts=2),
        _dies_when_reused(every_connection=True),
        asks=2,
    ),
    _case(
        "a-second-reply",
        "another whole reply behind the first, which nobody asked for",
        whole("it must not answer the next request"),
        _excess(_stale),
    ),
    _case(
        "nonsense-behind",
        "bytes of all kinds behind the last chunk",
        whole("they must not spoil the next request"),
        _excess(bytes(range(256))),
    ),
    _case(
        "line-ends-behind",
        "empty lines behind the last chunk",
        whole("they must not spoil the next request"),
        _excess(b"\r\n\r\n"),
    ),
    _case(
        "gateway-gives-up",
        "a gateway writes `HTTP/1.1 502` into the chunked body",
        _after_three("bad_stream", "no chunk begins like that"),
        raw(HEAD, *_three, head("502 Bad Gateway") + b"<html>bad gateway</html>"),
    ),
    _case(
        "empty-reply",
        "role, finish reason and [DONE], and no text (a prompt that was too long, at some servers)",
        failed("empty", "a reply without any text is no success", finish_reason="stop"),
        stream(ROLE, FINISH, DONE),
    ),
    _case(
        "only-done", "[DONE] and nothing else", failed("empty", "a reply without any text is no success"), stream(DONE)
    ),
    _case(
        "finish-twice",
        "two finish reasons, `stop` and then `length`",
        whole("the last stands", finish_reason="length"),
        stream(ROLE, *T, FINISH, chat({}, "length"), USAGE, DONE),
    ),
    _case(
        "usage-then-cut",
        "usage with the last token, then a close: no finish reason, no [DONE]",
        failed("truncated", "a count is no end", **_counted),
        raw(HEAD, *map(chunk, (ROLE, *T[:-1], token(WORDS[-1], usage=sse.counts())))),
    ),
    _case(
        "uncounted-finish",
        "a finish reason and a clean end; no usage, no [DONE]",
        uncounted("whole, though not counted"),
        stream(*_finished[:-1], event(frame([]))),
    ),
]
