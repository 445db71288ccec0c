"""Curve against curve: ratios per concurrency, crossovers, who is best where, and the comparison at equal speed per
user."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from reports.crossover import LevelRatio, crossover
from reports.formats import clean, percent_change
from reports.points import METRICS, Combined, Point, combine
from reports.speedup import ratio
from sweeps.frontier import step_line

RATIO_METHOD = (
    "log scale: three shared trials or more paired trial by trial (Student's t), else the half widths of both intervals "
    "added in squares"
)
SPEED_METHOD = (
    "log-log interpolation between neighbouring frontier points, nothing outside the measured range; intervals are the "
    "envelope of both curves' interval ends"
)


def compare(points: Sequence[Point], arms: Sequence[str], frontier: Mapping[str, Any]) -> dict[str, Any] | None:
    """The comparison block of summary.json; None with fewer than two arms. The first arm is the base of every pair."""
    if len(arms) < 2:
        return None
    combined = combine(points)
    base = arms[0]
    return {
        "base": base,
        "ratio_method": RATIO_METHOD,
        "equal_speed_method": SPEED_METHOD,
        "pairs": [_pair(base, arm, combined, frontier) for arm in arms[1:]],
        "best": {
            "by_concurrency": {m: best_by_concurrency(combined, arms, m) for m in ("system_tps", "tps_per_user")},
            "by_speed": best_by_speed(frontier),
        },
    }


def _pair(base: str, arm: str, combined: dict[str, dict[int, Combined]], frontier: Mapping[str, Any]) -> dict[str, Any]:
    ours, theirs = combined.get(arm, {}), combined.get(base, {})
    levels = [_level(theirs[c], ours[c]) for c in sorted(ours.keys() & theirs.keys())]
    alone = sorted(ours.keys() ^ theirs.keys())
    equal = equal_speed(base, arm, combined, frontier)
    return {
        "base": base,
        "arm": arm,
        "levels": levels,
        "left_out": [
            {"concurrency": c, "reason": f"{base if c in ours else arm} has no valid point there"} for c in alone
        ],
        "crossover": {
            metric: crossover(
                base,
                arm,
                metric,
                [_level_ratio(level["concurrency"], r) for level in levels if (r := level["ratios"][metric])],
            )
            for metric in ("system_tps", "tps_per_user")
        },
        "equal_speed": equal,
    }


def _level_ratio(concurrency: int, found: Mapping[str, Any]) -> LevelRatio:
    span = found["interval"] or {}
    return LevelRatio(concurrency, found["ratio"], found["apart"], span.get("low"), span.get("high"))


def _level(base: Combined, arm: Combined) -> dict[str, Any]:
    both = base.estimates.keys() & arm.estimates.keys()
    return {
        "concurrency": base.concurrency,
        "trials": {"base": base.trials, "arm": arm.trials},
        "ratios": {m: ratio(base.estimates[m], arm.estimates[m]) if m in both else None for m in METRICS},
    }


def best_by_concurrency(
    combined: dict[str, dict[int, Combined]], arms: Sequence[str], metric: str
) -> list[dict[str, Any]]:
    """Neighbouring levels with the same best arm, as bands. `best` is None where the leaders cannot be told apart."""
    bands: list[dict[str, Any]] = []
    for level in sorted({c for points in combined.values() for c in points}):
        here = {
            arm: combined[arm][level].estimates[metric]
            for arm in arms
            if level in combined.get(arm, {}) and metric in combined[arm][level].estimates
        }
        if len(here) < 2:
            continue
        leader = max(here, key=lambda arm: here[arm].value)
        tied = [arm for arm, e in here.items() if arm != leader and ratio(e, here[leader])["apart"] is False]
        best, among = (None, sorted([leader, *tied])) if tied else (leader, [leader])
        if bands and (bands[-1]["best"], bands[-1]["among"]) == (best, among):
            bands[-1]["to"] = level
            bands[-1]["levels"].append(level)
        else:
            bands.append({"from": level, "to": level, "levels": [level], "best": best, "among": among})
    return bands


def best_by_speed(frontier: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Which arm gives the highest total throughput at a demanded speed per user: the common step line, by its owner.

    A band holds for demands above `from` (None: no lower end) and up to `to` tokens/s/user.
    """
    bands: list[dict[str, Any]] = []
    previous: float | None = None
    for row in staircase(frontier.get("all") or []):
        if bands and bands[-1]["best"] == row["arm"]:
            bands[-1]["to"] = row["tps_per_user"]
            bands[-1]["concurrency"].append(row["concurrency"])
        else:
            band = {
                "from": previous,
                "to": row["tps_per_user"],
                "best": row["arm"],
                "concurrency": [row["concurrency"]],
            }
            bands.append(band)
        previous = row["tps_per_user"]
    return bands


def staircase(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The frontier rows at the corners of the step line, by rising speed per user (so by falling throughput)."""
    by_place = {(r["tps_per_user"], r["system_tps"]): r for r in sorted(rows, key=lambda r: -r["concurrency"])}
    return [by_place[corner] for corner in reversed(step_line(rows))]


def equal_speed(
    base: str, arm: str, combined: dict[str, dict[int, Combined]], frontier: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Total throughput of both arms at the same speeds per user, at a few round speeds inside the range both
    measured."""
    curves = {name: _curve(frontier, name) for name in (base, arm)}
    if not all(curves.values()):
        return []
    low = max(curve[0][0] for curve in curves.values())
    high = min(curve[-1][0] for curve in curves.values())
    rows = []
    for speed in round_values(low, high):
        b, a = interpolate(curves[base], speed), interpolate(curves[arm], speed)
        if b is None or a is None:
            continue
        ends = {name: _envelope(combined, frontier, name, speed) for name in (base, arm)}
        (b_low, b_high), (a_low, a_high) = ends[base], ends[arm]
        span: dict[str, Any] | None = None
        apart: bool | None = None
        reason: str | None = "not every point near this speed has an interval that reaches it"
        if b_low and b_high and a_low and a_high:
            least, most = a_low / b_high, a_high / b_low
            span = {"low": least, "high": most, "method": "envelope", "scope": "interpolated"}
            apart, reason = not least <= 1 <= most, None
        name, than = clean(arm, 60), clean(base, 60)
        effect = f"gives {percent_change(a / b)} system throughput compared with {than}"
        if apart is False:
            effect += " (a difference that cannot be told apart from none)"
        rows.append(
            {
                "tps_per_user": speed,
                "base_system_tps": b,
                "arm_system_tps": a,
                "ratio": a / b,
                "interval": span,
                "apart": apart,
                "reason": reason,
                "interpolated": True,
                "text": f"at {speed:g} tokens/s/user, {name} {effect}",
            }
        )
    return rows


def interpolate(curve: Sequence[tuple[float, float]], x: float) -> float | None:
    """log-log interpolation in a curve of (x, y) with rising x, all positive; None outside it."""
    for (xa, ya), (xb, yb) in pairwise(curve):
        if xa <= x <= xb:
            if xa == xb:
                return max(ya, yb)
            share = math.log(x / xa) / math.log(xb / xa)
            return math.exp(math.log(ya) + share * math.log(yb / ya))
    return curve[0][1] if len(curve) == 1 and curve[0][0] == x else None


def round_values(low: float, high: float, most: int = 6) -> list[float]:
    """Up to `most` round numbers within [low, high]: 1-2-5 over a wide range, else multiples of a round step."""
    if not 0 < low <= high:
        return []
    if high / low >= 20:
        decades = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
        found = [v for d in decades for s in (1, 2, 5) if low <= (v := round(s * 10.0**d, 12)) <= high]
        if len(found) <= most:
            return found
        return [found[round(i * (len(found) - 1) / (most - 1))] for i in range(most)]
    exponent = math.floor(math.log10(high)) - 2
    for step in (s * 10.0**d for d in range(exponent, exponent + 4) for s in (1, 2, 5)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [round(k * step, 12) for k in range(max(first, 1), last + 1)]
    return []


def _curve(frontier: Mapping[str, Any], arm: str) -> list[tuple[float, float]]:
    rows = staircase((frontier.get("arms") or {}).get(arm) or [])
    return [(r["tps_per_user"], r["system_tps"]) for r in rows if r["tps_per_user"] > 0 and r["system_tps"] > 0]


def _envelope(
    combined: dict[str, dict[int, Combined]], frontier: Mapping[str, Any], arm: str, speed: float
) -> tuple[float | None, float | None]:
    """The curve through the low ends of both intervals, and the one through the high ends, at one speed."""
    lows, highs = [], []
    for p in staircase((frontier.get("arms") or {}).get(arm) or []):
        point = combined.get(arm, {}).get(p["concurrency"])
        x, y = (point.estimates.get(m) if point else None for m in ("tps_per_user", "system_tps"))
        if x is None or y is None or x.low is None or x.high is None or y.low is None or y.high is None:
            return None, None
        if x.low <= 0 or y.low <= 0:
            return None, None
        lows.append((x.low, y.low))
        highs.append((x.high, y.high))
    return interpolate(sorted(lows), speed), interpolate(sorted(highs), speed)
