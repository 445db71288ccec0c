"""points.csv: one row a point, flat columns in snake_case whose names carry their unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from reports.formats import clean
from reports.points import get, usd_per_million_output, verdicts
from sweeps.frontier import is_valid

QUANTILES = ("mean", "p50", "p90", "p95", "p99")

# CSV column -> path inside point.json.
PATHS: dict[str, tuple[str, ...]] = {
    "arm": ("arm",),
    "kind": ("kind",),
    "pattern": ("load", "pattern"),
    "concurrency": ("concurrency",),
    "rate_per_s": ("load", "rate"),
    "trial": ("trial",),
    "status": ("status",),
    "basis": ("basis",),
    "started_at": ("started_at",),
    "duration_s": ("duration_s",),
    "window_s": ("window", "seconds"),
    "requests_issued": ("counts", "issued"),
    "requests_completed": ("counts", "completed"),
    "requests_failed": ("counts", "failed"),
    "system_tps": ("system_tps",),
    "system_tps_low": ("intervals", "system_tps", "low"),
    "system_tps_high": ("intervals", "system_tps", "high"),
    "peak_tps": ("peak_tps",),
    "tps_per_user": ("tps_per_user",),
    "tps_per_user_low": ("intervals", "tps_per_user", "low"),
    "tps_per_user_high": ("intervals", "tps_per_user", "high"),
    **{
        f"{metric}_{q}": (metric, q)
        for metric in ("ttft_ms", "ttft_visible_ms", "tpot_ms", "e2e_latency_ms", "chunk_interval_ms")
        for q in QUANTILES
    },
    "input_tokens_mean": ("input_tokens", "mean"),
    "input_tokens_total": ("input_tokens", "total"),
    "output_tokens_mean": ("output_tokens", "mean"),
    "output_tokens_total": ("output_tokens", "total"),
    "token_source": ("token_source",),
    "tokens_per_chunk_mean": ("tokens_per_chunk", "mean"),
    "request_rate_per_s": ("request_rate",),
    "in_flight_mean": ("in_flight", "mean"),
    "in_flight_max": ("in_flight", "max"),
    "acceptance_length": ("speculation", "acceptance_length"),
    "acceptance_rate": ("speculation", "acceptance_rate"),
    "tokens_per_step": ("speculation", "tokens_per_step"),
    "client_lag_ms_p99": ("client", "client_lag_ms_p99"),
    "loop_lag_ms_p99": ("client", "loop_lag_ms_p99"),
    "spent_requests": ("spent", "requests"),
    "spent_input_tokens": ("spent", "input_tokens"),
    "spent_output_tokens": ("spent", "output_tokens"),
    "spent_usd": ("spent", "usd"),
}


def points_frame(summary: Mapping[str, Any]) -> pd.DataFrame:
    """One row a point in the summary's order; unknown numbers are missing. Columns: PATHS, then the four computed
    ones."""
    rows = []
    for point in summary["points"]:
        row = {column: _plain(get(point, *path)) for column, path in PATHS.items()}
        row["usd_per_million_output_tokens"] = usd_per_million_output(point)
        row["valid"] = is_valid(point)
        row["verdicts"] = " ".join(clean(v.get("code"), 60) for v in verdicts(point))
        row["verdict_severities"] = " ".join(clean(v.get("severity"), 20) for v in verdicts(point))
        rows.append(row)
    columns = [*PATHS, "usd_per_million_output_tokens", "valid", "verdicts", "verdict_severities"]
    # Objects, so that counts stay whole numbers beside missing ones.
    return pd.DataFrame(rows, columns=columns, dtype=object)


def points_csv(summary: Mapping[str, Any]) -> str:
    return str(points_frame(summary).to_csv(index=False, lineterminator="\n"))


def _plain(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = clean(value, 200)
    # A cell that starts like a formula is run by spreadsheets; an apostrophe makes it text.
    return f"'{text}" if text[:1] in "=+-@" else text
