"""A sweep in virtual time: the same loop, records, metrics and verdicts over the simulator's engine, not waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from endpoints.dialects import RequestShape
from endpoints.simulator.engine import EngineConfig
from endpoints.transport import Transport
from endpoints.virtual import VirtualTransport
from profiles.loading import Sweep
from profiles.workloads import load_prompts, split
from sweeps.clock import VirtualClock, VirtualLoop, run_virtual
from sweeps.measure import Measured, Measurement, Prompts
from sweeps.plan import PlannedPoint, plan_sweep
from sweeps.spool import Spool


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
    measurement = Measurement(sweep, arm, shape, planned, prompts, transport, VirtualClock(loop), spool=spool)
    return run_virtual(measurement.run(), loop)
