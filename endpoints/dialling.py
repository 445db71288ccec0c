"""New connections to one origin: its name looked up once in a while, its addresses by turns, a few dials at once."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, TypeVar

import aiohappyeyeballs

MOST = 128  # connections being made at once: thousands of SYNs overflow a server's listen queue
_KNOWN_S = 10.0  # how long the addresses of a name hold
_NEXT_S = 0.25  # how long one address may take before the next is tried beside it (RFC 8305)
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}  # seconds, but the count

P = TypeVar("P", bound=asyncio.Protocol)


def made(address: Any) -> socket.socket:
    """A socket (for an address as getaddrinfo gives it) whose silent peer is found out: middleboxes drop idle
    connections without a word."""
    family, kind, protocol, _, _ = address
    new = socket.socket(family=family, type=kind, proto=protocol)
    new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    new.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            new.setsockopt(socket.IPPROTO_TCP, option, value)
    return new


class Dialler:
    """Connects to one host and port, by TLS where a context is given; `limit_s` bounds one connection, TLS included."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, limit_s: float) -> None:
        self._host, self._port, self._tls, self._limit_s = host, port, tls, limit_s
        self._few = asyncio.Semaphore(MOST)
        self._looking_up = asyncio.Lock()
        self._known: list[Any] = []
        self._known_until = 0.0
        self._turn = 0

    async def dial(self, make: Callable[[], P]) -> P:
        """A connected protocol. Raises OSError (TimeoutError, socket.gaierror and ssl.SSLError are such)."""
        loop = asyncio.get_running_loop()
        async with self._few, asyncio.timeout(self._limit_s):
            addresses = await self._addresses(loop)
            sock = await aiohappyeyeballs.start_connection(
                addresses, happy_eyeballs_delay=_NEXT_S, interleave=1, loop=loop, socket_factory=made
            )
            try:
                name = self._host if self._tls else None
                _, protocol = await loop.create_connection(make, sock=sock, ssl=self._tls, server_hostname=name)
            except BaseException:
                sock.close()
                raise
        return protocol

    async def _addresses(self, loop: asyncio.AbstractEventLoop) -> list[Any]:
        async with self._looking_up:
            if time.monotonic() > self._known_until:
                self._known = await loop.getaddrinfo(
                    self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
                )
                self._known_until = time.monotonic() + _KNOWN_S
        self._turn += 1
        turn = self._turn % len(self._known)
        return self._known[turn:] + self._known[:turn]
