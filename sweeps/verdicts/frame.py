"""What a verdict is, and what it may look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeps.arrow import Ints
from sweeps.evidence import Evidence
from sweeps.metrics import Mask, Span
from sweeps.requests import Requests

WARN, INVALID = "warn", "invalid"


@dataclass(frozen=True, slots=True)
class Verdict:
    code: str
    severity: str
    evidence: str
    threshold: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Earlier:
    """What earlier points of the arm's run showed: (model, fingerprint) pairs, and how many sent prompts unsalted;
    `asked_unsalted`: so did the check for equal answers."""

    backends: frozenset[tuple[str, str]] = frozenset()
    unsalted_points: int = 0
    asked_unsalted: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """What a verdict may look at: the requests, which of them count, the point's metrics, and what was asked."""

    requests: Requests
    bursts: Ints  # of each request's fragments; 0 where they are too few to say
    keep: Mask
    span: Span | None
    metrics: Mapping[str, Any]
    counts: Mapping[str, Any]
    client: Mapping[str, Any]
    concurrency: int
    streamed: bool
    emptying: float  # share of the window in which slots had nothing more to send
    error_rate: float
    common_bytes: int  # of every prompt's start: the system prompt
    draft_tokens: int | None  # declared speculation; None: not declared
    evidence: Evidence
    speculates: bool | None  # what the arm says of itself; None: nothing
    raw_prompts: bool  # sent without a chat template, or looking random
    synthetic: str | None
    cut_short: str | None
    earlier: Earlier

    @property
    def good(self) -> Mask:
        return self.keep & self.requests.ok


def share(mask: Mask, of: Mask) -> float:
    return float(mask[of].mean()) if of.any() else 0.0
