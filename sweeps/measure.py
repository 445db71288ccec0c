"""One point, measured: load, requests, columns, metrics and verdicts, in real or in virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from endpoints.dialects import RequestShape
from endpoints.transport import Transport
from profiles.loading import ResolvedArm, Sweep
from profiles.workloads import Prompt
from sweeps.clock import Clock
from sweeps.columns import Requests, requests_of, table_of
from sweeps.load import ClosedLoop, Sent, StopCheck
from sweeps.plan import PlannedPoint, prices_of
from sweeps.point import PointFacts, point_json
from sweeps.prompts import PromptFeed
from sweeps.series import series_of
from sweeps.verdicts import Earlier, backends_of


class Monitor(Protocol):
    """Watches the client's own health while a point runs."""

    def start(self) -> None: ...

    def stop(self) -> dict[str, float | None]: ...


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
    """A point's files, not yet written: `requests.parquet`, `series.parquet`, `point.json`; and what replied."""

    table: pa.Table
    series: pa.Table
    point: dict[str, Any]
    backends: frozenset[tuple[str, str]]


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
        earlier: Earlier | None = None,
    ) -> None:
        self._sweep, self._arm, self._planned = sweep, arm, planned
        self._transport, self._clock, self._monitor, self._earlier = transport, clock, monitor, earlier or Earlier()
        key = planned.key
        feed = PromptFeed(
            prompts.measured,
            prompts.warmup,
            shape,
            system=sweep.workload.system,
            salted=sweep.workload.salt,
            seed=sweep.seed,
            arm=key.arm,
            load=f"c{key.concurrency}",
            trial=key.trial,
        )
        self.loop = ClosedLoop(planned.load, feed, transport, clock, limits, on_ended)

    async def run(self) -> Measured:
        """Load the endpoint, then judge what came back."""
        unix_ns, origin = time.time_ns(), self._clock.now_ns()
        if self._monitor is not None:
            self._monitor.start()
        try:
            result = await self.loop.run()
        finally:
            health = self._monitor.stop() if self._monitor is not None else {}
        sweep, arm, key, window = self._sweep, self._arm, self._planned.key, result.window
        for name in ("t0_ns", "t1_ns"):
            if (at := getattr(window, name)) is not None:
                setattr(window, name, at - origin)
        table = table_of(result.sent, origin)
        requests = requests_of(table)
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
            client={"loop_lag_ms_p99": None, "cpu_fraction": None, **health}
            | {"workers": 1, "transport": self._transport.name},
            error_rate=sweep.limits.error_rate,
            max_tokens=sweep.workload.max_tokens,
            streamed=arm.stream,
            common_bytes=len((sweep.workload.system or "").encode()),
            draft_tokens=(arm.speculation.draft_tokens or 8) if arm.speculation else None,
            prices=prices_of(arm),
            earlier=self._earlier,
            seed=sweep.seed,
        )
        point = point_json(requests, facts)
        return Measured(table, _series(requests, facts), point, backends_of(requests))


def _series(requests: Requests, facts: PointFacts) -> pa.Table:
    return series_of(requests, facts.span, requests.counted)
