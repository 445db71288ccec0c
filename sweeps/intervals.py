"""How surely a number is known. Requests share batches, so blocks of time are resampled, never single requests."""

from __future__ import annotations

from typing import Any

import numpy as np

from sweeps.arrow import Ints
from sweeps.distributions import binomial_cdf
from sweeps.metrics import Mask, Span, tpot_ms, ttft_ms, window_bins
from sweeps.requests import Floats, Requests
from sweeps.tallies import TokenBins

LEVEL = 0.95
LEAST_BLOCKS = 20
_RESAMPLES = 2000
_CELLS = 2048  # a larger sample is taken together to so many cells of equal size before it is resampled


def point_intervals(
    r: Requests, span: Span | None, keep: Mask, seed: int, bins: TokenBins | None = None
) -> dict[str, dict[str, Any]]:
    """95 % intervals within one run by blocks of time; of p90s by order statistics where there are too few blocks.

    Each says its method, its sample (`n` blocks or requests), its scope, and the reason where there is none. `bins`:
    those of `block_bins`, where they were counted already.
    """
    good = keep & r.ok
    if bins is None and (bins := block_bins(r, span, good)) is not None:
        r.tally(bins)
    rng = np.random.default_rng(seed)
    ttft, tpot = ttft_ms(r), tpot_ms(r)
    throughput, mean = _throughput(r, span, good, bins, rng), _mean_latency(r, ttft, span, good, rng)
    first, speed = (_quantile(r, values, 0.9, span, good, rng) for values in (ttft, tpot))
    return {
        "system_tps": throughput,
        "tps_per_user": _reciprocal(speed),
        "ttft_ms_p90": first,
        "tpot_ms_p90": speed,
        "ttft_ms_mean": mean,
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


def block_bins(r: Requests, span: Span | None, good: Mask) -> TokenBins | None:
    """The tokens in each block of the window, still to be counted; None where there are too few blocks."""
    if span is None or span.t1 <= span.t0:
        return None
    edges, blocks, _ = block_edges(span, _lengths(r, good))
    return None if edges is None else window_bins(r, span, blocks)


def _throughput(
    r: Requests, span: Span | None, good: Mask, bins: TokenBins | None, rng: np.random.Generator
) -> dict[str, Any]:
    if span is None or span.t1 <= span.t0:
        return _none(0, "the point has no window")
    edges, blocks, reason = block_edges(span, _lengths(r, good))
    if edges is None or bins is None:
        return _none(blocks, reason)
    rates = bins.tokens / (span.seconds / blocks)
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
    which = _blocks_of(r, use, edges)
    sums = np.bincount(which, values[use], minlength=blocks)
    sizes = np.bincount(which, minlength=blocks)
    draws = _draws(rng, blocks)
    total = sizes[draws].sum(axis=1)
    means = sums[draws].sum(axis=1)[total > 0] / total[total > 0]
    return _bootstrap(means, blocks)


def _quantile(
    r: Requests, values: Floats, q: float, span: Span | None, good: Mask, rng: np.random.Generator
) -> dict[str, Any]:
    """Of the requests that have such a value: blocks resampled, and never narrower than order statistics.

    Order statistics take requests for independent, and are too narrow where neighbours share batches; a bootstrap of a
    quantile is too narrow where few values lie about it. With too few blocks order statistics serve alone.
    """
    use = good & np.isfinite(values)
    plain = order_statistic(values[use], q)
    edges = block_edges(span, _lengths(r, good))[0] if span is not None and span.t1 > span.t0 else None
    if plain["low"] is None or edges is None:
        return plain
    blocks = len(edges) - 1
    low, high = resampled_quantile(values[use], _blocks_of(r, use, edges), blocks, q, rng)
    return _interval(min(low, plain["low"]), max(high, plain["high"]), "block_bootstrap", blocks)


def resampled_quantile(
    values: Floats, which: Ints, blocks: int, q: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Bounds of a quantile ("lower" method) over resamples of whole blocks; `which` (n,): the block of each value.

    Of more than 2048 values the lower bound is the least and the upper bound the greatest of their cells.
    """
    order = np.argsort(values, kind="stable")
    cells = min(len(values), _CELLS)
    cell = np.arange(len(values)) * cells // len(values)
    held = np.bincount(which[order] * cells + cell, minlength=blocks * cells).reshape(blocks, cells).astype(float)
    up_to = np.cumsum(held, axis=1)
    found = np.empty(_RESAMPLES, np.int64)
    for begin in range(0, _RESAMPLES, 100):
        times = rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=100).astype(float)
        reached = times @ up_to
        found[begin : begin + 100] = (reached > np.floor(q * (reached[:, -1:] - 1))).argmax(axis=1)
    tail = (1 - LEVEL) / 2
    low, high = np.percentile(found, (100 * tail, 100 * (1 - tail)), method="nearest").astype(int)
    edges = np.searchsorted(cell, [low, high + 1])
    return float(values[order[edges[0]]]), float(values[order[edges[1] - 1]])


def _blocks_of(r: Requests, use: Mask, edges: Floats) -> Ints:
    """The block in which each of the requests was issued."""
    return np.clip(np.searchsorted(edges, r.ints("issued_ns")[use], side="right") - 1, 0, len(edges) - 2)


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
    below = binomial_cdf(n, q)  # P(number of values at or below the quantile <= k)
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
