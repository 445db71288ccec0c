"""Messages between this program and its own worker processes: length, then a pickled tuple. No one else writes them."""

from __future__ import annotations

import asyncio
import pickle
import struct
from array import array
from collections.abc import Callable
from dataclasses import fields
from typing import Any, cast

from endpoints.outcomes import Outcome
from endpoints.transport import Exchange

_LENGTH = struct.Struct("!I")
_OURS = ("issued_ns", "worker")  # known to the parent already
_NAMES = tuple(f.name for f in fields(Exchange) if f.name not in _OURS)
_CHUNKS = ("chunk_ns", "chunk_tokens")

Message = tuple[Any, ...]


class Frames(asyncio.Protocol):
    """One end of a stream socket. `on_lost` is called once, when the other end is gone."""

    def __init__(self, on_message: Callable[[Message], None], on_lost: Callable[[], None]) -> None:
        self._on_message, self._on_lost = on_message, on_lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, *message: Any) -> None:
        """Queue a message; without effect once the other end is gone."""
        if self._transport is not None and not self._transport.is_closing():
            data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
            self._transport.write(_LENGTH.pack(len(data)) + data)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            end = at + _LENGTH.size + _LENGTH.unpack_from(buffer, at)[0]
            if len(buffer) < end:
                break
            message = pickle.loads(memoryview(buffer)[at + _LENGTH.size : end])
            at = end
            self._on_message(message)
        if at:
            del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def packed(exchange: Exchange) -> list[Any]:
    """What a worker saw of a request, as plain values."""
    values = {name: getattr(exchange, name) for name in _NAMES}
    for name in _CHUNKS:
        if values[name] is not None:
            values[name] = array("q", values[name]).tobytes()
    values["outcome"] = exchange.outcome and exchange.outcome.value
    return list(values.values())


def unpack(values: list[Any], exchange: Exchange) -> None:
    """Fill `exchange` with what `packed` gave."""
    for name, value in zip(_NAMES, values, strict=True):
        if name in _CHUNKS and value is not None:
            numbers = array("q")
            numbers.frombytes(value)
            value = numbers.tolist()
        setattr(exchange, name, value)
    if exchange.outcome is not None:
        exchange.outcome = Outcome(exchange.outcome)
