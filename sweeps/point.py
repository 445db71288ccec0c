"""From a point's requests to `point.json`: one pure function over what was asked, what was stored and what was seen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from sweeps.evidence import Evidence, evidence_of
from sweeps.frontier import is_valid
from sweeps.intervals import block_bins, point_intervals
from sweeps.load import LoadPlan, Window
from sweeps.metrics import METRICS_VERSION, Mask, Span, counts_of, point_metrics, to_see
from sweeps.requests import Floats, Requests
from sweeps.series import series_of, series_to_see
from sweeps.tallies import Bursts
from sweeps.verdicts import Context, Earlier, judge
from sweeps.watch import Observed

SCHEMA_VERSION = 1
FINISHED, INTERRUPTED = "finished", "interrupted"


@dataclass(frozen=True, slots=True)
class PointFacts:
    """What `point.json` says beside the numbers. `window` in ns from the origin; `client` as measured, ms."""

    arm: str
    plan: LoadPlan
    trial: int
    window: Window
    origin_unix_ns: int
    origin_monotonic_ns: int
    duration_s: float
    notes: tuple[str, ...]
    cut_short: str | None
    client: dict[str, Any]
    error_rate: float
    streamed: bool
    common_bytes: int
    draft_tokens: int | None
    prices: tuple[float, float] | None  # US dollars per input and per output token
    earlier: Earlier
    seed: int
    observed: Observed | None = None  # the server's counters, where it has any
    speculates: bool | None = None  # what the arm says of itself; None: nothing
    raw_prompts: bool = False  # sent without a chat template, or looking random
    synthetic: str | None = None  # how the server admits to made-up acceptance

    @property
    def span(self) -> Span | None:
        """The window, where it was both opened and shut."""
        t0, t1 = self.window.t0_ns, self.window.t1_ns
        return None if t0 is None or t1 is None else Span(t0, t1)


def point_json(r: Requests, facts: PointFacts) -> dict[str, Any]:
    """The whole of `point.json`, strict-JSON ready: every number finite, null where there is none."""
    return analysed(r, facts)[0]


def analysed(r: Requests, facts: PointFacts) -> tuple[dict[str, Any], pa.Table]:
    """`point.json` and the series of a point, from one pass over its fragments.

    Raises ValueError where the fragments were not all kept.
    """
    window = facts.window
    span, whole = facts.span, _whole(r)
    counted = r.counted
    keep = _latency_mask(r, facts.plan)
    inside, all_through, lines = to_see(r, span, keep), to_see(r, whole, r.ok), series_to_see(r, counted)
    bursts, blocks = Bursts(r), block_bins(r, span, keep & r.ok)
    found = [] if blocks is None else [blocks]
    r.tally(*inside.tallies, *all_through.tallies, *lines.tallies, bursts, *found)
    metrics = point_metrics(r, span, keep, inside)
    counts = counts_of(r, counted)
    client = facts.client | _client_times(r)
    evidence = evidence_of(r, bursts.bursts, facts.observed, facts.speculates)
    context = Context(
        requests=r,
        bursts=bursts.bursts,
        keep=counted,
        span=span,
        metrics=metrics,
        counts=counts,
        client=client,
        concurrency=facts.plan.concurrency,
        streamed=facts.streamed,
        emptying=_emptying(r, facts.plan, span),
        error_rate=facts.error_rate,
        common_bytes=facts.common_bytes,
        draft_tokens=facts.draft_tokens or _drafted_at_once(evidence),
        evidence=evidence,
        speculates=facts.speculates,
        raw_prompts=facts.raw_prompts,
        synthetic=facts.synthetic,
        cut_short=facts.cut_short,
        earlier=facts.earlier,
    )
    c = facts.plan.concurrency
    spent = _spent(r, facts.prices)
    point = {
        "schema_version": SCHEMA_VERSION,
        "metrics_version": METRICS_VERSION,
        "arm": facts.arm,
        "kind": "measure",
        "load": {"pattern": "closed", "concurrency": c, "rate": None},
        "concurrency": c,
        "trial": facts.trial,
        "status": INTERRUPTED if facts.cut_short else FINISHED,
        "basis": "window",
        "bases": {"window": metrics, "total": point_metrics(r, whole, r.ok, all_through)},
        "started_at": _utc(facts.origin_unix_ns),
        "origin_unix_ns": facts.origin_unix_ns,
        "origin_monotonic_ns": facts.origin_monotonic_ns,
        "duration_s": facts.duration_s,
        "window": {
            "t0_ns": window.t0_ns,
            "t1_ns": window.t1_ns,
            "seconds": span.seconds if span else None,
            "t0_reason": window.t0_reason,
            "t1_reason": window.t1_reason,
            "slot": window.slot,
            "notes": list(facts.notes),
        },
        "counts": counts,
        "counts_all": counts_of(r, r.counted | True) | {"by_phase": _by_phase(r)},
        **metrics,
        "intervals": point_intervals(r, span, keep, facts.seed, blocks),
        "speculation": evidence.as_json() | {"synthetic": facts.synthetic},
        "server": dict(evidence.server),
        "client": client,
        "spent": spent,
        "usd_per_million_output_tokens": _usd_per_million(spent),
        "verdicts": judge(context),
        "errors": _errors(r),
    }
    point["valid"] = is_valid(point)
    return point, series_of(r, span, counted, lines)


def _latency_mask(r: Requests, plan: LoadPlan) -> Mask:
    """Counted requests whose latencies count. Without filler the load thins out over the last C of N requests, which
    flatters them, so only the first N - C do (none where N <= C)."""
    if not plan.exact:
        return r.counted
    counted = r.counted.nonzero()[0]
    keep = r.counted & False
    keep[counted[: max(0, len(counted) - plan.concurrency)]] = True
    return keep


def _emptying(r: Requests, plan: LoadPlan, span: Span | None) -> float:
    """Share of the window after the last issue, where no filler keeps the load up."""
    if not plan.exact or span is None or span.t1 <= span.t0:
        return 0.0
    return max(0.0, (span.t1 - int(r.ints("issued_ns").max())) / (span.t1 - span.t0))


def _drafted_at_once(evidence: Evidence) -> int | None:
    """Draft tokens of a step as the counters show them, where the arm does not declare its speculation."""
    most = evidence.most_per_step
    return most - 1 if most else None


def _whole(r: Requests) -> Span | None:
    """From the first issue to the last end of a request that was not cancelled."""
    if len(r) == 0:
        return None
    ended = r.ints("ended_ns")[r.texts("outcome") != "cancelled"]
    return Span(int(r.ints("issued_ns").min()), int(ended.max())) if len(ended) else None


def _client_times(r: Requests) -> dict[str, Any]:
    """What the client adds before `sent`, p99 in ms: `client_lag` = (issued - due) + (sent - connected), to which on a
    reused connection, where nothing had to be connected, belongs (connected - issued) as well: a hop to a worker, say.
    `connect` = connecting, TLS included (no reused connections in it)."""
    sent, connected, issued = r.ints("sent_ns"), r.ints("connected_ns"), r.ints("issued_ns")
    use = (sent >= 0) & (connected >= 0) & r.counted
    reused = r.flags("reused") & (r.ints("attempts") == 1)
    lag = ((issued - r.ints("due_ns")) + (sent - connected) + (connected - issued) * reused)[use] / 1e6
    connect = (connected - issued)[use & ~reused] / 1e6
    return {"client_lag_ms_p99": _p99(lag), "connect_ms_p99": _p99(connect)}


def _p99(values: Floats) -> float | None:
    return float(np.percentile(values, 99, method="lower")) if len(values) else None


def _by_phase(r: Requests) -> dict[str, int]:
    phases = r.texts("phase")
    return {phase: int((phases == phase).sum()) for phase in ("warmup", "measure", "filler")}


def _spent(r: Requests, prices: tuple[float, float] | None) -> dict[str, Any]:
    """Everything this point cost, warmup, filler and failures included, as far as the server said."""
    given, made = r.ints("input_tokens"), r.ints("output_tokens")
    inputs, outputs = int(given[given > 0].sum()), int(made[made > 0].sum())
    usd = None if prices is None else inputs * prices[0] + outputs * prices[1]
    return {"requests": len(r), "input_tokens": inputs, "output_tokens": outputs, "usd": usd}


def _usd_per_million(spent: dict[str, Any]) -> float | None:
    """All that was paid, input included, per million output tokens."""
    if spent["usd"] is None or not spent["output_tokens"]:
        return None
    return float(spent["usd"] / spent["output_tokens"] * 1e6)


def _errors(r: Requests) -> list[dict[str, Any]]:
    """Each class of failure of any phase, with its count and first example."""
    found: dict[str, dict[str, Any]] = {}
    for outcome, error in zip(r.texts("outcome")[~r.ok], r.texts("error")[~r.ok], strict=True):
        if outcome == "cancelled":
            continue
        entry = found.setdefault(str(outcome), {"outcome": str(outcome), "count": 0, "example": error})
        entry["count"] += 1
    return list(found.values())


def _utc(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
