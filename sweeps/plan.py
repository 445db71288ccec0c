"""What a sweep will do, before it does it: points in order, and the time, tokens and money they take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from profiles.loading import ResolvedArm, ResolvedLoad, Sweep
from profiles.regions import FIXED_LOW, region_of, regions
from profiles.workloads import Prompt
from sweeps.events import ANCHOR, PointKey
from sweeps.load import LoadPlan
from sweeps.prompts import SALT_BYTES

ASSUMED_TPS = 50.0  # tokens/s of one user, and
ASSUMED_TTFT_S = 0.5  # seconds to the first token: what an estimate goes by when nothing has been measured
_BYTES_PER_TOKEN = 4.0
_DEADLINE_FACTOR, _LEAST_DEADLINE_S = 20, 1800.0


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """One point to be measured. Estimates: `seconds`, `requests` (warmup and filler included), `input_tokens`,
    `output_tokens`, `usd` (None without prices); `passes`: counted requests over the workload's measured prompts.
    `block`: which of the blocks that arms run in, from 1; None where they are interleaved."""

    key: PointKey
    load: LoadPlan
    seconds: float
    requests: int
    passes: float
    input_tokens: int
    output_tokens: int
    usd: float | None
    reason: str
    block: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedCheck:
    """An arm's part in the check for equal answers: each of `prompts` asked `repeats` times, one request at a time.
    Estimates as those of a point."""

    arm: str
    prompts: int
    repeats: int
    seconds: float
    requests: int
    input_tokens: int
    output_tokens: int
    usd: float | None


def plan_checks(sweep: Sweep, measured: Sequence[Prompt]) -> tuple[PlannedCheck, ...]:
    """The check in every arm, none where it is not wanted: the first arm answers twice, to show its own noise. Arms
    that are declared to accept drafts by a rule have no part in it; nor has any, where the first one does."""
    prompts = min(sweep.check_equal, len({p.text for p in measured}))
    if not prompts or is_synthetic(sweep.arms[0]):
        return ()
    size = sum(len(p.text.encode()) for p in measured) / len(measured) + len((sweep.workload.system or "").encode())
    each, length = math.ceil(size / _BYTES_PER_TOKEN), ASSUMED_TTFT_S + sweep.workload.max_tokens / ASSUMED_TPS
    checks = []
    for arm in sweep.arms:
        if is_synthetic(arm):
            continue
        repeats = 2 if arm is sweep.arms[0] else 1
        requests = repeats * prompts
        inputs, outputs, prices = requests * each, requests * sweep.workload.max_tokens, prices_of(arm)
        usd = None if prices is None else inputs * prices[0] + outputs * prices[1]
        checks.append(PlannedCheck(arm.name, prompts, repeats, requests * length, requests, inputs, outputs, usd))
    return tuple(checks)


def is_synthetic(arm: ResolvedArm) -> bool:
    """Whether the arm is declared to accept drafts by a rule, not by its model."""
    return arm.speculation is not None and arm.speculation.synthetic


def plan_sweep(sweep: Sweep, measured: Sequence[Prompt]) -> tuple[PlannedPoint, ...]:
    """All points in the order they run: levels ascending; at each, the arms next to each other, in an order that turns
    round from one trial and level to the next (A B, B A), so that neither arm always comes first.

    Servers that we start share the machine, so with them arms run in blocks, one trial of all levels each, in an order
    that turns round from trial to trial. An anchor, a point of the first block measured again at the end, shows what
    drifted meanwhile.
    """
    size = sum(len(p.text.encode()) for p in measured) / len(measured)
    size += len((sweep.workload.system or "").encode()) + (SALT_BYTES if sweep.workload.salt else 0)
    prompt_tokens = math.ceil(size / _BYTES_PER_TOKEN)
    blocks = runs_in_blocks(sweep)
    points = []
    for arm, level, trial, block in _in_blocks(sweep) if blocks else _interleaved(sweep):
        key = PointKey(arm.name, level, trial)
        points.append(_point(sweep, arm, key, prompt_tokens, len(measured), "a level that was asked for", block))
    if sweep.load.anchor or (sweep.load.anchor is None and blocks and len(sweep.arms) > 1):
        points.append(_anchor(sweep, points, prompt_tokens, len(measured)))
    return tuple(points)


def runs_in_blocks(sweep: Sweep) -> bool:
    """Whether arms take turns by blocks: any of them is a server that we start."""
    return any(arm.launch is not None for arm in sweep.arms)


_Turn = tuple[ResolvedArm, int, int, int | None]  # arm, level, trial, block


def _interleaved(sweep: Sweep) -> Iterator[_Turn]:
    for row, level in enumerate(sweep.load.levels):
        for trial in range(1, sweep.load.trials + 1):
            for arm in sweep.arms if (row + trial) % 2 else tuple(reversed(sweep.arms)):
                yield arm, level, trial, None


def _in_blocks(sweep: Sweep) -> Iterator[_Turn]:
    block = 0
    for trial in range(1, sweep.load.trials + 1):
        for arm in sweep.arms if trial % 2 else tuple(reversed(sweep.arms)):
            block += 1
            for level in sweep.load.levels:
                yield arm, level, trial, block


def _anchor(sweep: Sweep, points: Sequence[PlannedPoint], prompt_tokens: int, prompts: int) -> PlannedPoint:
    """A point of the first block again: of its levels the middle one; where arms are interleaved, the first point."""
    first, last = points[0], points[-1]
    levels = sweep.load.levels
    level = first.key.concurrency if first.block is None else levels[(len(levels) - 1) // 2]
    key = PointKey(first.key.arm, level, 1, ANCHOR)
    arm = next(arm for arm in sweep.arms if arm.name == key.arm)
    block = last.block
    if block is not None and last.key.arm != key.arm:
        block += 1
    return _point(sweep, arm, key, prompt_tokens, prompts, "measured again at the end, to see what drifted", block)


def _point(
    sweep: Sweep, arm: ResolvedArm, key: PointKey, prompt_tokens: int, prompts: int, reason: str, block: int | None
) -> PlannedPoint:
    load, limits, workload, concurrency = sweep.load, sweep.limits, sweep.workload, key.concurrency
    length = ASSUMED_TTFT_S + workload.max_tokens / ASSUMED_TPS
    by_time = math.ceil((load.seconds or 0.0) * concurrency / length)
    counted = max(by_time, load.requests or 0)
    warmup = 2 * concurrency if load.warmup == "auto" else int(load.warmup)
    filler = 0 if load.exact else concurrency
    requests = counted + warmup + filler
    window = max(load.seconds or 0.0, counted / concurrency * length)
    seconds = window + (warmup + filler) / concurrency * length
    inputs, outputs = requests * prompt_tokens, requests * workload.max_tokens
    prices = prices_of(arm)
    usd = None if prices is None else inputs * prices[0] + outputs * prices[1]
    deadline = limits.point_seconds or max(_LEAST_DEADLINE_S, _DEADLINE_FACTOR * (load.seconds or 0.0))
    return PlannedPoint(
        key,
        LoadPlan(concurrency, load.seconds, load.requests, load.exact, _warmup(load), deadline),
        seconds,
        requests,
        counted / prompts,
        inputs,
        outputs,
        usd,
        reason,
        block,
    )


def _warmup(load: ResolvedLoad) -> int | None:
    return None if load.warmup == "auto" else int(load.warmup)


def prices_of(arm: ResolvedArm) -> tuple[float, float] | None:
    """US dollars per input token and per output token."""
    if arm.prices is None:
        return None
    return arm.prices.input / arm.prices.per, arm.prices.output / arm.prices.per


def curve_regions(levels: Sequence[int]) -> dict[str, tuple[int, int] | None]:
    """The rules' regions for a curve over these levels; empty where the rules define none (a highest level <= 32)."""
    low, high = min(min(levels), FIXED_LOW), max(levels)
    return regions(low, high) if high > FIXED_LOW else {}


def totals_of(points: Sequence[PlannedPoint], checks: Sequence[PlannedCheck] = ()) -> dict[str, Any]:
    """Sums over the points and checks; usd is None when no arm has prices."""
    all_of_it: list[PlannedPoint | PlannedCheck] = [*points, *checks]
    priced = [p.usd for p in all_of_it if p.usd is not None]
    return {
        "seconds": sum(p.seconds for p in all_of_it),
        "requests": sum(p.requests for p in all_of_it),
        "tokens": sum(p.input_tokens + p.output_tokens for p in all_of_it),
        "usd": sum(priced) if priced else None,
    }


def plan_json(points: Sequence[PlannedPoint], checks: Sequence[PlannedCheck] = ()) -> dict[str, Any]:
    """The plan as programs read it."""
    bounds = curve_regions([p.key.concurrency for p in points])
    return {
        "points": [
            {
                "arm": p.key.arm,
                "concurrency": p.key.concurrency,
                "trial": p.key.trial,
                "kind": p.key.kind,
                "block": p.block,
                "region": region_of(p.key.concurrency, bounds),
                "seconds": p.seconds,
                "requests": p.requests,
                "passes": p.passes,
                "tokens": p.input_tokens + p.output_tokens,
                "usd": p.usd,
                "reason": p.reason,
            }
            for p in points
        ],
        "regions": {name: list(b) if b else None for name, b in bounds.items()},
        "checks": [
            {
                "arm": c.arm,
                "prompts": c.prompts,
                "repeats": c.repeats,
                "seconds": c.seconds,
                "requests": c.requests,
                "tokens": c.input_tokens + c.output_tokens,
                "usd": c.usd,
            }
            for c in checks
        ],
        "totals": totals_of(points, checks),
        "assumptions": {
            "tokens_per_s_per_user": ASSUMED_TPS,
            "ttft_s": ASSUMED_TTFT_S,
            "bytes_per_token": _BYTES_PER_TOKEN,
        },
    }
