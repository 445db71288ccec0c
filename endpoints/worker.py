"""A worker process: carries the calls its parent hands it, with a transport of its own, on an event loop of its own.

`python -m endpoints.worker FD`: FD is its end of a socket pair. It ends when the other end does, however that came
about; signals meant for the whole group are the parent's to judge. It never prints.
"""

from __future__ import annotations

import asyncio
import gc
import pickle
import signal
import socket
import sys
import time

from endpoints.attempts import ReusePolicy
from endpoints.frames import Frames, Message, packed
from endpoints.loops import run_loop
from endpoints.resources import raise_descriptor_limit
from endpoints.transport import Call, Exchange, Transport
from endpoints.vitals import VitalsWatch


class Worker:
    """The child's side of the talk: see `workers.py` for the parent's."""

    def __init__(self) -> None:
        self._frames = Frames(self._take, self._orphaned)
        self._over = asyncio.Event()
        self._policy = ReusePolicy()
        self._transport: Transport | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._chores: set[asyncio.Task[None]] = set()
        self._vitals = VitalsWatch()

    async def run(self, end: socket.socket) -> None:
        """Serve until the parent is gone."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self._frames, sock=end)
        self._frames.send("ready")
        await self._over.wait()

    def _orphaned(self) -> None:
        self._over.set()

    def _take(self, message: Message) -> None:
        kind, *rest = message
        if kind == "call":
            number, body, requested, size, seed, issued_ns, deaths, watched = rest
            self._policy.deaths = max(self._policy.deaths, deaths)
            task = asyncio.create_task(self._carry(number, Call(body, requested, size, seed), issued_ns, watched))
            self._tasks[number] = task
        elif kind == "cancel":
            if (running := self._tasks.get(rest[0])) is not None:
                running.cancel()
        elif kind == "watch":
            self._vitals.start()
        elif kind == "vitals":
            self._frames.send("vitals", self._vitals.stop())
        elif kind == "open":
            chore = asyncio.create_task(self._open(*rest))
            self._chores.add(chore)
            chore.add_done_callback(self._chores.discard)

    async def _open(self, make: bytes, deaths: int) -> None:
        """A new point: a transport with connections of its own, in place of the last one."""
        if self._transport is not None:
            await self._transport.close()
        self._policy = ReusePolicy(deaths)
        try:
            self._transport = pickle.loads(make)(policy=self._policy)
        except Exception as fault:  # whatever it is, the parent is to say it
            self._frames.send("refused", repr(fault))
            return
        gc.collect()
        gc.freeze()  # what lives now will live on: the collector need not look at it while the point runs
        self._frames.send("opened", self._transport.name)

    async def _carry(self, number: int, call: Call, issued_ns: int, watched: bool) -> None:
        assert self._transport is not None
        exchange = Exchange(issued_ns=issued_ns)
        frames = self._frames
        try:
            progress = (lambda tokens: frames.send("progress", number, tokens)) if watched else None
            await self._transport.send(call, exchange, progress)
        except asyncio.CancelledError:
            pass  # what is known by now goes back all the same
        except Exception as fault:
            frames.send("raised", number, repr(fault))
            return
        finally:
            self._tasks.pop(number, None)
            if exchange.ended_ns is None:
                exchange.ended_ns = time.monotonic_ns()
        frames.send("ended", number, packed(exchange))


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise_descriptor_limit()
    end = socket.socket(fileno=int(sys.argv[1]))
    end.setblocking(False)
    run_loop(Worker().run(end))


if __name__ == "__main__":
    main()
