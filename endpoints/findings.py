"""What looking at an endpoint brings: findings, refusals, what it cost, and the shape that its requests must have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from endpoints.dialects import RequestShape
from profiles.errors import printable

_LONGEST = 600  # characters of what a server says that are kept

Say = Callable[[str], None]
"""Takes a sentence for whoever waits."""


class PreflightError(Exception):
    """The endpoint cannot be measured as asked; the text is one sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`what` was looked at, what was `seen`, and its `effect` on a run."""

    what: str
    seen: str
    effect: str


@dataclass(slots=True)
class Cost:
    """What the look itself took: requests for replies, pages read (GET), and tokens (estimated where not stated)."""

    requests: int = 0
    pages: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(slots=True)
class Probed:
    """What a probe found. `shape`: how requests must be put for this endpoint; `models`: None where none are listed.

    `profile`: what the endpoint's profile should say beyond what was asked. `address`: whom the connection led to.
    """

    shape: RequestShape
    models: list[str] | None = None
    round_trip_ms: float | None = None
    server: str | None = None
    address: str | None = None
    waited_s: float = 0.0
    cost: Cost = field(default_factory=Cost)
    profile: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    metrics_url: tuple[str, ...] = ()  # pages with counters that are known
    synthetic: str | None = None  # how the server says that it accepts drafts by a rule
    scrub: Callable[[str], str] = str

    def add(self, what: str, seen: str, effect: str) -> None:
        """Take a finding down, without whatever secret a server may have echoed into it."""
        self.findings.append(Finding(what, self._clean(seen), self._clean(effect)))

    def refuse(self, said: str | None) -> None:
        """Take down what a server said in refusing a request."""
        self.refusals.append(self._clean(said or "no reason was given"))

    def _clean(self, text: str) -> str:
        clean = printable(self.scrub(text))
        return clean if len(clean) <= _LONGEST else clean[:_LONGEST] + "…"


def as_json(found: Probed) -> dict[str, Any]:
    """Findings as programs read them."""
    cost = found.cost
    return {
        "findings": [{"what": f.what, "seen": f.seen, "effect": f.effect} for f in found.findings],
        "refusals": found.refusals,
        "round_trip_ms": found.round_trip_ms,
        "address": found.address,
        "metrics_url": list(found.metrics_url),
        "synthetic": found.synthetic,
        "cost": {
            "requests": cost.requests,
            "pages": cost.pages,
            "input_tokens": cost.input_tokens,
            "output_tokens": cost.output_tokens,
        },
    }
