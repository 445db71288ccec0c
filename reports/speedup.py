"""One arm's number over another's, with a 95 % interval, on the log scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from reports.points import Estimate
from sweeps.distributions import student_t

LEVEL = 0.95
LEAST_TRIALS = 3  # two would leave an interval 12.7 standard errors wide on either side


def ratio(base: Estimate, arm: Estimate) -> dict[str, Any]:
    """arm ÷ base as {base, arm, ratio, interval, apart, reason}. `apart` is False where the interval holds 1, None
    where there is none, with the reason.

    Three trials or more that both arms ran: `paired_trials`, trial with trial. Else `combined_intervals`: those of the
    two estimates.
    """
    result: dict[str, Any] = {"base": base.value, "arm": arm.value, "ratio": arm.value / base.value}
    shared = sorted(base.by_trial.keys() & arm.by_trial.keys())
    if len(shared) >= LEAST_TRIALS:
        middle, low, high = paired_trials([math.log(arm.by_trial[t] / base.by_trial[t]) for t in shared])
        result["ratio"] = math.exp(middle)
        return result | _span(low, high, "paired_trials", len(shared), "between_trials")
    if base.low is None or base.high is None or arm.low is None or arm.high is None:
        reason = " ".join(dict.fromkeys(r for r in (base.reason, arm.reason) if r))
        return result | {"interval": None, "apart": None, "reason": reason or "no interval is known"}
    if base.low <= 0 or arm.low <= 0:
        return result | {"interval": None, "apart": None, "reason": "an interval reaches zero"}
    low, high = difference(_logs(base), _logs(arm))
    scope = base.scope if base.scope == arm.scope else "mixed"
    return result | _span(low, high, "combined_intervals", min(base.trials, arm.trials), scope)


def difference(base: tuple[float, float, float], arm: tuple[float, float, float]) -> tuple[float, float]:
    """Interval of arm - base from the (value, low, high) of two independent estimates, at the level of theirs.

    Their half widths on the sides that matter, added in squares: the method of variance estimates recovery (Zou and
    Donner, Statistics in Medicine 27, 2008), which keeps what is skew about the two.
    """
    (b, b_low, b_high), (a, a_low, a_high) = base, arm
    middle = a - b
    return middle - math.hypot(a - a_low, b_high - b), middle + math.hypot(a_high - a, b - b_low)


def paired_trials(logs: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) of n >= 2 paired log ratios, by Student's t with n - 1 degrees of freedom."""
    n = len(logs)
    mean = math.fsum(logs) / n
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / (n - 1) / n)
    half = student_t(n - 1, (1 + LEVEL) / 2) * spread
    return mean, mean - half, mean + half


def _logs(e: Estimate) -> tuple[float, float, float]:
    assert e.low is not None and e.high is not None
    return math.log(e.value), math.log(min(e.low, e.value)), math.log(max(e.high, e.value))


def _span(low: float, high: float, method: str, n: int, scope: str | None) -> dict[str, Any]:
    interval = {"low": math.exp(low), "high": math.exp(high), "level": LEVEL, "method": method, "n": n, "scope": scope}
    return {"interval": interval, "apart": not low <= 0 <= high, "reason": None}
