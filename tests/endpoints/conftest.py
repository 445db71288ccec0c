"""A server of raw bytes on a real socket: each test says, byte by byte, what its endpoint answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass(slots=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Peer:
    """One connection as the server holds it. `number`: from 1; `served`: requests it has brought, this one included."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    served: int = 0

    async def write(self, *blocks: bytes) -> None:
        for block in blocks:
            self.writer.write(block)
            await self.writer.drain()

    def reset(self) -> None:
        """Tear the connection down (RST), not an orderly close."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


# Answers one request; returns True to keep the connection for another.
Answer = Callable[[Peer, Request], Awaitable[bool | None]]


@dataclass(slots=True)
class RawServer:
    url: str = ""
    connections: int = 0
    requests: list[Request] = field(default_factory=list)


@contextlib.asynccontextmanager
async def raw_server(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
    seen = RawServer()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        seen.connections += 1
        peer = Peer(seen.connections, reader, writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                request = await read_request(reader)
                seen.requests.append(request)
                peer.served += 1
                if not await answer(peer, request):
                    break
        writer.close()
        tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls, backlog=512)
    seen.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield seen
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()


async def read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Request(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


def chunked(*blocks: bytes, end: bool = True) -> bytes:
    """Blocks in HTTP's chunked coding."""
    return b"".join(b"%x\r\n%s\r\n" % (len(b), b) for b in blocks) + (b"0\r\n\r\n" if end else b"")


def response(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def token(text: str, finish: str | None = None, **more: Any) -> bytes:
    doc = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(doc).encode() + b"\n\n"


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'
REPLY = (token("a"), token("b", "stop"), USAGE, DONE)
WHOLE = STREAM_HEAD + chunked(*REPLY)


@dataclass(frozen=True, slots=True)
class Wire:
    """What tests write answers with."""

    serve: Callable[..., contextlib.AbstractAsyncContextManager[RawServer]] = raw_server
    chunked: Callable[..., bytes] = chunked
    response: Callable[..., bytes] = response
    token: Callable[..., bytes] = token
    head: bytes = STREAM_HEAD
    done: bytes = DONE
    usage: bytes = USAGE
    reply: tuple[bytes, ...] = REPLY
    whole: bytes = WHOLE


@pytest.fixture(scope="session")
def wire() -> Wire:
    return Wire()
