"""HTTP replies in any cut: the same head, body and end."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoints.incoming import Incoming, Unreadable

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = b"5\r\nhello\r\n6\r\n, all!\r\n0\r\n\r\n"
WHOLE = CHUNKED + BODY


def read(*blocks: bytes) -> tuple[Incoming, bytes]:
    incoming = Incoming()
    return incoming, b"".join(piece for block in blocks for piece in incoming.feed(block))


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_any_cut_gives_the_same(cuts: list[int]) -> None:
    cuts = sorted(cuts)
    incoming, body = read(*(WHOLE[a:b] for a, b in zip([0, *cuts], [*cuts, len(WHOLE)], strict=True)))
    assert (incoming.status, incoming.headers["content-type"], body) == (200, "text/event-stream", b"hello, all!")
    assert incoming.whole and incoming.reusable and incoming.error is None


@pytest.mark.parametrize(
    ("said", "reusable"),
    [
        (WHOLE, True),
        (WHOLE + b"\r\n", True),  # a line end too many is no reply
        (WHOLE + b"H", False),
        (WHOLE + WHOLE, False),
        (WHOLE + b"\0", False),
        (WHOLE.replace(b"200 OK", b"200 OK\r\nConnection: close"), False),
        (WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"), False),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3 + WHOLE, True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nxyz", False),
    ],
)
def test_what_may_serve_again(said: bytes, reusable: bool) -> None:
    incoming, _ = read(said)
    assert (incoming.whole, incoming.reusable, incoming.error) == (True, reusable, None)


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nabc", True),
        (b"HTTP/1.0 200 OK\r\n\r\nabc", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", False),
        (CHUNKED + b"3\r\nabc", False),
        (b"HTTP/1.1 200 O", False),
    ],
)
def test_which_bodies_the_close_ends(said: bytes, ends: bool) -> None:
    incoming, _ = read(said)
    assert (incoming.whole, incoming.ends_with_the_connection) == (False, ends)


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0\r\n",
        CHUNKED + b"zz\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300,
    ],
)
def test_why_it_cannot_be_read(said: bytes) -> None:
    incoming, body = read(said)
    assert incoming.error and not incoming.whole and not body


@pytest.mark.parametrize("begun", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 ", b""])
def test_a_head_without_an_end_is_bounded(begun: bytes) -> None:
    incoming, fed = Incoming(), 0
    incoming.feed(begun)
    while incoming.error is None:
        incoming.feed(b"x" * 1000)
        fed += 1000
        assert fed < 100_000


RAW = zlib.compressobj(wbits=-15)


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", gzip.compress(b"hello" * 1000)),
        ("x-gzip", gzip.compress(b"hello" * 1000)),
        ("GZIP", gzip.compress(b"hello" * 1000)),
        ("deflate", zlib.compress(b"hello" * 1000)),
        ("deflate", RAW.compress(b"hello" * 1000) + RAW.flush()),
        ("identity", b"hello" * 1000),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_codings(coding: str, packed: bytes, size: int) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
    incoming, body = read(head, *(packed[at : at + size] for at in range(0, len(packed), size)))
    assert incoming.whole and body == b"hello" * 1000


def test_what_is_unpacked_comes_in_bounded_pieces() -> None:
    packed = gzip.compress(bytes(50_000_000))
    incoming = Incoming()
    incoming.feed(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed))
    sizes = [len(piece) for piece in incoming.feed(packed)]
    assert sum(sizes) == 50_000_000 and max(sizes) <= 2**20


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "gzip"])
def test_what_cannot_be_unpacked(coding: str) -> None:
    incoming = Incoming()
    with pytest.raises(Unreadable, match=coding):
        list(incoming.feed(f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: 5\r\n\r\nabcde".encode()))
