"""New connections: names of several addresses, and how often a name is looked up."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from endpoints.dialling import Dialler


async def addressed(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int]) -> list[str]:
    """Let every name have these addresses; returns the names that are looked up from then on."""
    names: list[str] = []

    async def lookup(host: str, port: int, **options: Any) -> Any:
        names.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
    return names


async def test_addresses_take_turns_and_the_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = [await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0) for _ in range(3)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    names = await addressed(monkeypatch, *(("127.0.0.1", port) for port in ports))
    dialler, reached = Dialler("many.test", 80, None, 5), []
    for _ in range(6):
        protocol = await dialler.dial(Peer)
        reached.append(protocol.port)
    assert sorted(reached[:3]) == sorted(ports) and reached[3:] == reached[:3]
    assert names == ["many.test"]
    for server in servers:
        server.close()


async def test_an_address_where_nobody_listens_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        await addressed(monkeypatch, nobody.getsockname(), ("127.0.0.1", port))
        dialler = Dialler("two.test", 80, None, 5)
        assert [(await dialler.dial(Peer)).port for _ in range(4)] == [port] * 4
    server.close()
    await server.wait_closed()
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        await dialler.dial(Peer)


async def test_a_look_up_without_an_answer_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(host: str, port: int, **options: Any) -> Any:
        await asyncio.sleep(30)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    with pytest.raises(TimeoutError):
        await Dialler("slow.test", 80, None, 0.05).dial(Peer)


class Peer(asyncio.Protocol):
    """Knows whom it reached."""

    port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.port = transport.get_extra_info("peername")[1]
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
