"""A point's metrics from its requests: every definition of docs/metrics.md, as a pure function over columns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweeps.arrow import Bools, Ints
from sweeps.columns import NONE
from sweeps.counts import Counts
from sweeps.requests import Floats, Requests
from sweeps.tallies import GapCounts, TokenBins, ToldCounts

METRICS_VERSION = 1
PERCENTILES = (50, 90, 95, 99)
Mask = Bools


@dataclass(frozen=True, slots=True)
class Span:
    """(t0, t1] in ns from the point's origin."""

    t0: int
    t1: int

    @property
    def seconds(self) -> float:
        return (self.t1 - self.t0) / 1e9


@dataclass(frozen=True, slots=True)
class Seen:
    """What the metrics of one basis need of the fragments. `bins`: of the window, None without one."""

    gaps: GapCounts
    told: ToldCounts
    bins: TokenBins | None

    @property
    def tallies(self) -> list[GapCounts | ToldCounts | TokenBins]:
        return [self.gaps, self.told, *([self.bins] if self.bins is not None else [])]


def to_see(r: Requests, span: Span | None, keep: Mask) -> Seen:
    """What `point_metrics` needs, still to be counted by `Requests.tally`."""
    good = keep & r.ok
    return Seen(GapCounts(good), ToldCounts(good), window_bins(r, span, _peak_bins(span)) if span else None)


def summary_of(values: Floats) -> dict[str, Any]:
    """Mean and percentiles ("lower" method: always a value that was seen) of a sample; nulls for an empty one."""
    if len(values) == 0:
        return {"mean": None, **{f"p{p}": None for p in PERCENTILES}, "n": 0}
    marks = np.percentile(values, PERCENTILES, method="lower")
    return {
        "mean": float(values.mean()),
        **{f"p{p}": float(v) for p, v in zip(PERCENTILES, marks, strict=True)},
        "n": len(values),
    }


def ttft_ms(r: Requests) -> Floats:
    """Per request: from `sent` to the first fragment with text, ms; NaN where there is none."""
    return _between(r.ints("sent_ns"), r.ints("first_token_ns"))


def ttft_visible_ms(r: Requests) -> Floats:
    """Per request: from `sent` to the first fragment a reader sees, ms; NaN where there is none."""
    return _between(r.ints("sent_ns"), r.ints("first_visible_ns"))


def e2e_ms(r: Requests) -> Floats:
    """Per request: from `sent` to the last fragment, ms; NaN where there is none."""
    return _between(r.ints("sent_ns"), r.ints("last_token_ns"))


def tpot_ms(r: Requests) -> Floats:
    """Per request: (last - first fragment) / tokens after the first fragment, ms.

    NaN with no token after the first fragment, and with a single fragment: one arrival has no pace.
    """
    spread = _between(r.ints("first_token_ns"), r.ints("last_token_ns"))
    after = r.ints("output_tokens_after_first_chunk").astype(float)
    pace: Floats = np.where((after > 0) & (r.ints("chunks") > 1), spread / np.where(after > 0, after, 1.0), np.nan)
    return pace


def chunk_interval_ms(gaps: Counts) -> dict[str, Any]:
    """Summary of gaps between consecutive fragments, counted in µs."""
    mean, marks = gaps.mean(), gaps.percentiles(PERCENTILES)
    if mean is None or marks is None:
        return summary_of(np.empty(0))
    percentiles = {f"p{p}": int(v) / 1e3 for p, v in zip(PERCENTILES, marks, strict=True)}
    return {"mean": mean / 1e3, **percentiles, "n": gaps.n}


def window_bins(r: Requests, span: Span, bins: int) -> TokenBins:
    """`bins` equal parts of the window, each (a, b] as the window is, still to be counted."""
    return TokenBins(r, np.array([span.t0 + (span.t1 - span.t0) * i // bins for i in range(bins + 1)]))


def tokens_in_bins(r: Requests, span: Span, bins: int) -> Floats:
    """Tokens that arrived in each of `bins` equal parts of the window."""
    tally = window_bins(r, span, bins)
    r.tally(tally)
    return tally.tokens


def system_tps(r: Requests, span: Span, bins: TokenBins | None = None) -> float | None:
    """Output tokens of successful requests of any phase that arrived in (t0, t1], per second of it."""
    if span.t1 <= span.t0 or not _counts_known(r):
        return None
    tokens = tokens_in_bins(r, span, 1) if bins is None else bins.tokens
    return float(tokens.sum()) / span.seconds


def peak_tps(r: Requests, span: Span, bins: TokenBins | None = None) -> float | None:
    """Highest bin of the window, tokens/s. The window is cut into equal bins as near to 1 s as it divides, from 1 s up
    (a shorter window is one bin), so that the peak is never below the mean."""
    if span.t1 <= span.t0 or not _counts_known(r):
        return None
    tokens = tokens_in_bins(r, span, _peak_bins(span)) if bins is None else bins.tokens
    return float(tokens.max() / (span.seconds / len(tokens)))


def _peak_bins(span: Span | None) -> int:
    return max(1, int(span.seconds)) if span else 1


def in_flight(r: Requests, span: Span) -> dict[str, float | None]:
    """Time-weighted mean and maximum of the requests between `sent` and their end, within the window."""
    if span.t1 <= span.t0:
        return {"mean": None, "max": None}
    sent = r.ints("sent_ns")
    live = sent >= 0
    start = np.clip(sent[live], span.t0, span.t1)
    end = np.clip(r.ints("ended_ns")[live], span.t0, span.t1)
    mean = float((end - start).sum()) / (span.t1 - span.t0)
    inside = end > start
    at = np.concatenate([start[inside], end[inside]])
    step = np.concatenate([np.ones(inside.sum(), int), -np.ones(inside.sum(), int)])
    order = np.lexsort((step, at))  # an end before a start at the same instant
    level = np.cumsum(step[order])
    return {"mean": mean, "max": int(level.max()) if len(level) else 0}


def point_metrics(r: Requests, span: Span | None, keep: Mask, seen: Seen | None = None) -> dict[str, Any]:
    """The flat metrics of one basis. `keep`: the requests whose latencies count; `span`: for the rates; `seen`: its
    fragments, where they were counted already."""
    if seen is None:
        seen = to_see(r, span, keep)
        r.tally(*seen.tallies)
    good = keep & r.ok
    tpot = _finite(tpot_ms(r)[good])
    tpot_summary = summary_of(tpot)
    p90 = tpot_summary["p90"]
    chunks, output = r.ints("chunks"), r.ints("output_tokens")
    return {
        "system_tps": system_tps(r, span, seen.bins) if span else None,
        "tps_per_user": 1000.0 / p90 if p90 else None,
        "peak_tps": peak_tps(r, span, seen.bins) if span else None,
        "ttft_ms": summary_of(_finite(ttft_ms(r)[good])),
        "ttft_visible_ms": summary_of(_finite(ttft_visible_ms(r)[good])),
        "tpot_ms": tpot_summary | _tpot_basis(r, good, seen.told),
        "e2e_latency_ms": summary_of(_finite(e2e_ms(r)[good])),
        "chunk_interval_ms": chunk_interval_ms(seen.gaps.counts),
        "input_tokens": _counts(r.ints("input_tokens")[good]),
        "output_tokens": _counts(output[good]),
        "requested_tokens": _counts(r.ints("requested_tokens")[good]),
        "cached_tokens": _counts(r.ints("cached_tokens")[good]),
        "reasoning_tokens": _counts(r.ints("reasoning_tokens")[good]),
        "token_source": token_source(r, good),
        "tokens_per_chunk": _tokens_per_chunk(seen.told, chunks[good], output[good]),
        "finish_reasons": dict(Counter(str(f) for f in r.texts("finish_reason")[good] if f is not None)),
        "request_rate": _request_rate(r, span) if span else None,
        "in_flight": in_flight(r, span) if span else {"mean": None, "max": None},
    }


def counts_of(r: Requests, keep: Mask) -> dict[str, Any]:
    """How many were issued, completed and failed, and how each ended. Requests that we cancelled ourselves, or that the
    server's rate limit refused, did not fail."""
    by_outcome = Counter(str(o) for o in r.texts("outcome")[keep])
    completed, cancelled, refused = (by_outcome.get(o, 0) for o in ("ok", "cancelled", "rate_limited"))
    issued = int(keep.sum())
    return {
        "issued": issued,
        "completed": completed,
        "failed": issued - completed - cancelled - refused,
        "cancelled": cancelled,
        "rate_limited": refused,
        "by_outcome": dict(sorted(by_outcome.items())),
    }


def token_source(r: Requests, keep: Mask) -> str:
    """Where the token counts of the kept requests are from: one source, or `mixed`."""
    sources = {str(s) for s in r.texts("token_source")[keep]}
    return sources.pop() if len(sources) == 1 else ("mixed" if sources else NONE)


def _tpot_basis(r: Requests, good: Mask, told: ToldCounts) -> dict[str, Any]:
    """What tpot divided by, and how far it may be off where the first fragment's tokens are not told.

    With only a total of n known, (n - 1) credits the first fragment's other tokens to the time after it. If it held as
    many as the mean fragment, k, the true divisor is n - k: the bound is (k - 1) / (n - k), on the mean request.
    """
    chunks = r.ints("chunks")[good]
    if told.complete and told.counts.n:
        return {"divisor": "tokens_after_first_chunk", "bias_bound": 0.0}
    n = float(np.maximum(r.ints("streamed_tokens")[good], 0).mean()) if len(chunks) else 0.0
    k = n / float(chunks.mean()) if len(chunks) and chunks.mean() > 0 else 1.0
    bound = max(0.0, (k - 1) / (n - k)) if n > k else None
    return {"divisor": "n_minus_1", "bias_bound": bound}


def _tokens_per_chunk(told: ToldCounts, chunks: Ints, output: Ints) -> dict[str, Any]:
    """Over fragments where the server tells; otherwise only the mean can be known."""
    marks = told.counts.percentiles((50, 90, 100))
    if told.complete and marks is not None:
        p50, p90, most = (int(m) for m in marks)
        return {"mean": told.counts.mean(), "p50": p50, "p90": p90, "max": most}
    known = (output >= 0) & (chunks > 0)
    mean = float(output[known].sum() / chunks[known].sum()) if known.any() else None
    return {"mean": mean, "p50": None, "p90": None, "max": None}


def _request_rate(r: Requests, span: Span) -> float | None:
    """Successful requests of any phase that ended in (t0, t1], per second."""
    ended = r.ints("ended_ns")
    done = r.ok & (ended > span.t0) & (ended <= span.t1)
    return float(done.sum()) / span.seconds if span.t1 > span.t0 else None


def _counts_known(r: Requests) -> bool:
    return bool((r.ints("output_tokens")[r.ok] >= 0).all()) and bool(r.ok.any())


def _counts(values: Ints) -> dict[str, Any]:
    known = values[values >= 0]
    if len(known) == 0:
        return {"mean": None, "total": None}
    return {"mean": float(known.mean()), "total": int(known.sum())}


def _between(a: Ints, b: Ints) -> Floats:
    return np.where((a >= 0) & (b >= 0), (b - a) / 1e6, np.nan)


def _finite(values: Floats) -> Floats:
    return values[np.isfinite(values)]
