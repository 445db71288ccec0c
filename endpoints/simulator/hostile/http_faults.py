"""HTTP itself: codings, heads and chunks in unusual, illegal and endless forms. What is right is what RFC 9112 says.

A head, a line or a body without an end must end as a failure with a class, never in a full memory.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import Any

from endpoints.simulator.hostile.expected import Case, Expected, failed, whole
from endpoints.simulator.hostile.sse import BODY, PAUSE_S, REPLY, ROLE, TOKENS, WORDS, paused, token
from endpoints.simulator.hostile.wire import (
    LAST_CHUNK,
    STREAM,
    Play,
    Script,
    Wire,
    chunk,
    chunked,
    flood,
    head,
    raw,
    stream,
)

KIND = "http"
T = TOKENS
HEAD = head("200 OK", *STREAM)
_three = (ROLE, *T[:3])


def _case(name: str, what: str, expected: Expected, play: Play, *, everywhere: bool = False) -> Case:
    return Case(name, KIND, what, expected, play, everywhere=everywhere)


def _endless(name: str, what: str, expected: Expected, play: Play) -> Case:
    return Case(name, KIND, what, expected, play, endless=True)


def _bad(why: str, **but: Any) -> Expected:
    """No HTTP that can be read: no whole head came."""
    return failed("bad_stream", why, **({"status": None} | but))


def _bad_chunk(size_line: bytes, said: bytes = T[3]) -> Play:
    return raw(HEAD, *map(chunk, _three), size_line + b"\r\n" + said + b"\r\n" + LAST_CHUNK)


def _after_three(why: str) -> Expected:
    return failed("bad_stream", why, fragments=3, text="".join(WORDS[:3]))


def _headed(*headers: str, before: bytes = b"") -> Play:
    """A good reply with more headers, in one write with all that comes before."""
    return raw(before + head("200 OK", *headers, *STREAM) + chunked(*REPLY), then="keep")


def _head_as(text: bytes) -> Play:
    """A good reply under a head written by hand."""
    return raw(text + chunked(*REPLY), then="keep")


def _compressed(coding: str, wbits: int) -> Play:
    """Each event is flushed by itself, so that it can be read at once."""
    packer = zlib.compressobj(wbits=wbits)
    script: list[Script] = []
    for item in paused():
        script.append(packer.compress(item) + packer.flush(zlib.Z_SYNC_FLUSH) if isinstance(item, bytes) else item)
    return stream(*script, packer.flush(), headers=(*STREAM, f"Content-Encoding: {coding}"))


def _bomb() -> Play:
    """Two gigabytes of one comment in a few megabytes of gzip, made as it is read."""

    async def play(wire: Wire) -> None:
        wire.keep = False
        packer = zlib.compressobj(wbits=31)
        await wire.send(head("200 OK", *STREAM, "Content-Encoding: gzip"))
        await wire.chunks(packer.compress(b"".join(_three) + b": "))
        zeros = bytes(2**20)
        for _ in range(2048):
            await wire.chunks(packer.compress(zeros) + packer.flush(zlib.Z_SYNC_FLUSH))

    return play


async def _dripping_head(wire: Wire) -> None:
    wire.keep = False
    await wire.send(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    for _ in range(1000):
        await wire.send(b"x")
        await asyncio.sleep(0.02)


async def _informing(wire: Wire) -> None:
    wire.keep = False
    for _ in range(1000):
        await wire.send(head("103 Early Hints", "Link: </style.css>; rel=preload"))
        await asyncio.sleep(0.02)


_names = [f"X-Header-{n}: {n}" for n in range(10_000)]
_size = len(BODY)

CASES = [
    _case(
        "gzip",
        "the whole body compressed, though it was asked not to be",
        whole("read all the same"),
        raw(head("200 OK", *STREAM, "Content-Encoding: gzip") + chunked(gzip.compress(BODY)), then="keep"),
    ),
    _case(
        "gzip-by-event",
        "gzip, flushed after each event",
        whole("seen as it arrives", ttft_at_most=PAUSE_S),
        _compressed("gzip", 31),
    ),
    _case(
        "deflate-by-event",
        "deflate, flushed after each event",
        whole("seen as it arrives", ttft_at_most=PAUSE_S),
        _compressed("deflate", 15),
    ),
    _case(
        "gzip-not-so",
        "`Content-Encoding: gzip`, and a body that is not",
        failed("bad_stream", "cannot be unpacked"),
        raw(head("200 OK", *STREAM, "Content-Encoding: gzip") + chunked(*REPLY)),
    ),
    _endless(
        "gzip-bomb",
        "gzip that unpacks to two gigabytes",
        failed("bad_stream", "the bound is on what comes out", fragments=3),
        _bomb(),
    ),
    _case("identity", "`Content-Encoding: identity`", whole("no coding at all"), _headed("Content-Encoding: identity")),
    _case(
        "continue-100",
        "100 Continue before the reply, unasked",
        whole("an interim reply"),
        _headed(before=head("100 Continue")),
    ),
    _case(
        "early-hints-103",
        "103 Early Hints before the reply",
        whole("an interim reply"),
        _headed(before=head("103 Early Hints", "Link: </x>; rel=preload")),
    ),
    _case(
        "interim-replies",
        "five interim replies of several kinds before the reply",
        whole("as many as it likes"),
        _headed(before=head("100 Continue") * 2 + head("102 Processing") + head("103 Early Hints", "X: y") * 2),
    ),
    _case(
        "interim-for-ever",
        "interim replies, and never another",
        failed("first_byte_timeout", "none of them is a reply", status=None),
        _informing,
    ),
    _endless(
        "interim-flood",
        "interim replies as fast as they are read",
        failed("first_byte_timeout", "none of them is a reply", status=None),
        flood(b"", head("103 Early Hints", "X: y")),
    ),
    _case(
        "switching-protocols",
        "101 Switching Protocols, unasked",
        failed("not_a_stream", "no reply to what was asked", status=101),
        raw(head("101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade") + b"\x81\x05hello"),
    ),
    _case(
        "header-7k",
        "a header of 7 kB",
        whole("long, but not absurd"),
        _headed("Content-Security-Policy: " + "x" * 7000),
    ),
    _case("header-1m", "a header of 1 MB", _bad("heads are bounded"), _headed("X: " + "x" * 2**20)),
    _case("headers-90", "ninety headers", whole("many, but not absurd"), _headed(*_names[:90])),
    _case("headers-10000", "ten thousand headers", _bad("heads are bounded"), _headed(*_names)),
    _endless(
        "header-endless", "a header without an end", _bad("heads are bounded"), flood(b"HTTP/1.1 200 OK\r\nX: ", b"x")
    ),
    _endless(
        "headers-endless",
        "headers without an end",
        _bad("heads are bounded"),
        flood(b"HTTP/1.1 200 OK\r\n", b"X-Again: and again\r\n"),
    ),
    _endless(
        "status-line-endless",
        "a status line without an end",
        _bad("heads are bounded"),
        flood(b"HTTP/1.1 200 ", b"OK "),
    ),
    _case(
        "head-dripping",
        "a byte of the head every 20 ms, for ever",
        failed("first_byte_timeout", "no byte of a body comes", status=None),
        _dripping_head,
    ),
    _case(
        "head-byte-by-byte",
        "every byte of the head in a write of its own",
        whole("bytes may be cut anywhere"),
        raw(*(bytes([b]) for b in HEAD), chunked(*REPLY), then="keep"),
    ),
    _endless(
        "line-endless",
        "three tokens, then a data line without an end",
        failed("bad_stream", "events are bounded", fragments=3),
        flood(HEAD + chunked(*_three)[: -len(LAST_CHUNK)], chunk(b"data: " + b"x" * 8192)),
    ),
    _endless(
        "event-endless",
        "three tokens, then data lines without a blank one",
        failed("bad_stream", "events are bounded", fragments=3),
        flood(HEAD + chunked(*_three)[: -len(LAST_CHUNK)], chunk(b"data: {\n" * 1024)),
    ),
    _endless(
        "comment-endless",
        "three tokens, then a comment without an end",
        failed("bad_stream", "lines are bounded", fragments=3),
        flood(HEAD + chunked(*_three)[: -len(LAST_CHUNK)] + chunk(b": "), chunk(b"x" * 8192)),
    ),
    _endless(
        "comments-endless",
        "three tokens, then comments without an end",
        failed("bad_stream", "replies are bounded", fragments=3),
        flood(HEAD + chunked(*_three)[: -len(LAST_CHUNK)], chunk(b": on and on\n\n" * 1024)),
    ),
    _endless(
        "tokens-endless",
        "tokens without an end",
        failed("bad_stream", "replies are bounded", fragments=None, token_source="chunks"),
        flood(HEAD, chunk(token("on and on ") * 64)),
    ),
    _endless(
        "nonsense-endless",
        "lines without an end that are no fields",
        failed("bad_stream", "replies are bounded"),
        flood(HEAD, chunk(b"\xff\xfe lorem ipsum\r\n" * 512)),
    ),
    _endless(
        "trailers-endless",
        "a whole reply, then trailers without an end",
        whole("the reply was over"),
        flood(HEAD + chunked(*REPLY)[:-2], b"X-Again: and again\r\n"),
    ),
    _endless(
        "after-done-endless",
        "a whole reply, then chunks without an end",
        whole("the reply was over"),
        flood(HEAD + chunked(*REPLY)[: -len(LAST_CHUNK)], chunk(b": on and on\n\n" * 1024)),
    ),
    _endless(
        "chunk-extension-endless",
        "three tokens, then a chunk extension without an end",
        failed("idle_timeout", "bytes, but none of the body", fragments=3),
        flood(HEAD + chunked(*_three)[: -len(LAST_CHUNK)] + b"5;x=", b"y"),
    ),
    _case(
        "obs-fold",
        "a header folded over two lines",
        whole("the fold is a space"),
        _headed("X-Folded: one\r\n two\r\n\tthree"),
    ),
    _case(
        "names-in-lower-case",
        "header names in lower case",
        whole("names are read in any case"),
        _head_as(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"),
    ),
    _case(
        "names-in-upper-case",
        "header names, and codings, in upper case",
        whole("names are read in any case, and so are codings"),
        _head_as(b"HTTP/1.1 200 OK\r\nCONTENT-TYPE: TEXT/EVENT-STREAM\r\nTRANSFER-ENCODING: CHUNKED\r\n\r\n"),
    ),
    _case(
        "no-space-in-headers",
        "no space after the colon, and too many",
        whole("white space around a value is nothing"),
        _head_as(b"HTTP/1.1 200 OK\r\nContent-Type:text/event-stream\r\nTransfer-Encoding: \t chunked \t \r\n\r\n"),
    ),
    _case(
        "no-reason",
        "`HTTP/1.1 200`, no reason and no space",
        whole("the reason is optional; so, in practice, is its space"),
        _head_as(b"HTTP/1.1 200\r\n" + HEAD.partition(b"\r\n")[2]),
    ),
    _case(
        "reason-of-any-kind",
        "a reason of ten words in UTF-8",
        whole("nobody reads it"),
        _head_as(
            "HTTP/1.1 200 Tout va très bien, madame la marquise, tout va bien\r\n".encode() + HEAD.partition(b"\r\n")[2]
        ),
    ),
    _case(
        "header-in-utf-8",
        "a header value in UTF-8",
        whole("opaque bytes"),
        _head_as(HEAD[:-2] + "X-Region: Zürich\r\n\r\n".encode()),
    ),
    _case("header-empty", "headers with empty values", whole("legal"), _headed("X-Empty:", "Retry-After: ")),
    _case(
        "cookies",
        "cookies are set",
        whole("never sent back: a client like any other, each time"),
        _headed("Set-Cookie: a=b; Path=/", "Set-Cookie: route=1; Secure"),
    ),
    _case(
        "chunk-extensions",
        "extensions on every chunk",
        whole("ignored"),
        raw(
            HEAD,
            *(chunk(e).replace(b"\r\n", b';name=value;quoted="a;b"\r\n', 1) for e in REPLY),
            b"0;last\r\n\r\n",
            then="keep",
        ),
    ),
    _case(
        "chunk-sizes-upper-case",
        "chunk sizes in upper case",
        whole("hexadecimal, in any case"),
        raw(HEAD, *(b"%X\r\n%s\r\n" % (len(e), e) for e in REPLY), LAST_CHUNK, then="keep"),
    ),
    _case(
        "chunk-sizes-with-zeros",
        "chunk sizes with leading zeros",
        whole("legal"),
        raw(HEAD, *(b"%08x\r\n%s\r\n" % (len(e), e) for e in REPLY), b"0000\r\n\r\n", then="keep"),
    ),
    _case(
        "chunk-borders",
        "chunks of five bytes, cut from writes of seven",
        whole("neither chunks nor writes are events"),
        raw(
            HEAD,
            *(lambda b: (b[at : at + 7] for at in range(0, len(b), 7)))(
                chunked(*(BODY[at : at + 5] for at in range(0, _size, 5)))
            ),
            then="keep",
        ),
    ),
    _case("chunk-of-all", "the whole body in one chunk", whole("neither chunks nor writes are events"), stream(BODY)),
    _case(
        "trailers",
        "trailers behind the last chunk",
        whole("read past"),
        raw(HEAD + chunked(*REPLY)[:-2] + b"X-Time: 12\r\nServer-Timing: total;dur=3\r\n\r\n", then="keep"),
    ),
    _case("chunk-size-nonsense", "a chunk size `zz`", _after_three("no chunk begins like that"), _bad_chunk(b"zz")),
    _case("chunk-size-negative", "a chunk size `-5`", _after_three("no chunk begins like that"), _bad_chunk(b"-5")),
    _case("chunk-size-0x", "a chunk size `0x20`", _after_three("no chunk begins like that"), _bad_chunk(b"0x20")),
    _case(
        "chunk-size-overflow",
        "a chunk size of twenty hexadecimal digits",
        _after_three("no reply is that long"),
        _bad_chunk(b"f" * 20),
    ),
    _case(
        "chunk-size-too-small",
        "a chunk longer than its size",
        _after_three("what follows a chunk is a line end"),
        _bad_chunk(b"5"),
    ),
    _case(
        "chunk-size-too-large",
        "a chunk shorter than its size, then a close",
        failed("truncated", "the chunk is not whole", fragments=4),
        raw(HEAD, *map(chunk, _three), b"ffff\r\n" + T[3] + b"\r\n" + LAST_CHUNK),
    ),
    _case(
        "lengths-that-differ",
        "two lengths that differ",
        _bad("nobody knows where the body ends"),
        raw(head("200 OK", STREAM[0], f"Content-Length: {_size}", f"Content-Length: {_size - 9}") + BODY),
    ),
    _case(
        "line-feeds-in-the-head",
        "a head whose lines end with LF alone",
        whole("a recipient may read them so"),
        _head_as(HEAD.replace(b"\r\n", b"\n")),
    ),
    _case(
        "length-nonsense",
        "a length that is a word",
        _bad("nobody knows where the body ends"),
        raw(head("200 OK", STREAM[0], "Content-Length: many") + BODY),
    ),
    _case(
        "length-negative",
        "a length of -1",
        _bad("nobody knows where the body ends"),
        raw(head("200 OK", STREAM[0], "Content-Length: -1") + BODY),
    ),
    _case("not-http", "words instead of a reply", _bad("no HTTP"), raw(b"hello, who is there?\r\n\r\n")),
    _case("binary-instead", "bytes of all kinds instead of a reply", _bad("no HTTP"), raw(bytes(range(256)))),
    _case("http-0.9", "an event stream without any head", _bad("no HTTP of this century"), raw(BODY)),
    _case("status-nonsense", "`HTTP/1.1 OK 200`", _bad("no status"), raw(b"HTTP/1.1 OK 200\r\n\r\n" + BODY)),
    _case("ssh", "an SSH server, for every request", _bad("no HTTP"), raw(b"SSH-2.0-OpenSSH_9.6\r\n"), everywhere=True),
    Case(
        "banner",
        KIND,
        "an SSH server that speaks first, before any request",
        _bad("no HTTP"),
        raw(then="open"),
        everywhere=True,
        greeting=b"SSH-2.0-OpenSSH_9.6\r\n",
    ),
    _case(
        "tls-alert",
        "a TLS server's alert, for every request",
        _bad("no HTTP"),
        raw(b"\x15\x03\x01\x00\x02\x02\x46"),
        everywhere=True,
    ),
    _case(
        "http-2",
        "HTTP/2 frames (SETTINGS, GOAWAY), for every request",
        _bad("another protocol"),
        raw(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"),
        everywhere=True,
    ),
    _case(
        "http-2-preface",
        "a client's HTTP/2 preface, sent back, for every request",
        _bad("another protocol"),
        raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        everywhere=True,
    ),
    _case(
        "header-without-colon",
        "a line in the head without a colon",
        _bad("no header"),
        _head_as(b"HTTP/1.1 200 OK\r\nnonsense\r\n" + HEAD.partition(b"\r\n")[2]),
    ),
    _case("header-nul", "a NUL in a header", _bad("no header may hold one"), _head_as(HEAD[:-2] + b"X: a\0b\r\n\r\n")),
]
