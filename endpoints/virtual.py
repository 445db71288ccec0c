"""The virtual transport: the simulator's engine behind the client's own seam, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from endpoints.outcomes import Outcome
from endpoints.simulator.engine import Engine, EngineConfig, Finish, Sequence
from endpoints.simulator.engine import Progress as Step
from endpoints.transport import Call, Exchange, Progress

BYTES_PER_TOKEN = 4


class VirtualTransport:
    """Carries calls to an engine on the running loop, whose time must be virtual (ns = loop.time() * 1e9).

    A reply comes whole, with the times of its chunks, when its sequence has finished; only a call with `on_progress`
    makes the engine stop at each of its steps.
    """

    name = "virtual"

    def __init__(self, config: EngineConfig) -> None:
        self.engine = Engine(config)
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._watchers: dict[int, tuple[Progress, list[int]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns: int | None = None

    async def send(self, call: Call, exchange: Exchange, on_progress: Progress | None = None) -> None:
        """See `Transport.send`."""
        loop = asyncio.get_running_loop()
        now = self._now(loop)
        exchange.attempts = 1
        exchange.connected_ns = exchange.sent_ns = now
        self._pump(loop)
        try:
            sequence = self.engine.submit(
                now, prompt_tokens(call.prompt_bytes), call.requested_tokens, call.seed, watched=on_progress is not None
            )
        except ValueError as exc:  # more than the engine can ever hold: a server answers that with 400
            exchange.ended_ns, exchange.status = now, 400
            exchange.outcome, exchange.error = Outcome.HTTP_4XX, f"HTTP 400: {exc}"
            return
        done = loop.create_future()
        self._waiters[sequence.id] = done
        if on_progress is not None:
            self._watchers[sequence.id] = (on_progress, [0])
        self._plan(loop)
        try:
            await done
        except asyncio.CancelledError:
            self._pump(loop)
            self.engine.cancel(self._now(loop), sequence)
            self._plan(loop)
            raise
        finally:
            self._waiters.pop(sequence.id, None)
            self._watchers.pop(sequence.id, None)
            exchange.ended_ns = self._now(loop)
            self._fill(exchange, sequence)
        exchange.outcome = Outcome.OK
        exchange.finish_reason = "length"
        exchange.output_tokens = sequence.output_tokens

    def _fill(self, exchange: Exchange, sequence: Sequence) -> None:
        exchange.status = 200 if len(sequence.chunk_ns) else None
        exchange.model = "virtual"
        exchange.input_tokens = sequence.prompt_tokens
        exchange.chunk_ns = [int(t) for t in sequence.chunk_ns]
        exchange.chunk_tokens = [int(n) for n in sequence.chunk_tokens] or None
        exchange.headers_ns = exchange.first_visible_ns = exchange.chunk_ns[0] if exchange.chunk_ns else None
        exchange.text_bytes = BYTES_PER_TOKEN * sum(exchange.chunk_tokens or [])

    def _pump(self, loop: asyncio.AbstractEventLoop) -> None:
        for event in self.engine.advance(self._now(loop)):
            self._deliver(event)

    def _deliver(self, event: Finish | Step) -> None:
        watcher = self._watchers.get(event.sequence.id)
        if watcher is not None:
            on_progress, so_far = watcher
            so_far[0] += event.tokens
            on_progress(so_far[0])
        if isinstance(event, Finish):
            waiter = self._waiters.get(event.sequence.id)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake at the engine's next moment of interest."""
        wake = self.engine.next_ns()
        if wake == self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = wake
        self._timer = None if wake is None else loop.call_at(wake / 1e9, self._wake, loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = self._timer_ns = None
        self._pump(loop)
        self._plan(loop)

    def _now(self, loop: Any) -> int:
        now: int = loop.now_ns()
        return now

    async def close(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timer_ns = None


def prompt_tokens(size: int) -> int:
    """Prompt tokens of a prompt of so many bytes: four bytes a token, as the simulator's server counts."""
    return max(1, -(-size // BYTES_PER_TOKEN))
