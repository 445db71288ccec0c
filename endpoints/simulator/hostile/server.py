"""A server on bare sockets that plays one case: no HTTP library stands between a case and the wire."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator

from endpoints.simulator.hostile.cases import CASES, case_of
from endpoints.simulator.hostile.expected import Case
from endpoints.simulator.hostile.wire import Play, Request, Wire, body, read_request

_JSON = "Content-Type: application/json"


class HostileServer:
    """Plays one case, for a `running` block. `url` ends in /v1. `posts` are those that came.

    A POST plays the case; one whose model is named like another case plays that, so that a client can ask for a good
    reply in between. GET /v1/models lists the case's name as the one model; /health is well.
    """

    def __init__(self, case: Case):
        self.case = case
        self.url = ""
        self.connections = 0
        self.posts: list[Request] = []
        self._wires: list[Wire] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def sent(self) -> int:
        """Bytes that cases have sent so far."""
        return sum(wire.sent for wire in self._wires)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests, in turn, until a case or the client ends it."""
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        turn, keep = 0, True
        try:
            if self.case.greeting:
                writer.write(self.case.greeting)
            while keep and (request := await read_request(reader)) is not None:
                turn += 1
                if request.method == "POST":
                    self.posts.append(request)
                wire = Wire(reader, writer, request, turn, len(self.posts))
                self._wires.append(wire)
                await self._play(request)(wire)
                keep = wire.keep
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # the client has left, or speaks no HTTP
        except asyncio.CancelledError:
            pass  # the server closes; nobody waits for this task
        finally:
            self._tasks.discard(task)
            writer.close()

    def _play(self, request: Request) -> Play:
        if request.method == "POST":
            return _asked(request, self.case).play
        if self.case.everywhere:
            return self.case.play
        if request.path.partition("?")[0].endswith("/models"):
            card = {"id": self.case.name, "object": "model", "created": 1_700_000_000, "owned_by": "endsweep"}
            return body("200 OK", json.dumps({"object": "list", "data": [card]}).encode(), _JSON)
        if request.path == "/health":
            return body("200 OK", b"")
        return body("404 Not Found", b'{"error":{"message":"no such route"}}', _JSON)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


def _asked(request: Request, case: Case) -> Case:
    try:
        model = json.loads(request.body).get("model")
    except (ValueError, AttributeError):
        return case
    return CASES.get(model, case) if isinstance(model, str) else case


@contextlib.asynccontextmanager
async def running(name: str, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[HostileServer]:
    """The server, listening. Raises OSError if it cannot listen, ValueError for a case that does not exist."""
    hostile = HostileServer(case_of(name))
    server = await asyncio.start_server(hostile.connection, host, port, backlog=4096, limit=2**20)
    try:
        address, taken = server.sockets[0].getsockname()[:2]
        hostile.url = f"http://[{address}]:{taken}/v1" if ":" in address else f"http://{address}:{taken}/v1"
        yield hostile
    finally:
        server.close()
        hostile.close()


def serve(name: str, host: str = "127.0.0.1", port: int = 0) -> None:
    """Play one case until SIGTERM or SIGINT; from the main thread. Prints one line when ready: the URL, with /v1.

    Raises OSError if it cannot listen, ValueError for a case that does not exist.
    """

    async def until_told() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with running(name, host, port) as hostile:
            sys.stdout.write(f"{hostile.url}\n")
            sys.stdout.flush()
            await stop.wait()

    asyncio.run(until_told())
