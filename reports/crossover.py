"""Where one curve overtakes another: sign changes of log(ratio) over log(concurrency)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from reports.formats import clean, listing, number, users

QUANTITY = {"system_tps": "total throughput", "tps_per_user": "speed per user"}


@dataclass(frozen=True, slots=True)
class LevelRatio:
    """The arm's value over the base's at one concurrency. `apart` is None where no interval is known."""

    concurrency: int
    ratio: float
    apart: bool | None

    @property
    def sign(self) -> int:
        """+1 the arm is ahead, -1 the base is, 0 they cannot be told apart."""
        if self.apart is False or self.ratio == 1:
            return 0
        return 1 if self.ratio > 1 else -1


def crossover(base: str, arm: str, metric: str, levels: Sequence[LevelRatio]) -> dict[str, Any]:
    """What happens between the two curves, for a metric where higher is better.

    kind: 'crosses' (one change of leader), 'several', 'never' (one leader throughout), 'cannot_tell' (no level, or no
    level at which the two can be told apart). `between` are the nearest levels with a known leader, `at` the root of
    the line through log(ratio) over log(concurrency) there. Levels whose interval holds 1 have no leader, so they
    widen `between`.
    """
    levels = sorted(levels, key=lambda r: r.concurrency)
    led = [r for r in levels if r.sign]
    changes = [(a, b) for a, b in pairwise(led) if a.sign != b.sign]
    names = {1: arm, -1: base}
    crossings: list[dict[str, Any]] = [
        {
            "between": [a.concurrency, b.concurrency],
            "at": _root(levels, a, b),
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
        "winner_below": None,
        "winner_above": None,
        "crossings": crossings,
        "caveat": _caveat(levels),
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
        result |= {"kind": "never", "winner_below": winner, "winner_above": winner}
        best = max(led, key=lambda r: abs(math.log(r.ratio)))
        gain = max(best.ratio, 1 / best.ratio)
        w = clean(winner, 60)
        where = "at every level where they can be told apart" if len(led) < len(levels) else "at every measured level"
        text = (
            f"{w} gives more {quantity} {where} ({_range(led)} users; the most at {best.concurrency}: {_gain(gain)}), "
            "so the curves do not cross."
        )
        if len(levels) == 1:
            only = f"at {best.concurrency} users, the only level both were measured at"
            text = f"{w} gives more {quantity} ({_gain(gain)}) {only}."
        short = f"{w} wins at every level measured" if len(led) == len(levels) else f"{w} wins where they differ"
    elif len(changes) == 1:
        result |= {"kind": "crosses"} | crossings[0]
        below, above = clean(crossings[0]["winner_below"], 60), clean(crossings[0]["winner_above"], 60)
        low, high = crossings[0]["between"]
        at = users(crossings[0]["at"])
        text = (
            f"{below} gives more {quantity} up to about {at} concurrent users, {above} above that "
            f"(the curves cross between {low} and {high})."
        )
        short = f"{below} wins up to about {at} users; {above} above"
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
    return str(low) if low == high else f"{low} to {high}"


def _gain(factor: float) -> str:
    if factor >= 3:
        return f"{number(factor)} times as much"
    return f"{(factor - 1) * 100:.{0 if factor >= 1.1 else 1}f} % more"


def _caveat(levels: Sequence[LevelRatio]) -> str | None:
    unknown = [str(r.concurrency) for r in levels if r.apart is None]
    same = [str(r.concurrency) for r in levels if r.apart is False]
    parts = []
    if same:
        parts.append(f"The two cannot be told apart at {listing(same)}.")
    if unknown:
        parts.append(f"No interval is known at {listing(unknown)}, so small differences there may be noise.")
    return " ".join(parts) or None
