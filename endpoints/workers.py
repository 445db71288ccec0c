"""Several processes behind the one seam: `WorkerTransport` hands each call to the worker with the fewest under way.

The load stays one state machine in the parent, which also makes every prompt; a worker only carries. All stamps are
of CLOCK_MONOTONIC, which the processes of a machine share.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from endpoints.attempts import ReusePolicy
from endpoints.frames import Frames, Message, unpack
from endpoints.outcomes import Outcome
from endpoints.transport import Call, Exchange, Progress, Transport
from endpoints.vitals import Vitals

_ROOT = Path(__file__).resolve().parents[1]
_READY_S = 30.0
_PARTIAL_S = 2.0  # how long what is known of a cancelled request is waited for
_FAREWELL_S = 2.0
_VITALS_S = 5.0


class WorkerError(Exception):
    """Workers cannot be started; one sentence."""


@dataclass(slots=True, eq=False)
class _Carried:
    """A call a worker has: where its result goes, and who waits for it."""

    exchange: Exchange
    on_progress: Progress | None
    done: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class _Child:
    """One worker as its parent knows it. `number` from 0; `answer`: the reply to what was last asked of it."""

    number: int
    process: subprocess.Popen[bytes]
    answer: asyncio.Future[Message]
    frames: Frames | None = None
    alive: bool = True
    carried: dict[int, _Carried] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"worker {self.number} (process {self.process.pid})"

    def take(self, message: Message) -> None:
        kind, *rest = message
        if kind == "ended":
            if (carried := self.carried.pop(rest[0], None)) is not None:
                unpack(rest[1], carried.exchange)
                _settle(carried.done)
        elif kind == "progress":
            carried = self.carried.get(rest[0])
            if carried is not None and carried.on_progress is not None:
                carried.on_progress(rest[1])
        elif kind == "raised":
            if (carried := self.carried.pop(rest[0], None)) is not None and not carried.done.done():
                carried.done.set_exception(RuntimeError(f"{self.name}: {rest[1]}"))
        elif self.answer.done():
            pass  # asked for too long ago
        elif kind == "refused":
            self.answer.set_exception(WorkerError(f"{self.name} cannot start: {rest[0]}"))
        else:
            self.answer.set_result(message)

    def lost(self) -> None:
        """It is gone: whatever it carried ends here, as our own machine's fault."""
        self.alive = False
        now = time.monotonic_ns()
        for carried in self.carried.values():
            e = carried.exchange
            e.ended_ns, e.outcome, e.error = (
                now,
                Outcome.CLIENT_RESOURCE,
                f"{self.name} died with the request under way",
            )
            _settle(carried.done)
        self.carried.clear()
        if not self.answer.done():
            self.answer.set_exception(WorkerError(f"{self.name} died"))
            self.answer.exception()  # looked at by whoever waits; unheard of otherwise

    def ask(self, *message: object) -> asyncio.Future[Message]:
        """Send it something that it answers."""
        self.answer = asyncio.get_running_loop().create_future()
        if self.frames is None or not self.alive:
            self.answer.set_exception(WorkerError(f"{self.name} is not there"))
        else:
            self.frames.send(*message)
        return self.answer


class WorkerPool:
    """The worker processes of a sweep. They end with this process, also when it is killed."""

    def __init__(self) -> None:
        self._children: list[_Child] = []

    @property
    def pids(self) -> list[int]:
        return [child.process.pid for child in self._children]

    async def open(self, number: int, make: Callable[..., Transport], policy: ReusePolicy) -> WorkerTransport:
        """A transport over `number` workers, new ones in the place of any that died.

        `make(policy=...)` makes each one's own transport; it must pickle. Ends what the last transport had under way.
        Raises WorkerError.
        """
        await asyncio.gather(*(_dismiss(child) for child in self._children[number:]))
        del self._children[number:]
        fresh = {at: _hire(at) for at in range(number) if at >= len(self._children) or not self._children[at].alive}
        for at, (child, end) in fresh.items():
            if at < len(self._children):
                await _dismiss(self._children[at])
            self._children[at : at + 1] = [child]
            frames = Frames(child.take, child.lost)
            await asyncio.get_running_loop().create_unix_connection(lambda frames=frames: frames, sock=end)  # type: ignore[misc]
            child.frames = frames
        await self._all([child.answer for child, _ in fresh.values()])
        pickled = pickle.dumps(make, pickle.HIGHEST_PROTOCOL)
        names = await self._all([child.ask("open", pickled, policy.deaths) for child in self._children])
        return WorkerTransport(str(names[0][1]), self._children, policy)

    async def _all(self, answers: list[asyncio.Future[Message]]) -> list[Message]:
        try:
            async with asyncio.timeout(_READY_S):
                return list(await asyncio.gather(*answers))
        except TimeoutError:
            raise WorkerError(f"a worker process was not ready within {_READY_S:g} s") from None

    def watch(self) -> None:
        """Begin to watch how well each keeps up."""
        for child in self._children:
            if child.frames is not None:
                child.frames.send("watch")

    async def vitals(self) -> list[Vitals | None]:
        """What was seen of each since `watch`; None of one that died."""
        answers = [child.ask("vitals") for child in self._children]
        if answers:
            await asyncio.wait(answers, timeout=_VITALS_S)
        return [a.result()[1] if a.done() and a.exception() is None else None for a in answers]

    async def close(self) -> None:
        """End them all."""
        await asyncio.gather(*(_dismiss(child) for child in self._children))
        self._children.clear()


class WorkerTransport:
    """Carries calls over a pool's workers. `name` is that of the transport each of them uses."""

    def __init__(self, name: str, children: list[_Child], policy: ReusePolicy) -> None:
        self.name = name
        self._children, self._policy = list(children), policy
        self._next = 0

    async def send(self, call: Call, exchange: Exchange, on_progress: Progress | None = None) -> None:
        """See `Transport.send`. With C calls under way no worker ever has more than C / N, rounded up."""
        living = [child for child in self._children if child.alive]
        if not living:
            exchange.ended_ns = time.monotonic_ns()
            exchange.outcome, exchange.error = Outcome.CLIENT_RESOURCE, "every worker process has died"
            return
        child = min(living, key=lambda child: len(child.carried))
        assert child.frames is not None
        self._next += 1
        number, done = self._next, asyncio.get_running_loop().create_future()
        child.carried[number] = _Carried(exchange, on_progress, done)
        exchange.worker = child.number
        child.frames.send(
            "call",
            number,
            call.body,
            call.requested_tokens,
            call.prompt_bytes,
            call.seed,
            exchange.issued_ns,
            self._policy.deaths,
            on_progress is not None,
        )
        try:
            await done
        except asyncio.CancelledError:
            child.frames.send("cancel", number)
            if not done.done() or done.cancelled():
                await self._partial(child, number)
            raise
        finally:
            child.carried.pop(number, None)
        self._policy.deaths += exchange.attempts > 1

    async def _partial(self, child: _Child, number: int) -> None:
        """Wait for what is known of a cancelled request, but not for ever."""
        carried = child.carried.get(number)
        if carried is not None:
            carried.done = asyncio.get_running_loop().create_future()  # the first one was cancelled with its waiter
            await asyncio.wait([carried.done], timeout=_PARTIAL_S)

    async def close(self) -> None:
        """Nothing to do: the workers drop their connections when the next transport is opened, or when they end."""


def _hire(number: int) -> tuple[_Child, socket.socket]:
    """Start a worker; it and our end of the pair. Keys go over the pair, never by argument or environment."""
    ours, its = socket.socketpair()
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "endpoints.worker", str(its.fileno())],
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the parent
        )
    except OSError as exc:
        ours.close()
        raise WorkerError(f"a worker process cannot be started: {exc.strerror or exc}") from None
    finally:
        its.close()
    ours.setblocking(False)
    return _Child(number, process, asyncio.get_running_loop().create_future()), ours


async def _dismiss(child: _Child) -> None:
    """End one worker: it leaves when its line closes; one that does not is killed."""
    if child.frames is not None:
        child.frames.close()
    deadline = time.monotonic() + _FAREWELL_S
    while child.process.poll() is None:
        if time.monotonic() > deadline:
            child.process.send_signal(signal.SIGKILL)
            child.process.wait()
            return
        await asyncio.sleep(0.005)


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
