"""Factories of plausible stored points: two arms whose curves cross between 8 and 16 users."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

LEVELS = (1, 2, 4, 8, 16, 32)
SPENT = {"requests": 64, "input_tokens": 64 * 210, "output_tokens": 64 * 128, "usd": None}


def tpot_ms(arm: str, concurrency: int) -> float:
    """Speculation is faster while the batch is small and slower when it is large: equal at C = 10.6."""
    return 5.0 + 0.25 * concurrency if arm == "off" else 3.2 + 0.42 * concurrency


def make_point(
    arm: str = "off", concurrency: int = 8, trial: int = 1, *, width: float | None = 0.03, **changes: Any
) -> dict[str, Any]:
    """One point.json. `width`: half width of the intervals, relative; None for unknown intervals."""
    tpot = tpot_ms(arm, concurrency)
    user = 1000 / tpot * (1 + 0.004 * (trial - 1))
    system = concurrency * 1000 / tpot * 0.93 * (1 + 0.004 * (trial - 1))
    ttft = 20 + 4.0 * concurrency
    done = 40

    def quantiles(p50: float, spread: float) -> dict[str, Any]:
        return {
            "mean": p50 * (1 + spread / 3),
            "p50": p50,
            "p90": p50 * (1 + spread),
            "p95": p50 * (1 + 1.3 * spread),
            "p99": p50 * (1 + 2 * spread),
            "n": done,
        }

    def interval(value: float) -> dict[str, Any]:
        if width is None:
            return {
                "low": None,
                "high": None,
                "level": 0.95,
                "method": None,
                "n": 12,
                "scope": "within_run",
                "reason": "a p90 needs 36 samples, this point has 12",
            }
        return {
            "low": value * (1 - width),
            "high": value * (1 + width),
            "level": 0.95,
            "method": "block_bootstrap",
            "n": 24,
            "scope": "within_run",
        }

    ttfts = quantiles(ttft, 0.4)
    flat: dict[str, Any] = {
        "duration_s": 12.3,
        "counts": {"issued": done, "completed": done, "failed": 0, "by_outcome": {"ok": done}},
        "system_tps": system,
        "tps_per_user": user,
        "peak_tps": system * 1.12,
        "ttft_ms": ttfts,
        "ttft_visible_ms": ttfts,
        "tpot_ms": quantiles(tpot * 0.95, 1 / 0.95 - 1),
        "e2e_latency_ms": quantiles(ttft + 127 * tpot, 0.1),
        "chunk_interval_ms": quantiles(tpot, 0.3),
        "input_tokens": {"mean": 210.0, "total": 210 * done},
        "output_tokens": {"mean": 128.0, "total": 128 * done},
        "requested_tokens": {"mean": 128.0},
        "request_rate": system / 128,
        "in_flight": {"mean": concurrency * 0.99, "max": concurrency},
    }
    point: dict[str, Any] = {
        "schema_version": 1,
        "arm": arm,
        "kind": "measure",
        "load": {"pattern": "closed", "concurrency": concurrency, "rate": None},
        "concurrency": concurrency,
        "trial": trial,
        "status": "finished",
        "basis": "window",
        "bases": {"window": flat, "total": flat},
        "started_at": "2026-11-30T11:20:31.123Z",
        "origin_unix_ns": 1_796_037_631_123_000_000,
        "origin_monotonic_ns": 0,
        "window": {
            "t0_ns": 1_000_000_000,
            "t1_ns": 13_300_000_000,
            "seconds": 12.3,
            "t0_reason": "every slot finished a warmup request",
            "t1_reason": "the slot that set t0 finished a request",
            "slot": 3 % concurrency,
        },
        **flat,
        "counts_all": {
            "issued": 64,
            "completed": 64,
            "failed": 0,
            "by_outcome": {"ok": 64},
            "by_phase": {"warmup": 16, "measure": 40, "filler": 8},
        },
        "token_source": "usage",
        "tokens_per_chunk": {"mean": 1.0, "p50": 1.0, "p90": 1.0, "max": 1.0},
        "finish_reasons": {"length": done},
        "intervals": {
            "system_tps": interval(system),
            "tps_per_user": interval(user),
            "ttft_ms_p50": interval(ttfts["p50"]),
            "ttft_ms_p90": interval(ttfts["p90"]),
        },
        "speculation": {
            "acceptance_length": 2.4 if arm == "on" else None,
            "acceptance_rate": 0.47 if arm == "on" else None,
            "tokens_per_step": 2.3 if arm == "on" else None,
            "source": "metrics" if arm == "on" else "none",
            "reason": None if arm == "on" else "the server counts no drafts",
        },
        "client": {
            "client_lag_ms_p99": 0.4,
            "connect_ms_p99": 0.0,
            "loop_lag_ms_p99": 0.7,
            "cpu_fraction": 0.2,
            "workers": 1,
            "transport": "aiohttp",
        },
        "spent": SPENT,
        "verdicts": [],
        "errors": [],
    }
    return point | changes


def make_points(
    levels: tuple[int, ...] = LEVELS, arms: tuple[str, ...] = ("off", "on"), **kw: Any
) -> list[dict[str, Any]]:
    return [make_point(arm, c, **kw) for arm in arms for c in levels]


def null_point(arm: str = "off", concurrency: int = 8) -> dict[str, Any]:
    """Every request failed: nothing could be computed."""

    def blank(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: blank(v) for k, v in value.items()}
        return None

    full = make_point(arm, concurrency)
    kept = ("schema_version", "arm", "kind", "load", "concurrency", "trial", "status", "basis", "started_at")
    point = {k: full[k] if k in kept else blank(v) for k, v in full.items()}
    point["counts"] = {"issued": 40, "completed": 0, "failed": 40, "by_outcome": {"http_5xx": 40}}
    point["ttft_ms"]["n"] = 0
    point["intervals"] = {}
    point["verdicts"] = [
        {
            "code": "errors",
            "severity": "invalid",
            "evidence": "40 of 40 requests failed",
            "threshold": "1 %",
            "remedy": "look at the server's log",
        }
    ]
    point["errors"] = [{"outcome": "http_5xx", "count": 40, "example": "HTTP 503: overloaded"}]
    return point


def make_series(arm: str = "off", concurrency: int = 8) -> list[tuple[str, float, float, float]]:
    """Rows (series, x0, x1, y) of one point's series.parquet."""
    system = concurrency * 1000 / tpot_ms(arm, concurrency) * 0.93
    rows: list[tuple[str, float, float, float]] = []
    for second in range(12):
        wobble = 1 + 0.06 * math.sin(1.7 * second + concurrency)
        rows.append(("tokens_per_s", second, second + 1, system * wobble))
        rows.append(("in_flight", second, second + 1, float(concurrency)))
        rows.append(("issued", second, second + 1, system * wobble / 128))
        rows.append(("finished", second, second + 1, system * wobble / 128))
    for name, centre in (
        ("ttft_ms", 20 + 4.0 * concurrency),
        ("tpot_ms", tpot_ms(arm, concurrency)),
        ("chunk_interval_ms", 5.0),
    ):
        for k in range(-6, 9):
            rows.append(
                (name, centre * (1 + k / 12), centre * (1 + (k + 1) / 12), round(9 * math.exp(-((k / 3) ** 2))))
            )
    return rows


def make_manifest(**changes: Any) -> dict[str, Any]:
    arm = {
        "slug": "off",
        "url": "http://127.0.0.1:8000/v1",
        "model": "demo-8b",
        "api": "chat",
        "speculation": None,
        "probe": {"findings": [{"what": "usage in the stream", "seen": "stated", "effect": "counted"}]},
    }
    speculation = {"method": "eagle3", "drafter": "org/drafter", "draft_tokens": 3}
    return {
        "schema_version": 1,
        "name": "demo speculation",
        "created_at": "2026-11-30T11:20:00Z",
        "tool": {"name": "endsweep", "version": "0.1.0"},
        "python": "3.11.7",
        "libraries": {"aiohttp": "3.13.2", "numpy": "2.4.6"},
        "host": {"platform": "Linux-6.1", "cpus": 2, "machine": "x86_64"},
        "git_commit": "0123456789abcdef0123456789abcdef01234567",
        "seed": 7,
        "arms": {"off": arm, "on": arm | {"slug": "on", "url": "http://127.0.0.1:8001/v1", "speculation": speculation}},
        "workload": {
            "name": "chat-mixed",
            "hash": "c0ffee1234",
            "prompts": 64,
            "categories": {"chat": 40, "code": 24},
            "max_tokens": 128,
            "salt": True,
            "sampling": {"temperature": 0.0},
        },
        "load": {"levels": list(LEVELS), "seconds": 10, "requests": 36, "exact": False, "warmup": "auto", "trials": 1},
        "limits": {"minutes": 10, "tokens": None, "usd": None, "error_rate": 0.01},
        "comparable": {"workload.max_tokens": 128},
        "fingerprints": {"comparable": "aa11", "plan": "bb22"},
    } | changes


def event(name: str, **fields: Any) -> dict[str, Any]:
    return {"schema_version": 1, "time": "2026-11-30T11:20:30Z", "event": name} | fields


def write_run(
    folder: Path,
    points: list[dict[str, Any]],
    *,
    manifest: dict[str, Any] | None = None,
    journal: list[dict[str, Any]] | None = None,
    series: bool = True,
) -> Path:
    """A stored run as the sweep leaves it."""
    import pandas as pd

    manifest = make_manifest() if manifest is None else manifest
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    lines = [event("run_started")]
    for point in points:
        arm, c, trial = point["arm"], point["concurrency"], point["trial"]
        slug = manifest["arms"][arm]["slug"]
        home = folder / "points" / slug / f"c{c:05d}-t{trial}"
        home.mkdir(parents=True)
        (home / "point.json").write_text(json.dumps(point))
        if series:
            frame = pd.DataFrame(make_series(arm, c), columns=["series", "x0", "x1", "y"])
            frame.to_parquet(home / "series.parquet")
        lines.append(event("point_started", arm=arm, concurrency=c, trial=trial))
        lines.append(event("point_finished", arm=arm, concurrency=c, trial=trial, spent=SPENT))
    lines.append(event("run_finished"))
    lines = lines if journal is None else journal
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The factories above, by short names."""
    return SimpleNamespace(
        point=make_point,
        points=make_points,
        null_point=null_point,
        series=make_series,
        manifest=make_manifest,
        event=event,
        run=write_run,
    )
