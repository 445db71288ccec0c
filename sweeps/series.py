"""`series.parquet`: a point's time-lines and histograms, binned once as the point ends, for the report to draw."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sweeps.columns import Requests
from sweeps.metrics import Floats, Mask, Span, chunk_interval_ms, tokens_per_fragment, tpot_ms, ttft_ms

SCHEMA = pa.schema([("series", pa.string()), ("x0", pa.float64()), ("x1", pa.float64()), ("y", pa.float64())])
_LEAST_BINS, _MOST_BINS, _HISTOGRAM_BINS = 40, 600, 40


def series_of(r: Requests, span: Span | None, keep: Mask) -> pa.Table:
    """One long table: `series`, bin edges `x0`, `x1`, and `y`.

    Time-lines (`tokens_per_s`, `in_flight`, `issued`, `finished`) over the whole point, x in seconds from t0 (from the
    first issue where there is no window); histograms (`ttft_ms`, `tpot_ms`, `chunk_interval_ms`) of the requests that
    count, log-spaced edges, y in counts.
    """
    rows: list[tuple[str, Floats, Floats]] = []
    if len(r):
        zero = span.t0 if span else int(r.ints("issued_ns").min())
        edges_ns = _time_edges(r)
        edges_s = (edges_ns - zero) / 1e9
        width = np.diff(edges_s)
        tokens = np.histogram(r.chunk_ns, edges_ns, weights=tokens_per_fragment(r) * r.ok[r.owner()])[0]
        rows += [
            ("tokens_per_s", edges_s, tokens / width),
            ("in_flight", edges_s, _in_flight(r, edges_ns)),
            ("issued", edges_s, np.histogram(r.ints("issued_ns"), edges_ns)[0].astype(float)),
            ("finished", edges_s, np.histogram(r.ints("ended_ns"), edges_ns)[0].astype(float)),
        ]
    good = keep & r.ok
    samples = {
        "ttft_ms": ttft_ms(r)[good],
        "tpot_ms": tpot_ms(r)[good],
        "chunk_interval_ms": chunk_interval_ms(r, good),
    }
    for name, sample in samples.items():
        values = sample[np.isfinite(sample)]
        if len(values):
            edges = _log_edges(values)
            rows.append((name, edges, np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0].astype(float)))
    return pa.table(
        {
            "series": pa.array([name for name, _, y in rows for _ in y], pa.string()),
            "x0": pa.array(_joined([x[:-1] for _, x, _ in rows])),
            "x1": pa.array(_joined([x[1:] for _, x, _ in rows])),
            "y": pa.array(_joined([y for _, _, y in rows])),
        },
        schema=SCHEMA,
    )


def _time_edges(r: Requests) -> Floats:
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
