"""What the tool itself says about a point's trustworthiness: what was seen, against which threshold, what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from sweeps.verdicts import load, speculation, stream, tokens
from sweeps.verdicts.frame import INVALID, WARN, Context, Earlier, Verdict
from sweeps.verdicts.load import backends_of

__all__ = ["INVALID", "WARN", "Context", "Earlier", "Verdict", "backends_of", "judge"]

_RULES: tuple[Callable[[Context], Verdict | None], ...] = (
    load.interrupted,
    load.errors,
    load.too_few,
    stream.not_streamed,
    load.rate_limited,
    stream.client_bound,
    stream.buffered,
    load.cache_hits,
    load.server_capped,
    load.drifting,
    load.emptying,
    tokens.osl_mismatch,
    tokens.hidden_tokens,
    stream.dropped_events,
    tokens.mixed_tokens,
    tokens.estimated_tokens,
    tokens.tpot_bias,
    load.lockstep,
    load.reused_prompts,
    load.backend_changed,
    speculation.not_speculating,
    speculation.unexpected_speculation,
    speculation.implausible_acceptance,
    speculation.synthetic_acceptance,
    speculation.foreign_traffic,
    speculation.counters_broken,
)


def judge(context: Context) -> list[dict[str, Any]]:
    """All verdicts on one point, the invalidating ones first."""
    found = [verdict for rule in _RULES if (verdict := rule(context)) is not None]
    return [asdict(v) for v in sorted(found, key=lambda v: v.severity != INVALID)]
