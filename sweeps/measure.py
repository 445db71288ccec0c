"""One point, measured: load, requests, columns, metrics and verdicts, in real or in virtual time."""

from __future__ import annotations

import random
import re
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from endpoints.dialects import RequestShape
from endpoints.transport import Transport
from profiles.loading import ResolvedArm, Sweep
from profiles.workloads import Prompt
from sweeps.clock import Clock
from sweeps.load import ClosedLoop, Sent, StopCheck
from sweeps.plan import PlannedPoint, prices_of
from sweeps.point import PointFacts, analysed
from sweeps.prompts import PromptFeed
from sweeps.requests import Requests
from sweeps.spool import MemorySpool, Spool
from sweeps.verdicts import Earlier, backends_of
from sweeps.watch import Observed


class Monitor(Protocol):
    """Watches the client's own health while a point runs."""

    def start(self) -> None: ...

    async def stop(self, since_ns: int | None = None, until_ns: int | None = None) -> dict[str, Any]: ...


class Watch(Protocol):
    """Watches the server: at rest before and after, and in between."""

    async def before(self) -> None: ...

    def begin(self, origin_ns: int) -> None: ...

    async def after(self) -> Observed: ...

    def hurry(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Prompts:
    """A workload's prompts: those that are measured, and those kept apart for warmup."""

    measured: Sequence[Prompt]
    warmup: Sequence[Prompt]

    @property
    def all(self) -> list[Prompt]:
        return [*self.measured, *self.warmup]


@dataclass(frozen=True, slots=True)
class Measured:
    """A point's `series.parquet` and `point.json`, not yet written; its requests, what replied to them, and what was
    seen of the server."""

    requests: Requests
    series: pa.Table
    point: dict[str, Any]
    backends: frozenset[tuple[str, str]]
    observed: Observed | None = None


class Measurement:
    """One point about to be measured. `loop` may be watched and stopped while `run` is under way."""

    def __init__(
        self,
        sweep: Sweep,
        arm: ResolvedArm,
        shape: RequestShape,
        planned: PlannedPoint,
        prompts: Prompts,
        transport: Transport,
        clock: Clock,
        *,
        limits: StopCheck = lambda: None,
        on_ended: Callable[[Sent], None] = lambda _sent: None,
        monitor: Monitor | None = None,
        watch: Watch | None = None,
        synthetic: str | None = None,
        earlier: Earlier | None = None,
        spool: Spool | None = None,
    ) -> None:
        self._sweep, self._arm, self._planned = sweep, arm, planned
        self._transport, self._clock, self._monitor, self._earlier = transport, clock, monitor, earlier or Earlier()
        self._watch, self._synthetic, self._prompts = watch, synthetic, prompts
        self._spool: Spool = spool or MemorySpool()
        key = planned.key
        feed = PromptFeed(
            prompts.measured,
            prompts.warmup,
            shape,
            system=sweep.workload.system,
            salted=sweep.workload.salt,
            seed=sweep.seed,
            arm=key.arm,
            load=key.load,
            trial=key.trial,
        )
        self.loop = ClosedLoop(planned.load, feed, transport, clock, limits, on_ended, self._spool.add)

    def stop(self, reason: str) -> None:
        """End the point now; what it has is still judged, as interrupted."""
        self.loop.stop(reason)
        if self._watch is not None:
            self._watch.hurry()

    async def run(self) -> Measured:
        """Load the endpoint, then judge what came back. Raises OSError when the spool cannot write."""
        if self._watch is not None:
            await self._watch.before()
        unix_ns, origin = time.time_ns(), self._clock.now_ns()
        self._spool.begin(origin)
        if self._watch is not None:
            self._watch.begin(origin)
        if self._monitor is not None:
            self._monitor.start()
        health: dict[str, Any] = {}
        try:
            result = await self.loop.run()
        finally:
            if self._monitor is not None:
                health = await self._monitor.stop(self.loop.window.t0_ns, self.loop.window.t1_ns)
            if self._watch is not None:
                await self._watch.stop()
        if self._watch is not None and result.cut_short is not None:
            self._watch.hurry()
        observed = None if self._watch is None else await self._watch.after()
        sweep, arm, key, window = self._sweep, self._arm, self._planned.key, result.window
        for name in ("t0_ns", "t1_ns"):
            if (at := getattr(window, name)) is not None:
                setattr(window, name, at - origin)
        facts = PointFacts(
            arm=key.arm,
            plan=self._planned.load,
            trial=key.trial,
            window=window,
            origin_unix_ns=unix_ns,
            origin_monotonic_ns=origin,
            duration_s=(result.ended_ns - origin) / 1e9,
            notes=tuple(result.notes),
            cut_short=result.cut_short,
            client={"loop_lag_ms_p99": None, "cpu_fraction": None, "workers": 1, **health}
            | {"transport": self._transport.name},
            error_rate=sweep.limits.error_rate,
            streamed=arm.stream,
            common_bytes=len((sweep.workload.system or "").encode()),
            draft_tokens=(arm.speculation.draft_tokens or 8) if arm.speculation else None,
            prices=prices_of(arm),
            earlier=self._earlier,
            seed=sweep.seed,
            observed=observed,
            speculates=says_of_itself(sweep, arm),
            raw_prompts=observed is not None and (arm.api == "completions" or random_looking(self._prompts)),
            synthetic=self._synthetic,
        )
        requests = self._spool.finish()
        point, series = analysed(requests, facts)
        return Measured(requests, series, point, backends_of(requests), observed)


def says_of_itself(sweep: Sweep, arm: ResolvedArm) -> bool | None:
    """Whether the arm is meant to speculate: by its declaration or its name, `on` and `off`; None where nothing says.

    Beside an arm that is meant to, one that declares nothing is meant not to.
    """
    if arm.speculation is not None or arm.name == "on":
        return True
    others = any(other.speculation is not None or other.name == "on" for other in sweep.arms)
    return False if others or arm.name == "off" else None


def random_looking(prompts: Prompts) -> bool:
    """Whether the prompts' words stand in no order: zlib saves as much on them when they are shuffled.

    Text in its order comes out at least 2 % smaller, from 4 kB on; words drawn at random within 0.2 %. Too few words
    (or a script that does not part them) tell nothing.
    """
    words = re.findall(r"\S+\s*", "\n".join(p.text for p in prompts.all)[:200_000])
    text = "".join(words).encode()
    if len(text) < 4_000 or len(words) < 500:
        return False
    random.Random(0).shuffle(words)
    return len(zlib.compress("".join(words).encode(), 9)) < 1.01 * len(zlib.compress(text, 9))
