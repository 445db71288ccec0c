"""How surely a number is known. Requests share batches, so blocks of time are resampled, never single requests."""

from __future__ import annotations

from typing import Any

import numpy as np

from sweeps.columns import Requests
from sweeps.metrics import Floats, Mask, Span, tokens_in_bins, tpot_ms, ttft_ms

LEVEL = 0.95
LEAST_BLOCKS = 20
_RESAMPLES = 2000


def point_intervals(r: Requests, span: Span | None, keep: Mask, seed: int) -> dict[str, dict[str, Any]]:
    """95 % intervals within one run: throughput and mean TTFT by blocks of time, p90s by order statistics.

    Each says its method, its sample (`n` blocks or requests), its scope, and the reason where there is none.
    """
    good = keep & r.ok
    rng = np.random.default_rng(seed)
    ttft, tpot = ttft_ms(r), tpot_ms(r)
    speed = order_statistic(tpot[good & np.isfinite(tpot)], 0.9)
    return {
        "system_tps": _throughput(r, span, good, rng),
        "tps_per_user": _reciprocal(speed),
        "ttft_ms_p90": order_statistic(ttft[good & np.isfinite(ttft)], 0.9),
        "tpot_ms_p90": speed,
        "ttft_ms_mean": _mean_latency(r, ttft, span, good, rng),
    }


def order_statistic(values: Floats, q: float) -> dict[str, Any]:
    """Distribution-free interval of a quantile: the order statistics whose ranks bound it with 95 %.

    The number of n independent values at or below the quantile is binomial(n, q); ranks are taken with at most 2.5 % on
    each side (David and Nagaraja, Order Statistics, 3rd ed., section 7.1). A p90 needs 36 values: 0.9**35 > 2.5 %.
    """
    n = len(values)
    ranks = _ranks(n, q)
    if ranks is None:
        return _none(n, f"a p{q * 100:g} needs {_least(q)} samples, this point has {n}")
    ordered = np.sort(values)
    low, high = ordered[ranks[0] - 1], ordered[ranks[1] - 1]
    return _interval(float(low), float(high), "order_statistic", n)


def block_edges(span: Span, lengths_ns: Floats) -> tuple[Floats | None, int, str]:
    """(edges in ns, number of blocks, reason when there are too few): equal blocks of the window, each at least one
    request long (the p90 of the lengths, so that few requests outlast their block), 20 of them or more."""
    if len(lengths_ns) == 0:
        return None, 0, "no request succeeded"
    longest = float(np.percentile(lengths_ns, 90, method="lower"))
    blocks = int((span.t1 - span.t0) // max(longest, 1.0))
    if blocks < LEAST_BLOCKS:
        return None, blocks, f"{LEAST_BLOCKS} blocks of one request length are needed, this window holds {blocks}"
    blocks = min(blocks, 200)
    return np.linspace(span.t0, span.t1, blocks + 1), blocks, ""


def _throughput(r: Requests, span: Span | None, good: Mask, rng: np.random.Generator) -> dict[str, Any]:
    if span is None or span.t1 <= span.t0:
        return _none(0, "the point has no window")
    edges, blocks, reason = block_edges(span, _lengths(r, good))
    if edges is None:
        return _none(blocks, reason)
    rates = tokens_in_bins(r, span, blocks) / (span.seconds / blocks)
    return _bootstrap(rates[_draws(rng, blocks)].mean(axis=1), blocks)


def _mean_latency(
    r: Requests, values: Floats, span: Span | None, good: Mask, rng: np.random.Generator
) -> dict[str, Any]:
    if span is None or span.t1 <= span.t0:
        return _none(0, "the point has no window")
    edges, blocks, reason = block_edges(span, _lengths(r, good))
    if edges is None:
        return _none(blocks, reason)
    use = good & np.isfinite(values)
    if not use.any():
        return _none(0, "no request has such a value")
    which = np.clip(np.searchsorted(edges, r.ints("issued_ns")[use], side="right") - 1, 0, blocks - 1)
    sums = np.bincount(which, values[use], minlength=blocks)
    sizes = np.bincount(which, minlength=blocks)
    draws = _draws(rng, blocks)
    total = sizes[draws].sum(axis=1)
    means = sums[draws].sum(axis=1)[total > 0] / total[total > 0]
    return _bootstrap(means, blocks)


def _lengths(r: Requests, good: Mask) -> Floats:
    return (r.ints("ended_ns") - r.ints("issued_ns"))[good].astype(float)


def _draws(rng: np.random.Generator, blocks: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return rng.integers(0, blocks, size=(_RESAMPLES, blocks))


def _bootstrap(means: Floats, blocks: int) -> dict[str, Any]:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, (tail, 1 - tail))
    return _interval(float(low), float(high), "block_bootstrap", blocks)


def _ranks(n: int, q: float) -> tuple[int, int] | None:
    """1-based ranks (low, high) of the two order statistics, or None when n is too small for one of them."""
    if n == 0:
        return None
    from scipy.special import bdtr  # here, since a run's start should not wait for it

    below = bdtr(np.arange(n + 1), n, q)  # P(number of values at or below the quantile <= k)
    tail = (1 - LEVEL) / 2
    low = int(np.searchsorted(below, tail, side="right"))
    high = int(np.searchsorted(below, 1 - tail, side="left")) + 1
    return (low, high) if low >= 1 and high <= n else None


def _least(q: float) -> int:
    n = 1
    while _ranks(n, q) is None:
        n += 1
    return n


def _reciprocal(interval: dict[str, Any]) -> dict[str, Any]:
    """Of 1000 / x, for an interval of x."""
    if interval["low"] is None:
        return dict(interval)
    low = 1000.0 / interval["high"] if interval["high"] > 0 else None
    high = 1000.0 / interval["low"] if interval["low"] > 0 else None
    return interval | {"low": low, "high": high}


def _interval(low: float, high: float, method: str, n: int) -> dict[str, Any]:
    return {"low": low, "high": high, "level": LEVEL, "method": method, "n": n, "scope": "within_run"}


def _none(n: int, reason: str) -> dict[str, Any]:
    return {
        "low": None,
        "high": None,
        "level": LEVEL,
        "method": None,
        "n": n,
        "scope": "within_run",
        "reason": reason,
    }
