"""Keeps an engine on the machine's monotonic clock: steps end at their engine times, without drift."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from endpoints.simulator.engine import Engine, Finish, Progress, Sequence, Snapshot


class Alarm:
    """Calls back in the event loop at a time. Event loops round timers to a millisecond; a waiting thread does not."""

    def __init__(self, ring: Callable[[], object]):
        self._loop, self._ring = asyncio.get_running_loop(), ring
        self._changed = threading.Condition()
        self._due_ns: int | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="alarm", daemon=True)
        self._thread.start()

    def set(self, due_ns: int | None) -> None:
        """Ring once at `due_ns` (time.monotonic_ns) in place of whatever was set before; None: do not ring."""
        with self._changed:
            sooner = due_ns is not None and (self._due_ns is None or due_ns < self._due_ns)
            self._due_ns = due_ns
            if sooner:
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                if self._due_ns is None:
                    self._changed.wait()
                elif (left := self._due_ns - time.monotonic_ns()) > 0:
                    self._changed.wait(left / 1e9)
                else:
                    self._due_ns = None
                    self._loop.call_soon_threadsafe(self._ring)


class Pacer:
    """Runs the engine in real time. Engine time is time.monotonic_ns less a lag, 0 at first.

    A step noticed late by more than its own length (the process was stopped, or the machine is overloaded) is taken to
    end when it is noticed: the lag grows, and what follows is not hurried to catch up.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self._queues: dict[int, asyncio.Queue[Finish | Progress]] = {}
        self._alarm = Alarm(self._catch_up)
        self.lag_ns = 0
        self.re_anchored = 0
        engine.advance(time.monotonic_ns())

    def submit(
        self, prompt_tokens: int, output_tokens: int, seed: int, watched: bool
    ) -> tuple[Sequence, asyncio.Queue[Finish | Progress]]:
        """Hand in a request now; its events arrive in the queue as they happen. Raises ValueError if it cannot fit."""
        now = self._catch_up()
        sequence = self._engine.submit(now, prompt_tokens, output_tokens, seed, watched)
        queue = self._queues[sequence.id] = asyncio.Queue()
        self._set_alarm()
        return sequence, queue

    def cancel(self, sequence: Sequence) -> None:
        self._engine.cancel(self._catch_up(), sequence)
        self._queues.pop(sequence.id, None)
        self._set_alarm()

    def snapshot(self) -> Snapshot:
        self._engine.advance(self._catch_up())
        return self._engine.snapshot()

    def close(self) -> None:
        self._alarm.close()

    def _catch_up(self) -> int:
        """Let the engine do what is due, one boundary after the other; the engine's time now."""
        engine = self._engine
        while True:
            now = time.monotonic_ns() - self.lag_ns
            due = engine.next_ns()
            if due is None or due > now:
                break
            if now - due > engine.step_ns:
                self.lag_ns += now - due
                self.re_anchored += 1
            for event in engine.advance(due):
                if queue := self._queues.get(event.sequence.id):
                    queue.put_nowait(event)
                    if isinstance(event, Finish):
                        del self._queues[event.sequence.id]
        self._set_alarm()
        return now

    def _set_alarm(self) -> None:
        due = self._engine.next_ns()
        self._alarm.set(None if due is None else due + self.lag_ns)
