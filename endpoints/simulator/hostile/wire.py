"""One request on one connection, as a case holds it: what was asked, and the bytes that go out, exactly as written."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

STREAM = ("Content-Type: text/event-stream; charset=utf-8", "Transfer-Encoding: chunked")
LAST_CHUNK = b"0\r\n\r\n"
MOST_BODY = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass(slots=True)
class Wire:
    """What a case plays on. It may write anything, or nothing, and say whether the connection lives on.

    `turn`: which request this is on its connection, from 1. `nth`: which POST of all the server got, from 1.
    `keep`: whether the connection is read for another request once the case has been played.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    request: Request
    turn: int = 1
    nth: int = 1
    keep: bool = True
    sent: int = field(default=0, init=False)  # bytes

    async def send(self, *blocks: bytes) -> None:
        """Each block in one write, handed to the system before the next. Raises ConnectionError when nobody listens."""
        for block in blocks:
            self.writer.write(block)
            self.sent += len(block)
            await self.writer.drain()
            await asyncio.sleep(0)  # a flood must not starve the other connections

    async def head(self, status: str = "200 OK", *headers: str) -> None:
        await self.send(head(status, *headers))

    async def chunks(self, *blocks: bytes) -> None:
        """Each block as a chunk of its own, in a write of its own."""
        await self.send(*(chunk(block) for block in blocks))

    async def until_they_leave(self) -> None:
        """Say nothing more, until the client closes."""
        while await self.reader.read(65_536):
            pass
        self.keep = False

    def half_close(self) -> None:
        """An orderly end of what we send; we would still listen."""
        self.writer.write_eof()

    def reset(self) -> None:
        """Tear the connection down (RST): what the client has not read yet is lost to it."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        self.keep = False


Play = Callable[[Wire], Awaitable[None]]
"""What a case does with one request."""


def head(status: str = "200 OK", *headers: str, version: str = "HTTP/1.1") -> bytes:
    """A status line and headers, up to and with the blank line."""
    return "\r\n".join([f"{version} {status}", *headers, "", ""]).encode("latin-1")


def chunk(block: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(block), block)


def chunked(*blocks: bytes) -> bytes:
    """A whole body in the chunked coding, a chunk a block."""
    return b"".join(map(chunk, blocks)) + LAST_CHUNK


# --- plays that most cases are made of. In their scripts bytes are written, and numbers are pauses in seconds.

Script = bytes | float


def stream(*script: Script, status: str = "200 OK", headers: tuple[str, ...] = STREAM) -> Play:
    """A chunked event stream, a chunk and a write for each block; ended in order, and the connection kept."""

    async def play(wire: Wire) -> None:
        await wire.head(status, *headers)
        for item in script:
            await (wire.chunks(item) if isinstance(item, bytes) else asyncio.sleep(item))
        await wire.send(LAST_CHUNK)

    return play


def body(status: str, said: bytes, *headers: str) -> Play:
    """A body with its Content-Length, all in one write; the connection kept."""
    return raw(head(status, f"Content-Length: {len(said)}", *headers) + said, then="keep")


def raw(*script: Script, then: str = "close") -> Play:
    """These bytes and nothing else; `then` close, keep, reset or open (say nothing more until the client leaves)."""

    async def play(wire: Wire) -> None:
        wire.keep = then == "keep"
        for item in script:
            await (wire.send(item) if isinstance(item, bytes) else asyncio.sleep(item))
        if then == "open":
            await wire.until_they_leave()
        elif then == "reset":
            await asyncio.sleep(0.05)  # a reset overtakes what has not been read yet
            wire.reset()

    return play


def flood(first: bytes, again: bytes) -> Play:
    """`first`, and then `again` for as long as anybody reads."""

    async def play(wire: Wire) -> None:
        wire.keep = False
        await wire.send(first)
        await asyncio.sleep(0.02)
        block = again * (65_536 // len(again) + 1)
        while True:
            await wire.send(block)

    return play


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request, or None when the client has closed. Raises ValueError for what is no request we can read."""
    try:
        raw_head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = raw_head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", "0"))
    if "transfer-encoding" in headers or not 0 <= length <= MOST_BODY:
        raise ValueError("a request needs a Content-Length here")
    return Request(method, path, headers, await reader.readexactly(length))
