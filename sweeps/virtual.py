"""A sweep in virtual time: the same loop, records, metrics and verdicts over the simulator's engine, not waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from endpoints.counters import PER_POSITION, Labels, Reading
from endpoints.dialects import RequestShape
from endpoints.simulator.engine import Engine, EngineConfig
from endpoints.transport import Transport
from endpoints.virtual import VirtualTransport
from profiles.loading import Sweep
from profiles.workloads import load_prompts, split
from sweeps.clock import VirtualClock, VirtualLoop, run_virtual
from sweeps.measure import Measured, Measurement, Prompts
from sweeps.plan import PlannedPoint, plan_sweep
from sweeps.spool import Spool
from sweeps.watch import Observed


def virtual_sweep(sweep: Sweep, engines: Mapping[str, EngineConfig]) -> list[dict[str, Any]]:
    """`point.json` of every point of a sweep, each arm carried by its own engine, fresh at every point."""
    measured, warmup = split(load_prompts(sweep.workload))
    prompts = Prompts(measured, warmup)
    return [
        virtual_point(sweep, planned, prompts, VirtualTransport(engines[planned.key.arm])).point
        for planned in plan_sweep(sweep, measured)
    ]


def virtual_point(
    sweep: Sweep, planned: PlannedPoint, prompts: Prompts, transport: Transport, spool: Spool | None = None
) -> Measured:
    """One point in virtual time over any transport that runs on the loop's own time."""
    loop = VirtualLoop()
    arm = next(arm for arm in sweep.arms if arm.name == planned.key.arm)
    shape = RequestShape(arm.api, arm.model or "virtual", sweep.workload.max_tokens, {}, {})
    watch = EngineWatch(transport.engine) if isinstance(transport, VirtualTransport) else None
    clock = VirtualClock(loop)
    measurement = Measurement(sweep, arm, shape, planned, prompts, transport, clock, spool=spool, watch=watch)
    return run_virtual(measurement.run(), loop)


class EngineWatch:
    """The engine's own counters before and after a point, as a server's page of metrics would have them."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._before = engine, Reading()

    async def before(self) -> None:
        self._before = self._read()

    def begin(self, origin_ns: int) -> None:
        pass

    def hurry(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def after(self) -> Observed:
        return Observed(self._before, self._read(), unread="")

    def _read(self) -> Reading:
        counts = self._engine.snapshot().counters
        values = {"generated_tokens": counts.generated_tokens}
        if self._engine.config.speculation is not None:
            values |= {"drafts": counts.drafts, "draft_tokens": counts.draft_tokens, "accepted_tokens": counts.accepted}
        accepted = enumerate(counts.accepted_per_position)
        positions: dict[Labels, float] = {(("position", str(j)),): float(n) for j, n in accepted}
        known: dict[str, dict[Labels, float]] = {name: {(): float(value)} for name, value in values.items()}
        return Reading(known | ({PER_POSITION: positions} if positions else {}), {}, {}, "virtual")
