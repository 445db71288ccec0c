"""The null server: no engine behind it, only streams at an exact pace, so that whatever is measured is the client.

Every token of a stream is due at an absolute time (request read + ttft + its share of jitter + k chunk intervals), and
GET /truth tells when each was in fact handed to the kernel.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import os
import random
import re
import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast
from urllib.parse import parse_qsl

from endpoints.simulator.process import SimulatorProcess, run_loop, serve_until_told

_ASKED = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_WHOLE = re.compile(rb'"stream":\s*false')
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_MOST_HEAD = 64 * 1024


@dataclass(frozen=True, slots=True)
class NullOptions:
    """How streams are paced. A request's URL may say otherwise in its query: `?ttft_ms=50&jitter_ms=0&chunk_ms=5`.

    With `bulk` the whole reply is written at once, when its first token is due.
    """

    port: int = 0
    host: str = "127.0.0.1"
    ttft_ms: float = 200.0
    jitter_ms: float = 200.0  # uniform, added to a stream's ttft
    chunk_ms: float = 20.0
    tokens: int = 64  # where the request does not say
    bulk: bool = False
    seed: int = 0

    def arguments(self) -> list[str]:
        """The command-line arguments that stand for these settings."""
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        return ["--bulk" if name == "bulk" else f"--{name.replace('_', '-')}={value}" for name, value in given]

    def under(self, query: str) -> NullOptions:
        """These settings with those of a URL's query laid over them. Raises ValueError for what is no number."""
        asked = dict(parse_qsl(query))
        paces = {name: float(asked[name]) for name in ("ttft_ms", "jitter_ms", "chunk_ms") if name in asked}
        return replace(self, **paces, bulk=asked.get("bulk", str(int(self.bulk))) == "1")  # type: ignore[arg-type]


@dataclass(slots=True)
class _Stream:
    """One reply under way. Times: time.monotonic_ns."""

    id: int
    connection: _Connection
    tokens: int
    received_ns: int
    first_due_ns: int
    chunk_ns: int
    token: bytes
    tail: bytes
    bulk: bool
    written: int = 0
    first_ns: int = 0
    last_ns: int = 0


class NullServer:
    """Paces all streams from one heap and keeps their true times."""

    def __init__(self, options: NullOptions) -> None:
        self.options = options
        self._loop = asyncio.get_running_loop()
        self._random = random.Random(options.seed)
        self._due: list[tuple[int, int, _Stream]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._next = 0
        self.reset()

    def reset(self) -> None:
        """Forget the record of streams that have ended."""
        self.ended: list[tuple[int, int, int, int, int]] = []  # id, received, first, last, tokens
        self.late_ns: list[int] = []  # first token: written - due
        self.received = self.open = self.peak = self.cut = 0
        self._cpu = time.process_time()

    def begin(self, connection: _Connection, body: bytes, options: NullOptions) -> _Stream:
        """Take a request: its stream starts by itself."""
        now = time.monotonic_ns()
        self._next += 1
        self.received += 1
        asked = _ASKED.search(body)
        tokens = max(1, int(asked[1])) if asked else options.tokens
        name = f"chatcmpl-null-{self._next:08x}"
        due = now + int(1e6 * (options.ttft_ms + options.jitter_ms * self._random.random()))
        usage = {"prompt_tokens": max(1, len(body) // 4), "completion_tokens": tokens}
        usage["total_tokens"] = usage["prompt_tokens"] + tokens
        stream = _Stream(
            self._next,
            connection,
            tokens,
            now,
            due,
            int(options.chunk_ms * 1e6),
            _event(name, [{"index": 0, "delta": {"content": "a "}, "finish_reason": None}]),
            _event(name, [{"index": 0, "delta": {}, "finish_reason": "length"}])
            + _event(name, [], usage=usage)
            + _chunk(b"data: [DONE]\n\n")
            + b"0\r\n\r\n",
            options.bulk,
        )
        self.open += 1
        self.peak = max(self.peak, self.open)
        heapq.heappush(self._due, (due, stream.id, stream))
        self._set_timer()
        return stream

    def _set_timer(self) -> None:
        if not self._due:
            return
        due = self._due[0][0]
        if self._timer is not None:
            if self._timer_ns <= due:
                return
            self._timer.cancel()
        self._timer_ns = due
        self._timer = self._loop.call_later(max(0.0, (due - time.monotonic_ns()) / 1e9), self._write_due)

    def _write_due(self) -> None:
        self._timer = None
        due = self._due
        while due and due[0][0] <= time.monotonic_ns():
            at, number, stream = due[0]
            if stream.connection.gone:
                heapq.heappop(due)
                self.open -= 1
                self.cut += 1
                continue
            first, last = stream.written == 0, stream.bulk or stream.written + 1 == stream.tokens
            block = stream.token * (stream.tokens if stream.bulk else 1)
            if first:
                block = _HEAD + block
            now = time.monotonic_ns()
            stream.connection.write(block + stream.tail if last else block)
            stream.written += stream.tokens if stream.bulk else 1
            if first:
                stream.first_ns = now
                self.late_ns.append(now - at)
            if last:
                stream.last_ns = now
                heapq.heappop(due)
                self.open -= 1
                self.ended.append((number, stream.received_ns, stream.first_ns, now, stream.tokens))
                stream.connection.finished()
            else:
                heapq.heapreplace(due, (at + stream.chunk_ns, number, stream))
        self._set_timer()

    def truth(self, *, requests: bool) -> dict[str, Any]:
        """What was truly sent since the last reset. ms; percentiles by the "lower" method."""
        ttft = [(first - received) / 1e6 for _, received, first, _, _ in self.ended]
        tpot = [(last - first) / 1e6 / (n - 1) for _, _, first, last, n in self.ended if n > 1]
        document: dict[str, Any] = {
            "options": asdict(self.options),
            "now_ns": time.monotonic_ns(),
            "received": self.received,
            "completed": len(self.ended),
            "cut": self.cut,
            "open": self.open,
            "peak_open": self.peak,
            "ttft_ms": _summary(ttft),
            "tpot_ms": _summary(tpot),
            "late_ms": _summary([late / 1e6 for late in self.late_ns]),
            "cpu_s": time.process_time() - self._cpu,
        }
        if requests:
            names = ("id", "received_ns", "first_token_ns", "last_token_ns", "tokens")
            document["requests"] = [dict(zip(names, row, strict=True)) for row in self.ended]
        return document


class _Connection(asyncio.Protocol):
    """Just enough of HTTP/1.1: one request after the other, keep-alive."""

    def __init__(self, server: NullServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._stream: _Stream | None = None
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._fd = transport.get_extra_info("socket").fileno()  # event loops set TCP_NODELAY by themselves

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._take()

    def write(self, block: bytes) -> None:
        """To the kernel now, not when the event loop comes round: the stamp beside it is to be true."""
        if not self._transport.get_write_buffer_size():
            try:
                block = block[os.write(self._fd, block) :]
            except BlockingIOError:
                pass
            except OSError:
                self.gone = True
                return
        if block:
            self._transport.write(block)

    def finished(self) -> None:
        self._stream = None
        if self._buffer:
            self._take()

    def _take(self) -> None:
        while self._stream is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _MOST_HEAD:
                    self._transport.abort()
                return
            head = bytes(self._buffer[:end])
            length = _LENGTH.search(head)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < whole:
                return
            body = bytes(self._buffer[end + 4 : whole])
            del self._buffer[:whole]
            method, target = head.split(b" ", 2)[:2]
            self._answer(method, *target.decode("latin-1").partition("?")[::2], body)

    def _answer(self, method: bytes, path: str, query: str, body: bytes) -> None:
        server = self._server
        if method == b"POST" and path.endswith("/completions"):
            try:
                options = server.options.under(query)
            except ValueError as exc:
                self._json({"error": {"message": str(exc)}}, "400 Bad Request")
                return
            if _WHOLE.search(body):
                message = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "length"}
                usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
                self._json({"id": "null", "object": "chat.completion", "choices": [message], "usage": usage})
            else:
                self._stream = server.begin(self, body, options)
        elif method == b"GET" and path.endswith("/models"):
            self._json({"object": "list", "data": [{"id": "null", "object": "model"}]})
        elif path == "/truth" and method == b"GET":
            self._json(server.truth(requests="requests=0" not in query))
        elif path == "/truth" and method == b"DELETE":
            server.reset()
            self._json({})
        else:
            self._json({"error": {"message": f"there is no {path} here"}}, "404 Not Found")

    def _json(self, document: Any, status: str = "200 OK") -> None:
        body = json.dumps(document).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


class NullProcess(SimulatorProcess):
    """The null server in a child process, for a `with` block; see `SimulatorProcess`."""

    module = "endpoints.simulator.null"

    def __init__(self, options: NullOptions | None = None, ready_within_s: float = 30.0) -> None:
        super().__init__(options or NullOptions(), ready_within_s)


def _event(name: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
    document = {
        "id": name,
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "null",
        "choices": choices,
        **more,
    }
    return _chunk(b"data: " + json.dumps(document).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _summary(values: list[float]) -> dict[str, float | int | None]:
    if not values:
        return {"mean": None, "p50": None, "p99": None, "n": 0}
    ordered = sorted(values)
    last = len(ordered) - 1
    quantiles = {f"p{q}": ordered[last * q // 100] for q in (50, 99)}
    return {"mean": sum(ordered) / len(ordered), **quantiles, "n": len(ordered)}


async def _serve(options: NullOptions, watch_stdin: bool) -> None:
    server = NullServer(options)
    listening = await asyncio.get_running_loop().create_server(
        lambda: _Connection(server), options.host, options.port, backlog=4096
    )
    port = listening.sockets[0].getsockname()[1]
    try:
        await serve_until_told(f"http://{options.host}:{port}", watch_stdin)
    finally:
        listening.close()


def main(arguments: list[str] | None = None) -> int:
    """0: stopped as told; 2: it cannot listen."""
    parser = argparse.ArgumentParser("python -m endpoints.simulator.null", description=__doc__)
    for f in fields(NullOptions):
        flag = "--" + f.name.replace("_", "-")
        if isinstance(f.default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(f.default), default=f.default)
    parser.add_argument("--watch-stdin", action="store_true", help="stop when standard input ends")
    chosen = vars(parser.parse_args(arguments))
    watch_stdin = chosen.pop("watch_stdin")
    try:
        run_loop(_serve(NullOptions(**chosen), watch_stdin))
    except OSError as error:
        sys.stderr.write(f"endsweep null server: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
