"""The closed loop: C slots, each sending its next request when its last one has ended.

Runs on any asyncio loop and any Transport, in real or in virtual time. It hands over each request when it has ended and
remembers none; what it leaves behind is the window. Everything else is computed elsewhere, by pure functions.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from endpoints.outcomes import Outcome
from endpoints.transport import Exchange, Transport
from sweeps.clock import Clock
from sweeps.prompts import FILLER, MEASURE, WARMUP, Planned, PromptFeed
from sweeps.recent import RecentMedian

_WARM_SHARE = 0.95
_WARM_PATIENCE = 3  # median request lengths after the last start, for the slots that have not finished one
_FILL_PATIENCE = 3  # median request lengths of filler while counted requests run on
_HOPELESS = 20  # requests in a row that failed, with never a success: the point is given up
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 1.0, 90.0  # after a 429 that does not say how long to wait
_EARLY_NS = 10_000_000  # by which a timer may be early
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 1.0  # a slot whose request failed at once does not hammer the server


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One point's load. `warmup`: requests before t0, or None for as many as t0 takes ("auto").

    `seconds`, `requests`: at least one; both given are both minima. `deadline_s` ends everything.
    """

    concurrency: int
    seconds: float | None
    requests: int | None
    exact: bool = False
    warmup: int | None = None
    deadline_s: float = 3600.0


@dataclass(slots=True)
class Sent:
    """One request as it was planned and as it went."""

    planned: Planned
    slot: int
    due_ns: int
    exchange: Exchange
    counted: bool
    phase: str
    needed: bool = False  # issued before t1: its tokens may fall into the window, so its end is waited for
    unsure: bool = False  # issued when t1 may be past without being known yet: whether it counts is told by t1


@dataclass(slots=True)
class Window:
    """The span that counts, and why it begins and ends where it does. ns on the sweep's clock."""

    t0_ns: int | None = None
    t1_ns: int | None = None
    slot: int | None = None
    t0_reason: str = ""
    t1_reason: str = ""


@dataclass(slots=True)
class LoadResult:
    window: Window
    origin_ns: int
    ended_ns: int
    notes: list[str] = field(default_factory=list)
    cut_short: str | None = None  # why, when the point did not run to its own end


StopCheck = Callable[[], str | None]
"""Asked before each request: a sentence when the sweep's limits are used up, else None."""


class ClosedLoop:
    """One point. `run()` once; `stop(reason)` at any time; the public counters may be watched while it runs.

    `on_ended` is told of each request as it ends; `keep` is given each, in about that order, once nothing of it will
    change any more, and by the end of `run` has got all.
    """

    def __init__(
        self,
        plan: LoadPlan,
        feed: PromptFeed,
        transport: Transport,
        clock: Clock,
        limits: StopCheck = lambda: None,
        on_ended: Callable[[Sent], None] = lambda _sent: None,
        keep: Callable[[Sent], None] = lambda _sent: None,
    ) -> None:
        self.plan, self._feed, self._transport, self._clock = plan, feed, transport, clock
        self._limits, self._on_ended, self._keep = limits, on_ended, keep
        self.window = Window()
        self.issued = 0
        self.in_flight = 0
        self.counted = 0  # counted requests issued
        self.counted_ended = 0
        self.failed = 0
        self.tokens = 0  # fragments of ended requests, or tokens where known: for the progress line only
        self._needed = 0  # requests under way that the result still needs
        self._fillers = 0
        self._warmups = 0  # issued
        self._unsure: list[Sent] = []  # in order of issue, until t1 is known
        self._held: list[Sent] = []  # those of them that have ended
        self._lengths = RecentMedian()  # of successful requests
        self._warm: set[int] = set()
        self._warm_ended = 0
        self._started = 0
        self._last_start_ns = 0
        self._failures_in_a_row = 0
        self._closed_ns: int | None = None  # when seconds and requests were both had
        self._bounded = False
        self._alone = False  # no more filler: the counted requests run on by themselves
        self._late = False  # the deadline has passed
        self._cut: str | None = None
        self.throttled = 0  # requests refused by the server's rate limit
        self.held_s = 0.0  # seconds the whole point has waited for it
        self._throttled_in_a_row = 0
        self._backoff_s = 0.0
        self._paused_ns = 0  # no slot sends before this time
        self._notes: list[str] = []
        self._first_tokens = self._first_requested = 0
        self._gates: list[asyncio.Event] = []
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._current: dict[int, Sent] = {}
        self.phase = WARMUP

    async def run(self) -> LoadResult:
        """Run the point to its end, its deadline, or `stop`. Never raises for what the server does."""
        origin = self._clock.now_ns()
        c = self.plan.concurrency
        if self.plan.warmup is not None and self.plan.warmup < c:
            self._notes.append(f"a warmup of {self.plan.warmup} for {c} slots is none: t0 is the first counted issue")
        self._gates = [asyncio.Event() for _ in range(c)]
        self._gates[0].set()
        self._after(self.plan.deadline_s, self._deadline)
        self._tasks = [asyncio.create_task(self._slot(i)) for i in range(c)]
        for task in self._tasks:
            task.add_done_callback(self._slot_done)
        try:
            await self._over.wait()
        finally:
            for timer in self._timers:
                timer.cancel()
            for task in self._tasks:
                task.cancel()
            done = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in done:
            if isinstance(result, Exception):
                raise result
        self._let_go_held()
        if self.throttled:
            self._notes.append(f"{self.throttled} requests were refused with 429; the point waited {self.held_s:.1f} s")
        return LoadResult(self.window, origin, self._clock.now_ns(), self._notes, self._cut)

    def stop(self, reason: str) -> None:
        """End the point now; what is under way is cancelled and the point is cut short."""
        if not self._over.is_set():
            self._cut = self._cut or reason
            self._over.set()

    # -- slots -------------------------------------------------------------------------------------------------------

    async def _slot(self, slot: int) -> None:
        await self._gates[slot].wait()
        self._started += 1
        self._last_start_ns = self._clock.now_ns()
        due = self._last_start_ns
        pause = 0.0
        while not self._over.is_set():
            if self._paused_ns > self._clock.now_ns():
                await self._pause()
                due = self._clock.now_ns()
                continue
            phase = self._phase_now()
            if phase is None:
                return
            if why := self._limits():
                if self.window.t1_ns is None:
                    self.stop(why)
                elif not self._alone:  # the window is whole: let what counts run on, and send no more beside it
                    self._alone = True
                    self._notes.append(f"{why}: no more filler was sent")
                return
            planned = self._feed.next(phase)
            exchange = Exchange()
            sent = Sent(planned, slot, due, exchange, phase == MEASURE, phase)
            self._issue(sent)
            on_progress = self._stagger if planned.index == 0 and self._started < self.plan.concurrency else None
            try:
                await self._transport.send(planned.call, exchange, on_progress)
            finally:
                self._current.pop(slot, None)
                self._ended(sent)
                self._let_go(sent)
            due = exchange.ended_ns or self._clock.now_ns()
            if exchange.outcome is Outcome.OK or exchange.outcome is Outcome.RATE_LIMITED:
                pause = 0.0
            else:
                pause = min(_LAST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * pause))
                await asyncio.sleep(pause)
                due = self._clock.now_ns()

    def _slot_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            self.stop(f"internal error: {fault!r}")  # `run` raises it

    def _issue(self, sent: Sent) -> None:
        now = self._clock.now_ns()
        sent.exchange.issued_ns = now
        self.issued += 1
        self._warmups += sent.phase == WARMUP
        if sent.planned.index == 0:
            self._first_requested = sent.planned.call.requested_tokens
        self._current[sent.slot] = sent
        self.in_flight += 1
        if sent.counted:
            if self.window.t0_ns is None:
                self._open(now, sent.slot, "the first counted request was issued (no warmup)")
            self.counted += 1
            if self._may_be_late(now):
                sent.unsure = True
                self._unsure.append(sent)
        if sent.phase == FILLER:
            self._fillers += 1
        if self.window.t1_ns is None:
            sent.needed = True
            self._needed += 1
        if self._enough(now) and self._closed_ns is None:
            self._close(now)

    def _ended(self, sent: Sent) -> None:
        exchange = sent.exchange
        if exchange.ended_ns is None:
            exchange.ended_ns = self._clock.now_ns()
        if exchange.outcome is None:
            exchange.outcome = Outcome.DEADLINE if self._late and sent.needed else Outcome.CANCELLED
        self.in_flight -= 1
        ended = exchange.ended_ns
        if exchange.outcome is Outcome.OK:
            self._lengths.add(ended - exchange.issued_ns)
            self._failures_in_a_row = 0
            self.tokens += exchange.output_tokens or len(exchange.chunk_ns)
            self._throttled_in_a_row = 0
        elif exchange.outcome is Outcome.RATE_LIMITED:
            self._throttle(sent)
        elif exchange.outcome is not Outcome.CANCELLED:
            self.failed += 1
            self._failures_in_a_row += 1
        if exchange.pause_s is not None:
            self._hold(ended, exchange.pause_s)
        if sent.counted:
            self.counted_ended += 1
        self._needed -= sent.needed
        self._on_ended(sent)
        if self._over.is_set():
            return
        if sent.planned.index == 0:
            self._stagger(self.plan.concurrency * sent.planned.call.requested_tokens)  # every gate opens at its end
        if not self._lengths and self._failures_in_a_row >= max(_HOPELESS, 2 * self.plan.concurrency):
            self.stop(f"{self._failures_in_a_row} requests in a row failed and none succeeded")
            return
        if self._throttled_in_a_row >= max(_HOPELESS, 4 * self.plan.concurrency):
            self.stop(f"{self._throttled_in_a_row} requests in a row were refused by the server's rate limit")
            return
        if sent.phase == WARMUP and exchange.outcome is not Outcome.RATE_LIMITED:
            self._warm.add(sent.slot)
            self._warm_ended += 1
        if self.window.t0_ns is None:
            self._maybe_open(ended, sent.slot)
        elif self.window.t1_ns is None:
            if self._closed_ns is None and self._enough(ended):
                self._close(ended)  # the timer is about to say the same
            if self._closed_ns is not None and sent.slot == self.window.slot and ended >= self._closed_ns:
                self._shut(ended, "the slot that set t0 finished a request")
            else:
                self._bound_t1()
        self._maybe_over()

    def _let_go(self, sent: Sent) -> None:
        """Hand over a request that has ended, as soon as it is known whether it counts."""
        if sent.unsure and self.window.t1_ns is None:
            self._held.append(sent)
        else:
            self._keep(sent)

    def _let_go_held(self) -> None:
        for sent in self._held:
            self._keep(sent)
        self._held = []

    def _throttle(self, sent: Sent) -> None:
        """A request that the quota refused counts neither as failed nor as slow: another counts in its place."""
        self.throttled += 1
        self._throttled_in_a_row += 1
        if sent.exchange.pause_s is None and sent.exchange.issued_ns >= self._paused_ns:
            # It does not say how long. Quotas are of seconds or of minutes, so waits must grow beyond a minute.
            self._backoff_s = min(_LONGEST_BACKOFF_S, 2 * self._backoff_s or _FIRST_BACKOFF_S)
            self._hold(self._clock.now_ns(), self._backoff_s)
        if sent.counted:
            sent.counted = False
            self.counted -= 1
            if self.window.t1_ns is None:
                self._closed_ns, self._bounded = None, False

    def _hold(self, now: int, seconds: float) -> None:
        """The whole point waits: no slot sends before then."""
        until = now + int(max(seconds, _FIRST_PAUSE_S) * 1e9)
        if until > self._paused_ns:
            self.held_s += (until - max(now, self._paused_ns)) / 1e9
            self._paused_ns = until

    async def _pause(self) -> None:
        await asyncio.sleep((self._paused_ns - self._clock.now_ns()) / 1e9)

    def _stagger(self, tokens: int) -> None:
        """Slot i starts when the first request has i/C of its tokens."""
        self._first_tokens = max(self._first_tokens, tokens)
        opened = min(
            self.plan.concurrency - 1, self.plan.concurrency * self._first_tokens // max(1, self._first_requested)
        )
        for gate in self._gates[: opened + 1]:
            gate.set()

    # -- phases and window -------------------------------------------------------------------------------------------

    def _phase_now(self) -> str | None:
        """What the next request of a slot is; None when the slot has nothing more to send."""
        plan, window = self.plan, self.window
        if window.t0_ns is None:
            if plan.warmup is None or plan.warmup >= plan.concurrency:
                return WARMUP
            self.phase = WARMUP if self._warmups < plan.warmup else MEASURE
            return self.phase
        if window.t1_ns is None and (plan.seconds is not None or self.counted < (plan.requests or 0)):
            self.phase = MEASURE
            return MEASURE
        self.phase = FILLER
        if plan.exact or self._alone or (plan.seconds is None and self._fillers >= plan.concurrency):
            return None
        return FILLER

    def _enough(self, now: int) -> bool:
        plan, t0 = self.plan, self.window.t0_ns
        if t0 is None:
            return False
        long_enough = plan.seconds is None or now >= t0 + int(plan.seconds * 1e9)
        return long_enough and (plan.requests is None or self.counted >= plan.requests)

    def _maybe_open(self, now: int, slot: int) -> None:
        c = self.plan.concurrency
        wanted = c if self.plan.warmup is None else self.plan.warmup
        if self._started < c or wanted < c or self._warm_ended < wanted:
            return
        if len(self._warm) == c:
            self._open(now, slot, "every slot had finished a warmup request")
        elif (
            len(self._warm) >= math.ceil(_WARM_SHARE * c)
            and now >= self._last_start_ns + _WARM_PATIENCE * self._median()
        ):
            self._open(now, slot, f"{len(self._warm)} of {c} slots had finished a warmup request, the rest were late")

    def _open(self, now: int, slot: int, reason: str) -> None:
        self.window.t0_ns, self.window.slot, self.window.t0_reason = now, slot, reason
        self.phase = MEASURE
        if self.plan.seconds is not None:
            self._after(self.plan.seconds, self._time_is_up)

    def _time_is_up(self) -> None:
        assert self.window.t0_ns is not None and self.plan.seconds is not None
        now = max(self._clock.now_ns(), self.window.t0_ns + int(self.plan.seconds * 1e9))  # timers may be early
        if self._closed_ns is None and self._enough(now):
            self._close(now)

    def _close(self, now: int) -> None:
        """Seconds and requests are had: t1 comes with the next finish of the slot that set t0, or a median later."""
        self._closed_ns = now
        self._bound_t1()

    def _bound_t1(self) -> None:
        """Set the timer that keeps a straggler from dragging the window, once a length is known."""
        if self._lengths and not self._bounded and self._closed_ns is not None:
            self._bounded = True
            self._after((self._closed_ns + self._median() - self._clock.now_ns()) / 1e9, self._median_is_up)

    def _median_is_up(self) -> None:
        if self._closed_ns is not None and self.window.t1_ns is None and not self._over.is_set():
            self._shut(self._clock.now_ns(), "one median request length had passed")
            self._maybe_over()

    def _shut(self, now: int, reason: str) -> None:
        self.window.t1_ns, self.window.t1_reason = now, reason
        self.phase = FILLER
        # Issued at t1 or since, before it was known: outside [t0, t1).
        for sent in reversed(self._unsure):
            if sent.exchange.issued_ns < now or self.counted <= (self.plan.requests or 0):
                break
            if sent.counted:
                self._uncount(sent)
        self._unsure = []
        self._let_go_held()
        self._after(_FILL_PATIENCE * self._median() / 1e9, self._fill_is_up)

    def _may_be_late(self, now: int) -> bool:
        """Might t1 turn out to be before `now`? Not while seconds or requests are lacking; never by requests alone."""
        plan, t0 = self.plan, self.window.t0_ns
        if plan.seconds is None or t0 is None or self.counted <= (plan.requests or 0):
            return False
        return now >= t0 + int(plan.seconds * 1e9) - _EARLY_NS

    def _uncount(self, sent: Sent) -> None:
        sent.counted, sent.phase = False, FILLER
        self.counted -= 1
        if self._current.get(sent.slot) is sent:
            sent.needed = False
            self._needed -= 1
        else:
            self.counted_ended -= 1

    def _fill_is_up(self) -> None:
        """From here on only counted requests run on, alone; what else is under way is cancelled."""
        if self._over.is_set():
            return
        self._alone = True
        since = f"for more than {_FILL_PATIENCE} median request lengths after t1"
        if (left := self.counted - self.counted_ended) and not self.plan.exact:
            self._notes.append(f"{left} counted requests ran on {since}, from then on without load beside them")
        others = {slot: sent for slot, sent in self._current.items() if not sent.counted}
        if lost := sum(sent.needed for sent in others.values()):
            self._notes.append(f"{lost} uncounted requests from before t1 ran on {since} and were given up")
        for slot in others:
            self._tasks[slot].cancel()

    def _maybe_over(self) -> None:
        if self.window.t1_ns is not None and self._needed <= 0:
            self._over.set()

    def _deadline(self) -> None:
        """Ends everything. With the window complete, only the requests still under way are lost, not the point."""
        self._late = True
        if self.window.t1_ns is None:
            self.stop("the point's deadline passed before its window was complete")
        else:
            self._notes.append(f"{self._needed} requests had not ended at the point's deadline")
            self._over.set()

    def _median(self) -> int:
        """Median length of the latest successful requests, ns (0 while there is none)."""
        return self._lengths.median()

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(max(0.0, seconds), action))
