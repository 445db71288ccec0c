"""Both real transports against servers of raw bytes on real sockets: the same behaviour, whatever carries it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import inspect
import itertools
import resource
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohappyeyeballs
import pytest
import trustme
import uvloop

from endpoints import attempts, dialling
from endpoints.attempts import Attempts, Bounds, ReusePolicy, Timeouts
from endpoints.fast import FastTransport
from endpoints.http import HttpTransport
from endpoints.outcomes import Outcome
from endpoints.resources import descriptor_shortage, raise_descriptor_limit
from endpoints.transport import Call, Exchange, Progress
from profiles.secrets import redact

KEY = "sk-a/secret+key=0123456789"


KINDS: tuple[type[Attempts], ...] = (HttpTransport, FastTransport)
Make = Callable[..., Attempts]


@contextlib.asynccontextmanager
async def transports(kind: type[Attempts]) -> AsyncIterator[Make]:
    """Makes transports, and closes them."""
    made: list[Attempts] = []

    def make(url: str, headers: dict[str, str] | None = None, **options: Any) -> Attempts:
        made.append(kind(url, headers or {}, **options))
        return made[-1]

    yield make
    for one in made:
        await one.close()


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    async with transports(request.param) as make:
        yield make


async def ask(client: Attempts, body: bytes = b"{}", on_progress: Progress | None = None) -> Exchange:
    exchange = Exchange(issued_ns=time.monotonic_ns())
    async with asyncio.timeout(30):
        await client.send(Call(body, 16, len(body), 0), exchange, on_progress)
    ordered(exchange)
    return exchange


def ordered(e: Exchange) -> None:
    """issued <= connected <= sent <= headers <= first token <= last <= ended, of those that came."""
    stamps = [e.issued_ns, e.connected_ns, e.sent_ns, e.headers_ns, *e.chunk_ns, e.ended_ns]
    known = [stamp for stamp in stamps if stamp is not None]
    assert known == sorted(known)
    assert e.ended_ns is not None


def says(data: bytes, keep: bool = False) -> Any:
    """An answer of these bytes."""

    async def answer(peer: Any, request: Any) -> bool:
        await peer.write(data)
        return keep

    return answer


# --- success


async def test_a_stream_and_what_was_sent_for_it(wire: Any, transport: Make) -> None:
    pieces: list[bytes] = [wire.head, *(wire.chunked(b, end=False) for b in wire.reply), b"0\r\n\r\n"]

    async def answer(peer: Any, request: Any) -> bool:
        for piece in pieces:
            await peer.write(piece)
            await asyncio.sleep(0.005)
        return True

    seen: list[int] = []
    async with wire.serve(answer) as server:
        client = transport(server.url + "/v1/chat/completions", {"Authorization": "Bearer k"}, keep_text=True)
        e = await ask(client, b'{"prompt": "x"}', seen.append)
    assert (e.outcome, e.error, e.status) == (Outcome.OK, None, 200)
    assert (e.text, e.text_bytes, len(e.chunk_ns), e.finish_reason) == ("ab", 2, 2, "stop")
    assert (e.input_tokens, e.output_tokens) == (3, 2)
    assert (e.attempts, e.reused, e.retry_lost_ns) == (1, False, 0)
    assert None not in (e.connected_ns, e.sent_ns, e.headers_ns, e.first_visible_ns)
    assert e.chunk_ns[1] - e.chunk_ns[0] >= 1_000_000
    assert seen == [1, 2]
    (request,) = server.requests
    assert (request.method, request.path, request.body) == ("POST", "/v1/chat/completions", b'{"prompt": "x"}')
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept"] == "text/event-stream"
    assert request.headers["authorization"] == "Bearer k"


async def test_given_headers_replace_ours_whatever_their_case(wire: Any, transport: Make) -> None:
    async with wire.serve(says(wire.whole)) as server:
        given = {"content-type": "application/json; charset=utf-8", "ACCEPT": "*/*", "accept-encoding": "gzip"}
        await ask(transport(server.url, given))
    headers = server.requests[0].headers
    assert (headers["content-type"], headers["accept"]) == ("application/json; charset=utf-8", "*/*")
    assert headers["accept-encoding"] == "identity"


async def test_every_stamp_is_there_when_all_comes_in_one_packet(wire: Any, transport: Make) -> None:
    async with wire.serve(says(wire.whole, keep=True)) as server:
        client = transport(server.url)
        for _ in range(3):
            e = await ask(client)
            assert (e.outcome, len(set(e.chunk_ns)), e.headers_ns) == (Outcome.OK, 1, e.chunk_ns[0])


async def test_a_connection_serves_call_after_call(wire: Any, transport: Make) -> None:
    async with wire.serve(says(wire.whole, keep=True)) as server:
        client = transport(server.url)
        exchanges = [await ask(client) for _ in range(10)]
    assert {e.outcome for e in exchanges} == {Outcome.OK}
    assert [e.reused for e in exchanges] == [False] + [True] * 9
    assert server.connections == 1


async def test_no_queue_of_ours_stands_before_the_server(wire: Any, transport: Make) -> None:
    everyone = asyncio.Event()
    waiting = 0

    async def answer(peer: Any, request: Any) -> bool:
        nonlocal waiting
        waiting += 1
        if waiting == 128:
            everyone.set()
        await everyone.wait()
        await peer.write(wire.whole)
        return True

    async with wire.serve(answer) as server:
        client = transport(server.url)
        exchanges = await asyncio.gather(*(ask(client) for _ in range(128)))
    assert {e.outcome for e in exchanges} == {Outcome.OK}
    assert (server.connections, waiting) == (128, 128)


async def test_a_body_ended_by_the_close(wire: Any, transport: Make) -> None:
    body = b"".join(wire.reply)
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    async with wire.serve(says(head + body)) as server:
        client = transport(server.url)
        for _ in range(2):
            e = await ask(client)
            assert (e.outcome, e.output_tokens, e.reused) == (Outcome.OK, 2, False)
    async with wire.serve(says(head + wire.token("a"))) as server:
        assert (await ask(transport(server.url))).outcome is Outcome.TRUNCATED


async def test_a_compressed_body_is_still_read(wire: Any, transport: Make) -> None:
    head = wire.head.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    async with wire.serve(says(head + wire.chunked(gzip.compress(b"".join(wire.reply))))) as server:
        e = await ask(transport(server.url, keep_text=True))
    assert (e.outcome, e.text, e.output_tokens) == (Outcome.OK, "ab", 2)


async def test_a_count_of_no_tokens_beside_text_is_no_count(wire: Any, transport: Make) -> None:
    body = wire.token("a", "stop", usage={"prompt_tokens": 3, "completion_tokens": 0})
    async with wire.serve(says(wire.head + wire.chunked(body))) as server:
        e = await ask(transport(server.url))
    assert (e.outcome, e.input_tokens, e.output_tokens) == (Outcome.OK, 3, None)


# --- connections that die


async def test_a_server_that_closes_kept_connections_fails_no_request(wire: Any, transport: Make) -> None:
    """It advertises keep-alive, and closes when the second request comes."""

    async def answer(peer: Any, request: Any) -> bool:
        if peer.served > 1:
            return False
        await peer.write(wire.whole)
        return True

    async with wire.serve(answer) as server:
        policy = ReusePolicy()
        client = transport(server.url, policy=policy)
        first = await ask(client)
        second = await ask(client)
        assert (second.outcome, second.attempts, second.reused) == (Outcome.OK, 2, False)
        assert second.retry_lost_ns > 0
        assert second.sent_ns is not None and second.sent_ns >= second.issued_ns + second.retry_lost_ns
        assert (policy.deaths, policy.reuse) == (1, True)
        others = [await ask(client) for _ in range(6)]
        assert {e.outcome for e in (first, *others)} == {Outcome.OK}
        assert (policy.deaths, policy.reuse) == (2, False)
        assert [e.attempts for e in others[-3:]] == [1, 1, 1]
        served = len(server.requests)
        assert (await ask(client)).attempts == 1
        assert server.requests[served].headers["connection"] == "close"
        # What was learnt outlives the transport.
        assert (await ask(transport(server.url, policy=policy))).attempts == 1
        assert server.requests[-1].headers["connection"] == "close"


async def test_a_server_that_closes_after_each_reply_fails_no_request(wire: Any, transport: Make) -> None:
    async with wire.serve(says(wire.whole)) as server:
        client = transport(server.url)
        exchanges = [await ask(client) for _ in range(10)]
    assert {e.outcome for e in exchanges} == {Outcome.OK}
    assert max(e.attempts for e in exchanges) <= 2


async def test_the_second_try_never_takes_a_pooled_connection(wire: Any, transport: Make) -> None:
    """Several kept connections, all of which die at their second request."""
    both = asyncio.Barrier(3)

    async def answer(peer: Any, request: Any) -> bool:
        if peer.served > 1:
            return False
        if peer.number <= 3:
            await both.wait()
        await peer.write(wire.whole)
        return True

    async with wire.serve(answer) as server:
        client = transport(server.url)
        await asyncio.gather(*(ask(client) for _ in range(3)))
        assert server.connections == 3
        e = await ask(client)
        assert (e.outcome, e.attempts) == (Outcome.OK, 2)
        assert server.connections == 4


@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_reply_of_which_any_byte_came_is_not_asked_again(
    wire: Any, transport: Make, begun: bytes, how: str
) -> None:
    async def answer(peer: Any, request: Any) -> bool:
        if peer.served == 1:
            await peer.write(wire.whole)
            return True
        await peer.write(begun)
        if how == "reset":
            await asyncio.sleep(0.05)  # a reset overtakes what has not been read yet
            peer.reset()
        return False

    async with wire.serve(answer) as server:
        client = transport(server.url)
        await ask(client)
        e = await ask(client)
    assert (e.reused, e.attempts, len(server.requests)) == (True, 1, 2)
    assert e.outcome is (Outcome.RESET if how == "reset" else Outcome.TRUNCATED)
    assert e.status is None


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_fresh_connection_that_dies_at_once_is_not_tried_again(wire: Any, transport: Make, how: str) -> None:
    async def answer(peer: Any, request: Any) -> bool:
        if how == "reset":
            peer.reset()
        return False

    async with wire.serve(answer) as server:
        policy = ReusePolicy()
        e = await ask(transport(server.url, policy=policy))
    assert (e.outcome, e.attempts, server.connections, policy.deaths) == (Outcome.RESET, 1, 1, 0)


async def test_a_second_death_is_a_failure(wire: Any, transport: Make) -> None:
    async def answer(peer: Any, request: Any) -> bool:
        if peer.number == 1 and peer.served == 1:
            await peer.write(wire.whole)
            return True
        return False

    async with wire.serve(answer) as server:
        client = transport(server.url)
        await ask(client)
        e = await ask(client)
    assert (e.outcome, e.attempts, len(server.requests)) == (Outcome.RESET, 2, 3)


async def test_a_second_try_that_finds_nobody(wire: Any, transport: Make) -> None:
    """What the first one knew of its connection is not told of the second."""
    answered = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(wire.whole)
        answered += 1
        await reader.readuntil(b"\r\n\r\n{}")
        server.close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = transport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await ask(client)
    e = await ask(client)
    assert (e.outcome, e.attempts, e.reused, answered) == (Outcome.REFUSED, 2, False, 1)
    assert (e.connected_ns, e.sent_ns, e.headers_ns) == (None, None, None)
    assert e.retry_lost_ns > 0


async def test_a_slow_server_on_a_kept_connection_is_not_asked_twice(wire: Any, transport: Make) -> None:
    async def answer(peer: Any, request: Any) -> bool:
        if peer.served > 1:
            await asyncio.sleep(30)
        await peer.write(wire.whole)
        return True

    async with wire.serve(answer) as server:
        client = transport(server.url, timeouts=Timeouts(first_byte=0.2))
        await ask(client)
        e = await ask(client)
    assert (e.outcome, e.attempts, e.reused) == (Outcome.FIRST_BYTE_TIMEOUT, 1, True)


# --- bodies that break off


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_body_that_breaks_off(wire: Any, transport: Make, how: str) -> None:
    async def answer(peer: Any, request: Any) -> bool:
        await peer.write(wire.head + wire.chunked(wire.token("a"), end=False))
        await asyncio.sleep(0.05)
        if how == "reset":
            peer.reset()
        return False

    async with wire.serve(answer) as server:
        e = await ask(transport(server.url, keep_text=True))
    assert e.outcome is (Outcome.RESET if how == "reset" else Outcome.TRUNCATED)
    assert (e.status, e.text, len(e.chunk_ns), e.attempts) == (200, "a", 1, 1)


async def test_a_whole_body_without_a_finish_is_truncated(wire: Any, transport: Make) -> None:
    async with wire.serve(says(wire.head + wire.chunked(wire.token("a")))) as server:
        assert (await ask(transport(server.url))).outcome is Outcome.TRUNCATED


async def test_what_came_before_the_break_is_kept_though_unread(wire: Any, transport: Make) -> None:
    """Fragments and the break come together, faster than anybody reads."""
    async with wire.serve(says(wire.head + wire.chunked(wire.token("a"), wire.token("b"), end=False))) as server:
        for _ in range(5):
            e = await ask(transport(server.url, keep_text=True))
            assert (e.outcome, e.text) == (Outcome.TRUNCATED, "ab")
    async with wire.serve(says(wire.head + wire.chunked(*wire.reply, end=False))) as server:
        for _ in range(5):
            e = await ask(transport(server.url, keep_text=True))
            assert (e.outcome, e.text, e.output_tokens) == (Outcome.OK, "ab", 2)


async def test_done_is_the_end_even_if_the_body_goes_on(
    wire: Any, transport: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "AFTER_DONE_S", 0.05)

    async def answer(peer: Any, request: Any) -> bool:
        await peer.write(wire.head + wire.chunked(*wire.reply, end=False))
        await asyncio.sleep(30)
        return False

    async with wire.serve(answer) as server:
        client = transport(server.url)
        for _ in range(2):
            e = await ask(client)
            assert (e.outcome, e.reused, e.output_tokens) == (Outcome.OK, False, 2)
    assert server.connections == 2


async def test_a_body_that_ends_soon_after_done_keeps_its_connection(wire: Any, transport: Make) -> None:
    async def answer(peer: Any, request: Any) -> bool:
        await peer.write(wire.head + wire.chunked(*wire.reply, end=False))
        await asyncio.sleep(0.02)
        await peer.write(b"0\r\n\r\n")
        return True

    async with wire.serve(answer) as server:
        client = transport(server.url)
        exchanges = [await ask(client) for _ in range(3)]
    assert [e.reused for e in exchanges] == [False, True, True]


# --- refusals


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("400 Bad Request", Outcome.HTTP_4XX),
        ("401 Unauthorized", Outcome.HTTP_4XX),
        ("404 Not Found", Outcome.HTTP_4XX),
        ("429 Too Many Requests", Outcome.RATE_LIMITED),
        ("500 Oh", Outcome.HTTP_5XX),
        ("503 Busy", Outcome.HTTP_5XX),
    ],
)
async def test_refusals_by_status(wire: Any, transport: Make, status: str, outcome: Outcome) -> None:
    said = wire.response(status, b'{"error": {"message": "no\\nluck"}}', "Retry-After: 7")
    async with wire.serve(says(said, keep=True)) as server:
        client = transport(server.url)
        for _ in range(2):
            e = await ask(client)
            assert (e.outcome, e.status, e.retry_after) == (outcome, int(status[:3]), "7")
            assert e.error == f"HTTP {status[:3]}: no luck"
            assert e.attempts == 1
    assert server.connections == 1


async def test_the_reason_of_a_refusal_may_come_in_pieces(wire: Any, transport: Make) -> None:
    body = b'{"error": {"message": "%s"}}' % (b"why " * 100)
    whole = wire.response("503 Busy", body)

    async def answer(peer: Any, request: Any) -> bool:
        for at in range(0, len(whole), 150):
            await peer.write(whole[at : at + 150])
            await asyncio.sleep(0.005)
        return True

    async with wire.serve(answer) as server:
        e = await ask(transport(server.url))
    assert e.error is not None and e.error.startswith("HTTP 503: why why")
    assert len(e.error) <= 500


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "HTTP 503"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 99\r\n\r\nbroken", "HTTP 503"),
        (b"HTTP/1.1 502 Bad\r\n\r\n<html>\n bad  gateway</html>", "HTTP 502: <html> bad gateway</html>"),
    ],
)
async def test_a_refusal_stays_one_whatever_its_body_does(wire: Any, transport: Make, said: bytes, error: str) -> None:
    async with wire.serve(says(said)) as server:
        e = await ask(transport(server.url))
    assert (e.outcome, e.error) == (Outcome.HTTP_5XX, error)


async def test_a_redirect_carries_the_key_nowhere(wire: Any, transport: Make) -> None:
    async with wire.serve(says(wire.whole)) as other:
        moved = wire.response("307 Temporary Redirect", b"", f"Location: {other.url}/v1")
        async with wire.serve(says(moved)) as server:
            e = await ask(transport(server.url, {"Authorization": f"Bearer {KEY}"}))
    assert (e.outcome, e.error) == (Outcome.NOT_A_STREAM, "HTTP 307")
    assert other.connections == 0


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b'{"error": {"message": "overloaded"}}', Outcome.ERROR_EVENT),
        (b'{"choices": [{"message": {"content": "hi"}}]}', Outcome.NOT_A_STREAM),
        (b"<html>hi</html>", Outcome.NOT_A_STREAM),
        (b"", Outcome.EMPTY),
    ],
)
async def test_a_success_that_is_no_stream(wire: Any, transport: Make, body: bytes, outcome: Outcome) -> None:
    async with wire.serve(says(wire.response("200 OK", body, "Content-Type: application/json"))) as server:
        e = await ask(transport(server.url))
    assert (e.outcome, e.status) == (outcome, 200)


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    ],
)
async def test_what_is_no_http_is_a_bad_stream(wire: Any, transport: Make, said: bytes) -> None:
    async with wire.serve(says(said)) as server:
        e = await ask(transport(server.url))
    assert e.outcome in (Outcome.BAD_STREAM, Outcome.TRUNCATED)
    assert e.attempts == 1


async def test_an_endless_body_is_given_up(wire: Any, transport: Make) -> None:
    async def answer(peer: Any, request: Any) -> bool:
        await peer.write(wire.head)
        while True:
            await peer.write(wire.chunked(wire.token("a"), end=False))
            await asyncio.sleep(0)

    async with wire.serve(answer) as server:
        e = await ask(transport(server.url, bounds=Bounds(body=100_000)))
    assert e.outcome is Outcome.BAD_STREAM
    assert e.error == "the body is larger than 100,000 bytes"
    assert e.chunk_ns


# --- no connection


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


async def test_nobody_listens(transport: Make) -> None:
    e = await ask(transport(f"http://127.0.0.1:{free_port()}/v1"))
    assert (e.outcome, e.connected_ns, e.sent_ns, e.attempts) == (Outcome.REFUSED, None, None, 1)


async def test_a_name_that_nobody_has(transport: Make) -> None:
    assert (await ask(transport("http://endsweep-test.invalid/v1"))).outcome is Outcome.DNS


async def test_streams_over_tls(wire: Any, transport: Make) -> None:
    """To a name, and with an authority that is trusted; else not at all."""
    authority = trustme.CA()  # of this run alone
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(serving)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with wire.serve(says(wire.whole, keep=True), serving) as server:
        url = server.url.replace("127.0.0.1", "localhost") + "/v1"
        client = transport(url, tls=trusting, keep_text=True)
        exchanges = [await ask(client) for _ in range(3)]
        assert [(e.outcome, e.text, e.reused) for e in exchanges] == [
            (Outcome.OK, "ab", False),
            (Outcome.OK, "ab", True),
            (Outcome.OK, "ab", True),
        ]
        e = await ask(transport(url))
    assert (e.outcome, e.sent_ns) == (Outcome.TLS, None)


async def test_headers_that_say_how_a_message_travels_are_ours(wire: Any) -> None:
    async with transports(FastTransport) as make:
        async with wire.serve(says(wire.whole)) as server:
            given = {"host": "example.test", "connection": "upgrade", "CONTENT-LENGTH": "9", "transfer-encoding": "x"}
            assert (await ask(make(server.url + "/a b?q=ü", given))).outcome is Outcome.OK
        (request,) = server.requests
        assert request.path == "/a%20b?q=%C3%BC"
        assert (request.headers["host"], request.headers["content-length"]) == ("example.test", "2")
        assert not {"connection", "transfer-encoding"} & request.headers.keys()
        with pytest.raises(ValueError, match="line end"):
            make(server.url, {"X": "a\r\nY: b"})
        with pytest.raises(ValueError, match="no host"):
            make("v1/chat")


async def test_a_fault_of_the_caller_is_raised_to_the_caller(wire: Any, transport: Make) -> None:
    def fails(_: int) -> None:
        raise LookupError("ours")

    async with wire.serve(says(wire.whole, keep=True)) as server:
        client = transport(server.url)
        with pytest.raises(LookupError, match="ours"):
            await ask(client, on_progress=fails)
        assert (await ask(client)).outcome is Outcome.OK


async def test_a_reply_that_came_before_the_request_is_read_but_its_connection_is_not_kept(
    transport: Make,
) -> None:
    """As servers say that they are full: at once, to everybody who connects."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Full\r\nContent-Length: 4\r\n\r\nfull")
        await reader.read(1)
        await asyncio.sleep(0.05)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = transport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    for _ in range(2):
        e = await ask(client)
        assert (e.outcome, e.error, e.reused) == (Outcome.HTTP_5XX, "HTTP 503: full", False)
    server.close()


@pytest.mark.parametrize(
    ("said", "outcome"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", Outcome.TLS), (b"", Outcome.RESET)]
)
async def test_tls_to_a_server_of_plain_text(transport: Make, said: bytes, outcome: Outcome) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    e = await ask(transport(f"https://127.0.0.1:{port}/v1"))
    server.close()
    assert (e.outcome, e.connected_ns) == (outcome, None)


async def test_a_connection_that_never_comes_about(transport: Make) -> None:
    """A listener whose queue is full answers no more."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        e = await ask(transport(f"http://127.0.0.1:{port}/", timeouts=Timeouts(connect=0.2)))
        for filler in fillers:
            filler.close()
    assert (e.outcome, e.connected_ns) == (Outcome.CONNECT_TIMEOUT, None)


async def test_running_out_of_descriptors_is_our_own_failure(wire: Any, transport: Make) -> None:
    async with wire.serve(says(wire.whole)) as server:
        client = transport(server.url)
        await ask(client)  # what is loaded once needs files too
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = open_files()
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
        try:
            exchanges = await asyncio.gather(*(ask(client) for _ in range(20)))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert Outcome.CLIENT_RESOURCE in {e.outcome for e in exchanges}


def test_the_limit_of_descriptors_is_raised_and_what_is_short_is_said() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        limit = raise_descriptor_limit()
        assert limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 256
        assert raise_descriptor_limit() == limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert descriptor_shortage(100, 1024) is None
    said = descriptor_shortage(1000, 1024)
    assert said is not None and "ulimit -n 1064" in said and "--concurrency to 960" in said


# --- waiting


async def test_no_first_byte(wire: Any, transport: Make) -> None:
    async def answer(peer: Any, request: Any) -> bool:
        await asyncio.sleep(30)
        return False

    async with wire.serve(answer) as server:
        e = await ask(transport(server.url, timeouts=Timeouts(first_byte=0.2)))
    assert (e.outcome, e.error) == (Outcome.FIRST_BYTE_TIMEOUT, "no byte for 0.2 s")
    assert e.sent_ns is not None and e.headers_ns is None
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_no_further_byte(wire: Any, transport: Make) -> None:
    async def answer(peer: Any, request: Any) -> bool:
        await peer.write(wire.head + wire.chunked(wire.token("a"), end=False))
        await asyncio.sleep(30)
        return False

    async with wire.serve(answer) as server:
        e = await ask(transport(server.url, timeouts=Timeouts(idle=0.2), keep_text=True))
    assert (e.outcome, e.error, e.text) == (Outcome.IDLE_TIMEOUT, "no byte for 0.2 s", "a")


async def test_a_slow_stream_that_goes_on_is_not_idle(wire: Any, transport: Make) -> None:
    async def answer(peer: Any, request: Any) -> bool:
        await peer.write(wire.head)
        for _ in range(8):
            await peer.write(wire.chunked(b": wait\n\n", end=False))
            await asyncio.sleep(0.1)
        await peer.write(wire.chunked(*wire.reply))
        return True

    async with wire.serve(answer) as server:
        e = await ask(transport(server.url, timeouts=Timeouts(first_byte=0.5, idle=0.5)))
    assert e.outcome is Outcome.OK


async def test_a_refusal_whose_body_never_ends_is_still_that_refusal(wire: Any, transport: Make) -> None:
    async def answer(peer: Any, request: Any) -> bool:
        await peer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 99\r\n\r\nwait")
        await asyncio.sleep(30)
        return False

    async with wire.serve(answer) as server:
        e = await ask(transport(server.url, timeouts=Timeouts(first_byte=0.2)))
    assert (e.outcome, e.error) == (Outcome.HTTP_5XX, "HTTP 503")


async def test_cancelling_leaves_what_was_known(wire: Any, transport: Make) -> None:
    read = asyncio.Event()

    async def answer(peer: Any, request: Any) -> bool:
        said = wire.token("a", model="m", usage={"prompt_tokens": 3, "completion_tokens": 1})
        await peer.write(wire.head + wire.chunked(said, end=False))
        await asyncio.sleep(30)
        return False

    async with wire.serve(answer) as server:
        client = transport(server.url, keep_text=True)
        e = Exchange(issued_ns=time.monotonic_ns())
        task = asyncio.create_task(client.send(Call(b"{}", 16, 2, 0), e, lambda _: read.set()))
        await read.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ordered(e)
        assert (e.outcome, e.status, e.text, e.model) == (None, 200, "a", "m")
        assert (e.output_tokens, e.chunk_tokens, len(e.chunk_ns)) == (1, [1], 1)


async def test_a_cancelled_request_gives_its_socket_up(wire: Any, transport: Make) -> None:
    left, begun = asyncio.Event(), asyncio.Event()

    async def answer(peer: Any, request: Any) -> bool:
        if peer.number > 1:
            await peer.write(wire.whole)
            return True
        await peer.write(wire.head + wire.chunked(wire.token("a"), end=False))
        begun.set()
        with contextlib.suppress(ConnectionError):
            await peer.reader.read()
        left.set()
        return False

    async with wire.serve(answer) as server:
        client = transport(server.url)
        task = asyncio.create_task(client.send(Call(b"{}", 16, 2, 0), Exchange()))
        await begun.wait()
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        async with asyncio.timeout(5):
            await left.wait()
        e = await ask(client)
    assert (e.outcome, e.reused, server.connections) == (Outcome.OK, False, 2)


@pytest.mark.parametrize("end", ["cancel", "close", "idle", "done"])
async def test_like_blocks_are_stamped_as_they_come_whenever_they_are_read(
    wire: Any, transport: Make, end: str
) -> None:
    sent, seen = asyncio.Event(), 40

    async def answer(peer: Any, request: Any) -> bool:
        await peer.write(wire.head)
        for n in range(seen):
            await peer.write(wire.chunked(wire.token(f"{n:02}"), end=False))
            await asyncio.sleep(0.002)
        if end == "done":
            await peer.write(wire.chunked(wire.done))
            return True
        sent.set()
        if end != "close":
            await asyncio.sleep(30)
        return False

    async with wire.serve(answer) as server:
        client, e = transport(server.url, keep_text=True, timeouts=Timeouts(idle=0.3)), Exchange()
        task = asyncio.create_task(client.send(Call(b"{}", 16, 2, 0), e))
        if end == "cancel":
            await sent.wait()
            await asyncio.sleep(0.02)
            task.cancel()
        await asyncio.wait([task])
    outcomes = {"close": Outcome.TRUNCATED, "idle": Outcome.IDLE_TIMEOUT, "done": Outcome.OK}
    assert e.outcome is outcomes.get(end)
    assert (len(e.chunk_ns), e.text) == (seen, "".join(f"{n:02}" for n in range(seen)))
    gaps = [b - a for a, b in itertools.pairwise(e.chunk_ns)]
    assert sum(gap > 1_000_000 for gap in gaps) > seen // 2
    ordered(e)


async def test_a_time_out_never_swallows_a_cancellation(wire: Any, transport: Make) -> None:
    """Both at the same moment: the sweep has given the request up, and then somebody cancels its task."""

    async def answer(peer: Any, request: Any) -> bool:
        await asyncio.sleep(30)
        return False

    async with wire.serve(answer) as server:
        client = transport(server.url, timeouts=Timeouts(first_byte=0.2))
        task = asyncio.create_task(ask(client))
        while not any(watched.expired for watched in client._watched):  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# --- secrets


@pytest.mark.parametrize("place", ["refusal", "json", "html", "event", "text", "names", "long", "header", "status"])
async def test_a_key_that_the_server_echoes_is_nowhere(wire: Any, transport: Make, place: str) -> None:
    escaped = KEY.replace("/", "\\/")
    said = {
        "refusal": wire.response("401 No", f'{{"error": {{"message": "bad key {escaped}"}}}}'.encode()),
        "json": wire.response("200 OK", f'{{"error": "bad key {KEY}"}}'.encode()),
        "html": wire.response("200 OK", f"<p>Bearer {KEY}</p>".encode()),
        "event": wire.head + wire.chunked(wire.token("a", error={"message": f"key {KEY}"})),
        "text": wire.head + wire.chunked(wire.token(KEY[:9]), wire.token(KEY[9:], "stop")),
        "names": wire.head + wire.chunked(wire.token("a", KEY, id=KEY, model=f"m {KEY}", system_fingerprint=KEY)),
        # The cut of a long text goes through the key.
        "long": wire.response("500 No", b"x" * 479 + KEY.encode()),
        "header": wire.response("429 No", b"", f"Retry-After: {KEY}"),
        "status": f"HTTP/1.1 {KEY} No\r\n\r\n".encode(),
    }[place]
    async with wire.serve(says(said)) as server:
        client = transport(
            server.url, {"Authorization": f"Bearer {KEY}"}, keep_text=True, scrub=lambda text: redact(text, [KEY])
        )
        e = await ask(client)
    shown = repr(e)
    assert not any(KEY[at : at + 8] in shown for at in range(len(KEY) - 8))
    assert (e.outcome is Outcome.OK) == (place in ("text", "names"))


# --- the loop that sweeps run on


@pytest.mark.parametrize(
    "same",
    [
        test_a_stream_and_what_was_sent_for_it,
        test_streams_over_tls,
        functools.partial(test_tls_to_a_server_of_plain_text, said=b"", outcome=Outcome.RESET),
        test_every_stamp_is_there_when_all_comes_in_one_packet,
        test_no_queue_of_ours_stands_before_the_server,
        test_a_server_that_closes_kept_connections_fails_no_request,
        test_what_came_before_the_break_is_kept_though_unread,
        test_done_is_the_end_even_if_the_body_goes_on,
        test_no_further_byte,
        test_a_time_out_never_swallows_a_cancellation,
        test_a_cancelled_request_gives_its_socket_up,
        functools.partial(test_a_body_that_breaks_off, how="reset"),
        functools.partial(test_like_blocks_are_stamped_as_they_come_whenever_they_are_read, end="idle"),
        functools.partial(test_a_reply_of_which_any_byte_came_is_not_asked_again, begun=b"H", how="close"),
    ],
)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_same_on_uvloop(same: Any, kind: type[Attempts], wire: Any) -> None:
    async def run() -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            async with transports(kind) as make:
                given = {"wire": wire, "transport": make, "monkeypatch": monkeypatch}
                await same(**{name: given[name] for name in given.keys() & inspect.signature(same).parameters})

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def test_connections_are_made_a_few_at_a_time(
    wire: Any, transport: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialling, "MOST", 4)
    dialling_now = most = 0
    real = aiohappyeyeballs.start_connection

    async def counted(*words: Any, **options: Any) -> Any:
        nonlocal dialling_now, most
        dialling_now += 1
        most = max(most, dialling_now)
        try:
            await asyncio.sleep(0.01)
            return await real(*words, **options)
        finally:
            dialling_now -= 1

    monkeypatch.setattr(aiohappyeyeballs, "start_connection", counted)
    async with wire.serve(says(wire.whole)) as server:
        client = transport(server.url)
        exchanges = await asyncio.gather(*(ask(client) for _ in range(20)))
    assert {e.outcome for e in exchanges} == {Outcome.OK}
    assert most == 4


def test_sockets_are_kept_alive_and_send_at_once() -> None:
    with dialling.made((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
