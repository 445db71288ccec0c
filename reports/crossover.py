"""Where one curve overtakes another: the root of log(ratio) over log(concurrency), and how surely it is known.

Between two levels the ratio is not known. The root is that of the straight line; its interval also holds the root of a
curve through the levels beside, so that the bend between powers of two is not taken for precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from reports.formats import clean, listing, number, plural, users

QUANTITY = {"system_tps": "total throughput", "tps_per_user": "speed per user"}
LEVEL = 0.95
METHOD = "resampled_levels"
_RESAMPLES = 2000
_STEPS = 32  # parts a segment between two levels is cut into where the curve's root is looked for
Z = 1.959964  # of the normal distribution, two-sided 95 %

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LevelRatio:
    """The arm's value over the base's at one concurrency, and its 95 % interval. `apart` is None where no interval is
    known."""

    concurrency: int
    ratio: float
    apart: bool | None
    low: float | None = None
    high: float | None = None

    @property
    def sign(self) -> int:
        """+1 the arm is ahead, -1 the base is, 0 they cannot be told apart."""
        if self.apart is False or self.ratio == 1:
            return 0
        return 1 if self.ratio > 1 else -1

    @property
    def is_known(self) -> bool:
        return self.low is not None and self.high is not None and self.low > 0


def crossover(base: str, arm: str, metric: str, levels: Sequence[LevelRatio]) -> dict[str, Any]:
    """What happens between the two curves, for a metric where higher is better.

    kind: 'crosses' (one change of leader), 'several', 'never' (one leader throughout, at both ends too), 'cannot_tell'
    (no level, no level at which the two can be told apart, or an outermost level at which they cannot and no change
    elsewhere). `between` are the nearest levels with a known leader, `at` the root of the line through log(ratio) over
    log(concurrency) there, `interval` its 95 % interval. Levels whose interval holds 1 have no leader, so they widen
    `between`.
    """
    levels = sorted(levels, key=lambda r: r.concurrency)
    alone = [r.concurrency for r in levels if r.sign]  # apart, each by itself
    levels = together(levels)
    led = [r for r in levels if r.sign]
    chance: list[str] = [str(c) for c in alone if c not in {r.concurrency for r in led}]
    changes = [(a, b) for a, b in pairwise(led) if a.sign != b.sign]
    names = {1: arm, -1: base}
    crossings: list[dict[str, Any]] = [
        {
            "between": [a.concurrency, b.concurrency],
            "at": (at := _root(levels, a, b)),
            "interval": root_interval(levels, a, b, at),
            "winner_below": names[a.sign],
            "winner_above": names[b.sign],
        }
        for a, b in changes
    ]
    quantity = QUANTITY[metric]
    result: dict[str, Any] = {
        "kind": "cannot_tell",
        "between": None,
        "at": None,
        "interval": None,
        "winner_below": None,
        "winner_above": None,
        "crossings": crossings,
        "caveat": _caveat(levels, quantity, chance),
    }
    b, a = clean(base, 60), clean(arm, 60)
    if not levels:
        text = f"{b} and {a} share no concurrency with a valid point, so their {quantity} cannot be compared."
        short = f"{b} and {a} share no level"
    elif not led:
        text = f"{b} and {a} cannot be told apart in {quantity} at any measured concurrency ({_range(levels)})."
        short = f"{b} and {a} cannot be told apart"
    elif not changes:
        winner = names[led[0].sign]
        best = max(led, key=lambda r: abs(math.log(r.ratio)))
        gain = max(best.ratio, 1 / best.ratio)
        w = clean(winner, 60)
        where = "at every level where they can be told apart" if len(led) < len(levels) else "at every measured level"
        most = f"{_range(led)}; the most at {best.concurrency}: {_gain(gain)}"
        unsure = [str(r.concurrency) for r in dict.fromkeys((levels[0], levels[-1])) if not r.sign]
        if unsure:
            text = (
                f"{w} gives more {quantity} {where} ({most}); whether the curves cross at {listing(unsure)} users "
                "cannot be told."
            )
            short = f"{w} wins where they differ"
        else:
            result |= {"kind": "never", "winner_below": winner, "winner_above": winner}
            text = f"{w} gives more {quantity} {where} ({most}), so the curves do not cross."
            if len(levels) == 1:
                only = f"at {best.concurrency} users, the only level both were measured at"
                text = f"{w} gives more {quantity} ({_gain(gain)}) {only}."
            short = f"{w} wins at every level measured" if len(led) == len(levels) else f"{w} wins where they differ"
    elif len(changes) == 1:
        result |= {"kind": "crosses"} | crossings[0]
        below, above = clean(crossings[0]["winner_below"], 60), clean(crossings[0]["winner_above"], 60)
        low, high = crossings[0]["between"]
        place = users(crossings[0]["at"])
        text = (
            f"{below} gives more {quantity} up to about {place} concurrent users, {above} above that "
            f"({_said(crossings[0]['interval'])}the curves cross between {low} and {high})."
        )
        short = f"{below} wins up to about {place} users; {above} above"
    else:
        result["kind"] = "several"
        result["winner_below"] = crossings[0]["winner_below"]
        result["winner_above"] = crossings[-1]["winner_above"]
        places = listing([users(c["at"]) for c in crossings])
        text = (
            f"The lead in {quantity} changes {len(crossings)} times, at about {places} concurrent users: "
            f"{clean(result['winner_below'], 60)} leads below the first, "
            f"{clean(result['winner_above'], 60)} above the last."
        )
        short = f"The lead changes {len(crossings)} times"
    return result | {"text": text, "short": short}


def together(levels: Sequence[LevelRatio]) -> list[LevelRatio]:
    """The levels, with a leader only where one holds for all of them at once at 95 %.

    Of many levels some look apart by chance. Holm (1979): ordered by how surely they are apart, the k-th of m must be
    so at 1 - 0.05 / (m - k + 1). What a level's interval says is taken as normal on the log scale.
    """
    order = sorted((r for r in levels if r.is_known), key=_chance)
    for k, r in enumerate(order):
        if _chance(r) > (1 - LEVEL) / (len(order) - k):
            by_chance = order[k:]
            return [replace(r, apart=False) if r in by_chance else r for r in levels]
    return list(levels)


def _chance(r: LevelRatio) -> float:
    """The p-value, two-sided, of a ratio of 1."""
    assert r.low is not None and r.high is not None
    half = math.log(r.ratio / r.low) if r.ratio > 1 else math.log(r.high / r.ratio)
    return math.erfc(abs(math.log(r.ratio)) / half * Z / math.sqrt(2)) if half > 0 else 0.0


def root_interval(levels: Sequence[LevelRatio], first: LevelRatio, last: LevelRatio, at: float) -> dict[str, Any]:
    """95 % interval of the root between two levels with opposite leaders, as {low, high, level, method, n, scope}.

    2000 resamples draw each level's log(ratio) from a normal distribution about it, as wide on either side as its
    interval says. Of each the first and the last root between the two levels are taken, of the straight lines and of
    a piecewise cubic (Catmull-Rom: each level's slope is that of the parabola through it and its neighbours). The
    interval runs from the 2.5 % quantile of the first roots to the 97.5 % quantile of the last ones, whichever of the
    two interpolants lies further out. Null, with the reason, where a level from the one to the other has no interval.
    """
    inside = [r for r in levels if first.concurrency <= r.concurrency <= last.concurrency]
    found: dict[str, Any] = {"low": None, "high": None, "level": LEVEL, "method": METHOD, "n": len(inside)}
    found["scope"] = "within_levels"
    unknown = [str(r.concurrency) for r in inside if not r.is_known]
    if unknown:
        return found | {"method": None, "reason": f"no interval is known at {listing(unknown)} users"}
    x = np.log([r.concurrency for r in levels])
    y = np.log([r.ratio for r in levels])
    ends = np.array([(r.low, r.high) if r.is_known else (r.ratio, r.ratio) for r in levels], float)
    below, above = y - np.log(ends[:, 0]), np.log(ends[:, 1]) - y
    z = np.random.default_rng(0).standard_normal((_RESAMPLES, len(levels)))
    drawn = y + z * np.where(z > 0, above, below) / Z
    begin, end = levels.index(first), levels.index(last)
    tail = 50 * (1 - LEVEL)
    spans = [
        (np.percentile(lowest, tail), np.percentile(highest, 100 - tail))
        for lowest, highest in (
            roots(x[begin : end + 1], drawn[:, begin : end + 1], first.sign),
            roots(*_bent(x, drawn, begin, end), first.sign),
        )
    ]
    low, high = min(s[0] for s in spans), max(s[1] for s in spans)
    return found | {"low": min(float(np.exp(low)), at), "high": max(float(np.exp(high)), at)}


def roots(x: Floats, y: Floats, sign: int) -> tuple[Floats, Floats]:
    """First and last root of each row of straight lines y (m, n) over x (n,) that should begin on the side `sign` and
    end on the other; a row that begins on the wrong side has its first root at the beginning, one that ends on the
    wrong side its last root at the end."""
    y = y * sign
    turns = (y[:, 1:] > 0) != (y[:, :-1] > 0)
    share = y[:, :-1] / np.where(turns, y[:, :-1] - y[:, 1:], 1.0)
    at = x[:-1] + share * np.diff(x)
    lowest = np.where(turns, at, np.inf).min(axis=1)
    highest = np.where(turns, at, -np.inf).max(axis=1)
    return np.where(y[:, 0] > 0, np.minimum(lowest, x[-1]), x[0]), np.where(
        y[:, -1] <= 0, np.maximum(highest, x[0]), x[-1]
    )


def _bent(x: Floats, y: Floats, begin: int, end: int) -> tuple[Floats, Floats]:
    """The piecewise cubic from level `begin` to `end` as many short lines: (x (k,), y (m, k))."""
    slopes = _slopes(x, y)
    t = np.arange(_STEPS) / _STEPS
    xs, ys = [], []
    for i in range(begin, end):
        h = x[i + 1] - x[i]
        xs.append(x[i] + t * h)
        ys.append(
            np.outer(y[:, i], 2 * t**3 - 3 * t**2 + 1)
            + np.outer(y[:, i + 1], 3 * t**2 - 2 * t**3)
            + h * np.outer(slopes[:, i], t**3 - 2 * t**2 + t)
            + h * np.outer(slopes[:, i + 1], t**3 - t**2)
        )
    return np.append(np.concatenate(xs), x[end]), np.column_stack([*ys, y[:, end]])


def _slopes(x: Floats, y: Floats) -> Floats:
    """At each level that of the parabola through it and its two neighbours (at an end: through the three outermost)."""
    h, rise = np.diff(x), np.diff(y, axis=1) / np.diff(x)
    if len(h) == 1:
        return np.repeat(rise, 2, axis=1)
    inner = (h[1:] * rise[:, :-1] + h[:-1] * rise[:, 1:]) / (h[1:] + h[:-1])
    return np.column_stack([2 * rise[:, 0] - inner[:, 0], inner, 2 * rise[:, -1] - inner[:, -1]])


def _said(interval: dict[str, Any]) -> str:
    low, high = interval["low"], interval["high"]
    return "" if low is None else f"95 % interval {number(low)} to {number(high)}; "


def _root(levels: Sequence[LevelRatio], first: LevelRatio, last: LevelRatio) -> float:
    """Root of log(ratio) between two levels with opposite leaders.

    Between them may lie levels without a leader; when the measured ratios change sides exactly once on the way, that
    segment is used, else the straight line from end to end.
    """
    inside = [r for r in levels if first.concurrency <= r.concurrency <= last.concurrency]
    exact = [r for r in inside if r.ratio == 1]
    turns = [(a, b) for a, b in pairwise(inside) if (a.ratio > 1) != (b.ratio > 1)]
    if len(exact) == 1:
        return float(exact[0].concurrency)
    a, b = turns[0] if len(turns) == 1 and not exact else (first, last)
    ya, yb = math.log(a.ratio), math.log(b.ratio)
    xa, xb = math.log(a.concurrency), math.log(b.concurrency)
    return math.exp(xa + (xb - xa) * ya / (ya - yb))


def _range(levels: Sequence[LevelRatio]) -> str:
    low, high = levels[0].concurrency, levels[-1].concurrency
    return plural(low, "user") if low == high else f"{low} to {high} users"


def _gain(factor: float) -> str:
    if factor >= 3:
        return f"{number(factor)} times as much"
    return f"{(factor - 1) * 100:.{0 if factor >= 1.1 else 1}f} % more"


def _caveat(levels: Sequence[LevelRatio], quantity: str, chance: list[str]) -> str | None:
    unknown = [str(r.concurrency) for r in levels if r.apart is None]
    same = [str(r.concurrency) for r in levels if r.apart is False and str(r.concurrency) not in chance]
    parts = []
    if chance:
        parts.append(
            f"The difference in {quantity} at {listing(chance)} is one that {len(levels)} levels may show by chance."
        )
    if same:
        parts.append(f"The two cannot be told apart in {quantity} at {listing(same)}.")
    if unknown:
        parts.append(
            f"No interval of {quantity} is known at {listing(unknown)}, so small differences there may be noise."
        )
    return " ".join(parts) or None
