"""The sweep: point after point, each stored as it ends, with everything that happens told to whoever listens."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from endpoints.attempts import ReusePolicy
from endpoints.hooks import HookError
from endpoints.launching import LaunchError
from endpoints.target import Target
from endpoints.telemetry import ServerMetrics
from endpoints.transport import Transport
from endpoints.workers import WorkerError, WorkerPool
from profiles.hosts import is_local
from profiles.loading import Sweep
from sweeps.budget import Budget
from sweeps.capacity import ASSUMED, Capacity, crew_for
from sweeps.clock import RealClock
from sweeps.cores import cores_here
from sweeps.events import (
    Listener,
    Note,
    PointFinished,
    PointKey,
    PointProgress,
    PointSkipped,
    PointStarted,
    SweepFinished,
    SweepStarted,
)
from sweeps.evidence import telemetry_table
from sweeps.health import ClientMonitor
from sweeps.load import ClosedLoop
from sweeps.measure import Measurement, Prompts
from sweeps.plan import PlannedPoint, prices_of
from sweeps.point import FINISHED
from sweeps.samecheck import SameCheck
from sweeps.servers import Servers
from sweeps.spool import FileSpool, prune
from sweeps.store import RunStore
from sweeps.verdicts import Earlier
from sweeps.watch import ServerWatch

_PROGRESS_S = 0.25
_PACE_OVER = 12  # progress marks the shown pace is taken over: three seconds


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """How the sweep went: points stored whole (of this run and earlier ones), points skipped, and whether it was
    stopped from outside."""

    finished: int
    skipped: int
    interrupted: bool


@dataclass(slots=True)
class _Lane:
    """What the runner remembers of one arm between its points."""

    policy: ReusePolicy = field(default_factory=ReusePolicy)
    earlier: Earlier = field(default_factory=Earlier)
    end_named: bool = False
    chunks_per_stream: float | None = None  # a second, as the last point had them
    ended: str | None = None  # why nothing more is sent to this arm


class SweepRun:
    """Runs the points of a plan that are not stored yet. `stop` ends the running point and the sweep."""

    def __init__(
        self,
        sweep: Sweep,
        points: Sequence[PlannedPoint],
        servers: Servers,
        prompts: Prompts,
        store: RunStore,
        listen: Listener,
        capacity: Capacity = ASSUMED,
    ) -> None:
        self._sweep, self._points, self._servers, self._prompts = sweep, points, servers, prompts
        self._store, self._listen, self._capacity = store, listen, capacity
        self._pool, self._crew = WorkerPool(), 1
        self._arms = {arm.name: arm for arm in sweep.arms}
        self._lanes = {arm.name: _Lane() for arm in sweep.arms}
        self._budget = Budget(sweep.limits)
        self._running: Measurement | None = None
        self._asking: asyncio.Task[int] | None = None
        self._check: SameCheck | None = None
        self._stopped: str | None = None

    def stop(self, reason: str) -> None:
        """End now: the point under way is stored as interrupted, what is finished stays."""
        self._stopped = reason
        self._servers.stop()
        if self._running is not None:
            self._running.stop(reason)
        if self._asking is not None:
            self._asking.cancel()

    async def run(self) -> SweepOutcome:
        """Measure what is missing. Raises OSError when the run's folder cannot be written."""
        try:
            return await self._run()
        finally:
            await self._servers.down()
            await self._pool.close()

    async def _run(self) -> SweepOutcome:
        began = time.monotonic()
        kept = self._store.finished()
        keys = tuple(p.key for p in self._points)
        for spent in self._store.spent():
            self._budget.spent_before(spent)
        self._remember_ends()
        earlier = sum(key in kept for key in keys)
        finished, skipped = earlier, 0
        self._store.note("run_started", points=len(keys), already_finished=earlier)
        self._listen(SweepStarted(self._sweep.name, str(self._store.path), keys, earlier))
        if self._sweep.check_equal:
            self._check = SameCheck(self._sweep, self._prompts.measured, self._store, self._budget, self._listen)
            for name, arm in self._arms.items():
                if arm.launch is None:  # the others are asked when they are up
                    await self._ask_alike(name, await self._servers.target(arm, self._budget.seconds_left()))
        for number, planned in enumerate(self._points, 1):
            if self._stopped is not None:
                break
            if planned.key in kept:
                continue
            why = self._lanes[planned.key.arm].ended or self._budget.cannot_afford(planned)
            target = None if why else await self._ready(planned)
            if self._stopped is not None:
                break
            if target is None or isinstance(target, str):
                why = why or target or ""
                skipped += 1
                self._store.note("point_skipped", planned.key, reason=why)
                self._listen(PointSkipped(planned.key, number, len(keys), why))
                continue
            finished += await self._measure(planned, target, number, len(keys))
        await self._ask_the_rest()
        interrupted = self._stopped is not None
        event = "interrupted" if interrupted else "run_finished"
        self._store.note(event, finished=finished, skipped=skipped, reason=self._stopped)
        seconds = time.monotonic() - began
        self._listen(SweepFinished(str(self._store.path), finished - earlier, skipped, interrupted, seconds))
        return SweepOutcome(finished, skipped, interrupted)

    async def _ask_alike(self, name: str, target: Target) -> None:
        """Have an arm answer what all arms are asked, where that is wanted: apart from the points."""
        check, lane = self._check, self._lanes[name]
        if check is None or check.concluded or self._stopped is not None:
            return
        self._asking = asyncio.create_task(check.ask(self._arms[name], target))
        try:
            sent = await self._asking
        except asyncio.CancelledError:
            if self._stopped is None:
                raise
            sent = 0
        finally:
            self._asking = None
        if sent and not self._sweep.workload.salt:  # the points will send these prompts again
            lane.earlier = replace(lane.earlier, asked_unsalted=True)
        if check.done:
            check.conclude()

    async def _ask_the_rest(self) -> None:
        """Arms that owe answers come up for them: all their points are there, or they are to answer again."""
        if self._check is None or self._check.concluded:
            return
        for name, lane in [*self._lanes.items()] * 2:  # first answers, and second ones of another start
            if lane.ended is None and self._stopped is None and self._check.owes(self._arms[name]):
                if self._check.barred(self._arms[name]):
                    continue
                await self._servers.down()  # one that is up has answered what it may
                try:
                    await self._ask_alike(
                        name, await self._servers.target(self._arms[name], self._budget.seconds_left())
                    )
                except LaunchError as exc:
                    lane.ended = str(exc)
        if not self._check.concluded:
            self._check.conclude()

    async def _ready(self, planned: PlannedPoint) -> Target | str:
        """Where the point's requests go, its arm up and its hook done; else why it cannot be measured."""
        key, arm, lane = planned.key, self._arms[planned.key.arm], self._lanes[planned.key.arm]
        try:
            target = await self._servers.target(arm, self._budget.seconds_left())
            await self._ask_alike(key.arm, target)
            if why := self._budget.cannot_afford(planned):  # it takes time to come up, and answers take tokens
                return why
            await self._servers.before_point(arm, target, key.concurrency)
        except LaunchError as exc:
            lane.ended = str(exc)  # without its server there is nothing more to measure of it
            return lane.ended
        except HookError as exc:
            if self._stopped is None:
                self._listen(Note(f"{key.arm} at {key.concurrency}: {exc}", "warn"))
            return str(exc)
        return target

    async def _measure(self, planned: PlannedPoint, target: Target, number: int, total: int) -> bool:
        key, arm, lane = planned.key, self._arms[planned.key.arm], self._lanes[planned.key.arm]
        prices, could_reuse = prices_of(arm), lane.policy.reuse
        requests_path = self._store.begin_point(arm.slug, key)
        self._store.note("point_started", key)
        self._listen(PointStarted(key, number, total))
        transport, pool = await self._transport(key, target, lane)
        left, spool = self._budget.seconds_left(), FileSpool(requests_path)
        metrics = ServerMetrics(target, target.metrics_url) if target.metrics_url else None
        watch = None if metrics is None else ServerWatch(metrics, time.monotonic_ns)
        measurement = Measurement(
            self._sweep,
            arm,
            target.shape,
            replace(planned, load=replace(planned.load, deadline_s=min(planned.load.deadline_s, left))),
            self._prompts,
            transport,
            RealClock(),
            limits=self._budget.used_up,
            on_ended=lambda sent: self._budget.spend(sent, prices),
            monitor=ClientMonitor(pool),
            watch=watch,
            synthetic=target.synthetic,
            earlier=lane.earlier,
            spool=spool,
        )
        self._running = measurement
        if self._stopped is not None:  # while workers were starting
            measurement.stop(self._stopped)
        gc.collect()
        gc.freeze()  # what lives now will live on: the collector need not look at it while the point runs
        ticker = asyncio.create_task(self._tell_progress(measurement.loop, key))
        watcher = self._servers.watch(key.arm, measurement.stop)
        try:
            measured = await measurement.run()
        finally:
            self._running = None
            ticker.cancel()
            watcher.cancel()
            gc.unfreeze()
            spool.close()
            await transport.close()
            if metrics is not None:
                await metrics.close()
        unsalted = lane.earlier.unsalted_points + (not self._sweep.workload.salt)
        lane.earlier = replace(
            lane.earlier, backends=lane.earlier.backends | measured.backends, unsalted_points=unsalted
        )
        if could_reuse and not lane.policy.reuse:
            text = "the server closes connections that it said it keeps, so streams use a fresh one each from now on"
            self._store.note("decision", key, text=text)
            self._listen(Note(f"{key.arm}: {text}"))
        point = await self._servers.judged(key.arm, measured.point | {"kind": key.kind})
        interval = point["chunk_interval_ms"]["mean"]
        lane.chunks_per_stream = 1e3 / interval if interval else lane.chunks_per_stream
        whole: bool = point["status"] == FINISHED
        prune(spool.path, self._sweep.load.chunks)
        observed = measured.observed
        telemetry = None if observed is None else telemetry_table(observed, round(point["duration_s"] * 1e9))
        self._store.write_point(arm.slug, key, measured.series, point, telemetry)
        reason = None if whole else point["verdicts"][0]["evidence"]
        event = "point_finished" if whole else "point_failed"
        self._store.note(event, key, valid=point["valid"], reason=reason, spent=point["spent"])
        self._listen(PointFinished(key, number, total, point))
        self._see_end(lane, key, {v["code"] for v in point["verdicts"]})
        return whole

    async def _transport(self, key: PointKey, target: Target, lane: _Lane) -> tuple[Transport, WorkerPool | None]:
        """What carries the point: this process, or as many workers as its load needs and the machine has room for."""
        asked = self._sweep.load.workers
        crew = crew_for(
            key.concurrency,
            lane.chunks_per_stream,
            None if asked == "auto" else int(asked),
            self._capacity,
            cores=cores_here(),
            local=is_local(self._arms[key.arm].url),
        )
        pool: WorkerPool | None = None
        transport: Transport
        try:
            if crew.workers > 1:
                pool, transport = self._pool, await self._pool.open(crew.workers, target.transport, lane.policy)
            else:
                transport = target.transport(lane.policy)
        except WorkerError as exc:
            await self._pool.close()
            self._listen(Note(f"{exc}; one process carries the point", "warn"))
            crew, pool, transport = replace(crew, workers=1), None, target.transport(lane.policy)
        if crew.workers != self._crew:
            self._crew = crew.workers
            text = f"{crew.workers} client processes for about {crew.chunks_per_s:,.0f} chunks/s: {self._capacity}"
            self._store.note("decision", key, text=text)
            self._listen(Note(text))
        return transport, pool

    def _see_end(self, lane: _Lane, key: PointKey, codes: set[str]) -> None:
        """Name the end of the arm's curve. Beyond a rate limit nothing more is sent; beyond the server's own ceiling
        requests only wait, which the levels that were asked for may well show."""
        if lane.end_named:
            return
        if "rate_limited" in codes:
            text = f"the server's rate limit admits fewer than {key.concurrency} at once"
            lane.ended = text
        elif "server_capped" in codes:
            text = f"the server answers fewer than {key.concurrency} at once, the others wait"
        else:
            return
        lane.end_named = True
        code = "rate_limited" if lane.ended else "server_capped"
        self._store.note("decision", key, reason="curve_end", code=code, text=text)
        self._listen(Note(f"{key.arm}: {text}: its curve ends here"))

    def _remember_ends(self) -> None:
        """What an earlier run of this folder saw: a curve that ended at a rate limit has ended."""
        for name, line in self._store.ends().items():
            if (lane := self._lanes.get(name)) is None:
                continue
            lane.end_named = True
            if line.get("code") == "rate_limited":
                lane.ended = str(line.get("text") or "the server's rate limit ended its curve")
                self._listen(Note(f"{name}: {lane.ended}, as an earlier run saw: no further level is sent to it"))

    async def _tell_progress(self, loop: ClosedLoop, key: PointKey) -> None:
        began = time.monotonic()
        marks = [(began, 0)]
        while True:
            await asyncio.sleep(_PROGRESS_S)
            now = time.monotonic()
            marks = [*marks, (now, loop.tokens)][-_PACE_OVER:]
            then, before = marks[0]
            pace = (loop.tokens - before) / (now - then) if loop.tokens else None
            self._listen(
                PointProgress(
                    key,
                    loop.phase if loop.window.t1_ns is None else "drain",
                    now - began,
                    loop.in_flight,
                    loop.counted_ended,
                    loop.plan.requests,
                    loop.failed,
                    pace,
                )
            )
