"""Reading a stored point (the dict of point.json): is it valid, what is it called, one number out of it; trials
combined."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sweeps.frontier import is_valid

Point = Mapping[str, Any]

# Metrics that are compared: name, path inside point.json, whether higher is better.
METRICS: dict[str, tuple[tuple[str, ...], bool]] = {
    "system_tps": (("system_tps",), True),
    "tps_per_user": (("tps_per_user",), True),
    "ttft_ms_p50": (("ttft_ms", "p50"), False),
    "ttft_ms_p90": (("ttft_ms", "p90"), False),
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """One metric of one (arm, load) over its trials; the interval is null where it is not known, with the reason."""

    value: float
    low: float | None
    high: float | None
    level: float | None
    scope: str | None
    reason: str | None
    by_trial: Mapping[int, float] = field(default_factory=dict)

    @property
    def trials(self) -> int:
        return max(1, len(self.by_trial))


@dataclass(frozen=True, slots=True)
class Combined:
    """All valid trials of one (arm, concurrency)."""

    arm: str
    concurrency: int
    trials: int
    estimates: dict[str, Estimate]


def get(point: Point, *path: str) -> Any:
    """The value at a path of keys, or None when any step is missing or null."""
    here: Any = point
    for key in path:
        if not isinstance(here, Mapping):
            return None
        here = here.get(key)
    return here


def num(point: Point, *path: str) -> float | None:
    """The finite number at a path of keys, else None."""
    value = get(point, *path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def verdicts(point: Point) -> list[dict[str, Any]]:
    return [v for v in get(point, "verdicts") or [] if isinstance(v, dict)]


def is_measured(point: Point) -> bool:
    """Part of a curve (not an anchor, an accuracy pass or a point of an open loop)."""
    return point.get("kind", "measure") == "measure" and isinstance(point.get("concurrency"), int)


def is_anchor(point: Point) -> bool:
    """A point measured once more to see what drifted."""
    return point.get("kind") == "anchor" and isinstance(point.get("concurrency"), int)


def load_label(point: Point) -> str:
    """'8' in a closed loop, '8 (anchor)' for an anchor, '12.5/s' at a fixed rate, else the pattern's name."""
    rate = num(point, "load", "rate")
    if isinstance(point.get("concurrency"), int):
        return f"{point['concurrency']} (anchor)" if is_anchor(point) else str(point["concurrency"])
    return f"{rate:g}/s" if rate is not None else str(get(point, "load", "pattern") or "?")


def load_order(point: Point) -> float:
    return num(point, "concurrency") or num(point, "load", "rate") or math.inf


def usd_per_million_output(point: Point) -> float | None:
    """All that the point cost (prompts, warmup and filler included) per million output tokens it received."""
    stored = num(point, "usd_per_million_output_tokens")
    if stored is not None:
        return stored
    cost, tokens = num(point, "spent", "usd"), num(point, "spent", "output_tokens")
    return cost / tokens * 1e6 if cost is not None and tokens else None


def interval(point: Point, metric: str) -> tuple[float, float] | None:
    """The stored interval of a metric of METRICS, when both ends are known."""
    low, high = num(point, "intervals", metric, "low"), num(point, "intervals", metric, "high")
    return None if low is None or high is None else (low, high)


def combine(points: Iterable[Point]) -> dict[str, dict[int, Combined]]:
    """Valid measured points by arm and concurrency, their trials combined by the median."""
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        if is_measured(point) and is_valid(point):
            groups.setdefault((point["arm"], point["concurrency"]), []).append(point)
    combined: dict[str, dict[int, Combined]] = {}
    for (arm, concurrency), trials in sorted(groups.items()):
        estimates = {m: e for m in METRICS if (e := estimate(trials, m)) is not None}
        combined.setdefault(arm, {})[concurrency] = Combined(arm, concurrency, len(trials), estimates)
    return combined


def estimate(trials: Sequence[Point], metric: str) -> Estimate | None:
    """One metric of METRICS over the trials of one (arm, load); None where none of them has it."""
    path, _ = METRICS[metric]
    by_trial = {t.get("trial") or 1: v for t in trials if (v := num(t, *path)) is not None and v > 0}
    values = list(by_trial.values())
    if not values:
        return None
    if len(values) >= 6:
        # The range of k independent trials holds their common median with probability 1 - 2^(1-k): 0.97 from six on.
        level = 1 - 2.0 ** (1 - len(values))
        return Estimate(median(values), min(values), max(values), level, "between_trials", None, by_trial)
    known = [i for t in trials if (i := interval(t, metric)) is not None]
    if len(known) < len(trials):
        reasons = [get(t, "intervals", metric, "reason") for t in trials]
        reason = next((str(r) for r in reasons if r), "no interval was stored")
        return Estimate(median(values), None, None, None, None, reason, by_trial)
    low = min(i[0] for i in known)
    high = max(i[1] for i in known)
    level = min(num(t, "intervals", metric, "level") or 0.95 for t in trials)
    # A few trials: the hull of what each says is wider than any of them, and holds the spread between them as well.
    scope = "within_run" if len(trials) == 1 else "hull_of_trials"
    return Estimate(median(values), low, high, level, scope, None, by_trial)
