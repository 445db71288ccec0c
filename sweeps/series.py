"""`series.parquet`: a point's time-lines and histograms, binned once as the point ends, for the report to draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sweeps.arrow import floats, texts
from sweeps.metrics import Mask, Span, tpot_ms, ttft_ms
from sweeps.requests import Floats, Requests
from sweeps.tallies import GapCounts, TokenBins

SCHEMA = pa.schema([("series", pa.string()), ("x0", pa.float64()), ("x1", pa.float64()), ("y", pa.float64())])
_LEAST_BINS, _MOST_BINS, _HISTOGRAM_BINS = 40, 600, 40


@dataclass(frozen=True, slots=True)
class SeriesSeen:
    """What the series need of the fragments. `bins`: over the whole point, None of a point without requests."""

    gaps: GapCounts
    bins: TokenBins | None

    @property
    def tallies(self) -> list[GapCounts | TokenBins]:
        return [self.gaps, *([self.bins] if self.bins is not None else [])]


def series_to_see(r: Requests, keep: Mask) -> SeriesSeen:
    """What `series_of` needs, still to be counted by `Requests.tally`."""
    return SeriesSeen(GapCounts(keep & r.ok), TokenBins(r, _time_edges(r)) if len(r) else None)


def series_of(r: Requests, span: Span | None, keep: Mask, seen: SeriesSeen | None = None) -> pa.Table:
    """One long table: `series`, bin edges `x0`, `x1`, and `y`.

    Time-lines (`tokens_per_s`, `in_flight`, `issued`, `finished`) over the whole point, x in seconds from t0 (from the
    first issue where there is no window); histograms (`ttft_ms`, `tpot_ms`, `chunk_interval_ms`) of the requests that
    count, log-spaced edges, y in counts. `seen`: the fragments, where they were counted already.
    """
    if seen is None:
        seen = series_to_see(r, keep)
        r.tally(*seen.tallies)
    rows: list[tuple[str, Floats, Floats]] = []
    if seen.bins is not None:
        zero = span.t0 if span else int(r.ints("issued_ns").min())
        edges_ns = seen.bins.edges.astype(float)
        edges_s = (edges_ns - zero) / 1e9
        rows += [
            ("tokens_per_s", edges_s, seen.bins.tokens / np.diff(edges_s)),
            ("in_flight", edges_s, _in_flight(r, edges_ns)),
            ("issued", edges_s, np.histogram(r.ints("issued_ns"), edges_ns)[0].astype(float)),
            ("finished", edges_s, np.histogram(r.ints("ended_ns"), edges_ns)[0].astype(float)),
        ]
    good = keep & r.ok
    for name, sample in (("ttft_ms", ttft_ms(r)[good]), ("tpot_ms", tpot_ms(r)[good])):
        values = sample[np.isfinite(sample)]
        rows += _histogram(name, values, np.ones(len(values)))
    gaps, times = seen.gaps.counts.pairs()
    rows += _histogram("chunk_interval_ms", gaps / 1e3, times.astype(float))
    return pa.Table.from_arrays(
        [
            texts([name for name, _, y in rows for _ in y]),
            floats(_joined([x[:-1] for _, x, _ in rows])),
            floats(_joined([x[1:] for _, x, _ in rows])),
            floats(_joined([y for _, _, y in rows])),
        ],
        schema=SCHEMA,
    )


def _histogram(name: str, values: Floats, weights: Floats) -> list[tuple[str, Floats, Floats]]:
    if len(values) == 0:
        return []
    edges = _log_edges(values)
    return [(name, edges, np.histogram(np.clip(values, edges[0], edges[-1]), edges, weights=weights)[0])]


def _time_edges(r: Requests) -> Floats:
    """ns."""
    first, last = float(r.ints("issued_ns").min()), float(r.ints("ended_ns").max())
    bins = int(np.clip((last - first) / 1e9, _LEAST_BINS, _MOST_BINS))
    return np.linspace(first, max(last, first + 1e6), bins + 1)


def _in_flight(r: Requests, edges: Floats) -> Floats:
    """Time-weighted mean per bin: the integral of the number in flight, differenced."""
    live = r.ints("sent_ns") >= 0
    start, end = np.sort(r.ints("sent_ns")[live]), np.sort(r.ints("ended_ns")[live])

    def integral(times: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
        sums = np.concatenate([[0.0], np.cumsum(times.astype(float))])
        n = np.searchsorted(times, edges, side="right")
        area: Floats = n * edges - sums[n]
        return area

    return np.diff(integral(start) - integral(end)) / np.diff(edges)


def _log_edges(values: Floats) -> Floats:
    low, high = float(values.min()), float(values.max())
    low = max(low, high / 1e6, 1e-3)  # bursts have gaps of 0
    return np.geomspace(low, max(high, low * 1.01), _HISTOGRAM_BINS + 1)


def _joined(parts: list[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.empty(0)
