"""Curve against curve: ratios per concurrency and per category of prompt, crossovers, who is best where, and the
comparison at equal speed per user."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import mean
from typing import Any

import numpy as np

from reports.beside import acceptance, length_bias, notes, numbers, shared_trials
from reports.crossover import LEVEL, Floats, LevelRatio, Z, crossover
from reports.formats import clean
from reports.pairs import Samples, pair, paired
from reports.points import METRICS, Combined, Point, combine
from reports.rows import ratio_cell
from reports.speedup import ratio
from sweeps.frontier import step_line

RATIO_METHOD = (
    "log scale: three shared trials or more paired trial by trial (Student's t), else the half widths of both "
    "intervals added in squares"
)
PAIRED_METHOD = (
    "geometric mean of arm / base over requests with the same prompt in the same pass; Student's t over blocks of "
    "consecutive pairs, each at least as many pairs as users, and from three trials on over the trials' means"
)
SPEED_METHOD = (
    "log-log interpolation between neighbouring frontier points, nothing outside the measured range; each point drawn "
    "anew from its intervals, along both axes at once"
)
RESAMPLES = 2000


def compare(
    points: Sequence[Point],
    arms: Sequence[str],
    frontier: Mapping[str, Any],
    samples: Samples = lambda _point: None,
) -> dict[str, Any] | None:
    """The comparison block of summary.json; None with fewer than two arms. The first arm is the base of every pair.

    `samples` gives the stored requests of a point, for what is paired by prompt; None where they are not known.
    """
    if len(arms) < 2:
        return None
    combined = combine(points)
    base = arms[0]
    pairs = [_pair(base, arm, combined, frontier) for arm in arms[1:]]
    for found in pairs:
        trials = shared_trials(points, base, found["arm"])
        for level in found["levels"]:
            level |= _beside(trials[level["concurrency"]], samples)
        found["notes"] = notes(base, found["arm"], found["levels"])
    return {
        "base": base,
        "ratio_method": RATIO_METHOD,
        "equal_speed_method": SPEED_METHOD,
        "paired_method": PAIRED_METHOD,
        "pairs": pairs,
        "acceptance": acceptance(points, arms),
        "best": {
            "by_concurrency": {m: best_by_concurrency(combined, arms, m) for m in ("system_tps", "tps_per_user")},
            "by_speed": best_by_speed(frontier, combined),
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


def _beside(trials: Sequence[tuple[Point, Point]], samples: Samples) -> dict[str, Any]:
    """What stands beside the ratios of a level: latencies paired by prompt, prompts a second, and what may bias it."""
    pairs = []
    for base, arm in trials:
        ours, theirs = samples(base), samples(arm)
        if ours is not None and theirs is not None:
            pairs.append(pair(ours, theirs, base["concurrency"]))
    rates = [mean(r) if (r := numbers(side, "request_rate")) else None for side in zip(*trials, strict=True)]
    return {
        "paired": paired(pairs) if pairs else None,
        "request_rate": dict(zip(("base", "arm"), rates or (None, None), strict=True)),
        "bias": length_bias(trials),
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


def best_by_speed(
    frontier: Mapping[str, Any], combined: Mapping[str, Mapping[int, Combined]] | None = None
) -> list[dict[str, Any]]:
    """Which arm gives the highest total throughput at a demanded speed per user: the common step line, by its owner.

    A band holds for demands above `from` (None: no lower end) and up to `to` tokens/s/user. `best` is None where the
    owner cannot be told apart from a point of another arm that may be as fast; `among` names them all.
    """
    bands: list[dict[str, Any]] = []
    previous: float | None = None
    for row in staircase(frontier.get("all") or []):
        tied = _tied(row, frontier, combined or {})
        best, among = (None, sorted([row["arm"], *tied])) if tied else (row["arm"], [row["arm"]])
        if bands and (bands[-1]["best"], bands[-1]["among"]) == (best, among):
            bands[-1]["to"] = row["tps_per_user"]
            bands[-1]["concurrency"].append(row["concurrency"])
        else:
            band = {
                "from": previous,
                "to": row["tps_per_user"],
                "best": best,
                "among": among,
                "concurrency": [row["concurrency"]],
            }
            bands.append(band)
        previous = row["tps_per_user"]
    return bands


def _tied(
    row: Mapping[str, Any], frontier: Mapping[str, Any], combined: Mapping[str, Mapping[int, Combined]]
) -> list[str]:
    """Other arms with a point that may be as fast as this one, and whose throughput is not known to be lower."""
    found = []
    for arm, rows in (frontier.get("arms") or {}).items():
        fast = [r for r in rows if arm != row["arm"] and r["tps_per_user_high"] >= row["tps_per_user"]]
        ours, theirs = (
            [combined[a][c].estimates.get("system_tps") for a, c in places if c in combined.get(a, {})]
            for places in ([(row["arm"], row["concurrency"])], [(arm, r["concurrency"]) for r in fast])
        )
        if any(o and t and (t.value >= o.value or ratio(t, o)["apart"] is False) for o in ours for t in theirs):
            found.append(arm)
    return found


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
    speeds = round_values(low, high)
    drawn = {name: _resampled(combined, frontier, name, speeds, seed) for seed, name in enumerate((base, arm))}
    for speed in speeds:
        b, a = interpolate(curves[base], speed), interpolate(curves[arm], speed)
        if b is None or a is None:
            continue
        draws = drawn[arm][:, speeds.index(speed)] - drawn[base][:, speeds.index(speed)]
        span: dict[str, Any] | None = None
        apart: bool | None = None
        reason: str | None = "not every point near this speed has an interval that reaches it"
        if np.isfinite(draws).mean() > 0.95:
            least, most = np.exp(np.nanquantile(draws, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))).tolist()
            span = {"low": least, "high": most, "level": LEVEL, "method": "resampled_points", "scope": "interpolated"}
            apart, reason = not least <= 1 <= most, None
        name, than = clean(arm, 60), clean(base, 60)
        change = ratio_cell({"ratio": a / b, "interval": span, "apart": None})
        effect = f"gives {change} system throughput compared with {than}"
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


def _resampled(
    combined: dict[str, dict[int, Combined]], frontier: Mapping[str, Any], arm: str, speeds: Sequence[float], seed: int
) -> Floats:
    """Log throughput at these speeds, (resamples, speeds), over resamples of an arm's curve; NaN where one does not
    reach so far, and everywhere at a speed beside which a point has no interval.

    A point is moved along both axes at once, for what makes steps slow lowers both: that moves the curve most.
    """
    rows = []
    for p in staircase((frontier.get("arms") or {}).get(arm) or []):
        estimates = combined[arm][p["concurrency"]].estimates
        for e in (estimates["tps_per_user"], estimates["system_tps"]):
            known = e.low is not None and e.high is not None and e.low > 0
            rows.append((e.value, e.low, e.high) if known else (e.value, math.nan, math.nan))
    value, low, high = np.log(np.array(rows, float)).reshape(-1, 2, 3).transpose(2, 1, 0)
    z = np.random.default_rng(seed).standard_normal((RESAMPLES, 1, value.shape[1]))
    moved = z * np.where(z > 0, high - value, value - low) / Z
    x, y = (value + np.nan_to_num(moved)).transpose(1, 0, 2)
    wanted = np.log(speeds)
    found = np.empty((RESAMPLES, len(speeds)))
    for i, order in enumerate(np.argsort(x, axis=1)):
        found[i] = np.interp(wanted, x[i, order], y[i, order], left=np.nan, right=np.nan)
    right = np.clip(np.searchsorted(value[0], wanted), 1, max(1, value.shape[1] - 1))
    unknown = np.isnan(low).any(axis=0) | np.isnan(high).any(axis=0)
    found[:, unknown[right - 1] | unknown[np.minimum(right, len(unknown) - 1)]] = np.nan
    return found
