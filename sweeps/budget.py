"""The sweep's ceilings on time, tokens and money: asked before each point and before each request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from endpoints.transport import Call, Exchange
from profiles.models import Limits
from sweeps.load import Sent
from sweeps.plan import PlannedCheck, PlannedPoint


@dataclass(slots=True)
class Budget:
    """What may be spent, and what was. A request whose usage is not stated counts as it was asked: limits protect."""

    limits: Limits
    tokens: int = 0
    usd: float = 0.0
    now: Callable[[], float] = time.monotonic
    began: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.now()

    def spend(self, sent: Sent, prices: tuple[float, float] | None) -> None:
        """Count one ended request of a point."""
        self.count(sent.planned.call, sent.exchange, prices)

    def count(self, call: Call, exchange: Exchange, prices: tuple[float, float] | None) -> None:
        """Count one ended request."""
        if exchange.sent_ns is None:
            return  # never left this machine
        if exchange.status is not None and not 200 <= exchange.status < 300:
            return  # refused requests are not billed
        given = exchange.input_tokens if exchange.input_tokens is not None else call.prompt_bytes // 4
        made = exchange.output_tokens if exchange.output_tokens is not None else call.requested_tokens
        self.tokens += given + made
        if prices is not None:
            self.usd += given * prices[0] + made * prices[1]

    def spent_before(self, spent: Mapping[str, Any]) -> None:
        """Take over what a point of a resumed run spent (`spent` of its point.json)."""
        self.tokens += spent["input_tokens"] + spent["output_tokens"]
        self.usd += spent["usd"] or 0.0

    def used_up(self) -> str | None:
        """One sentence when a ceiling is reached, else None."""
        limits = self.limits
        minutes = (self.now() - self.began) / 60
        if limits.minutes is not None and minutes >= limits.minutes:
            return f"the limit of {limits.minutes:g} minutes is used up"
        if limits.tokens is not None and self.tokens >= limits.tokens:
            return f"the limit of {limits.tokens:,} tokens is used up"
        if limits.usd is not None and self.usd >= limits.usd:
            return f"the limit of {limits.usd:.2f} USD is used up"
        return None

    def seconds_left(self) -> float:
        """Until the limit of minutes; infinite without one."""
        limit = self.limits.minutes
        return math.inf if limit is None else max(0.0, 60 * limit - (self.now() - self.began))

    def cannot_afford(self, point: PlannedPoint | PlannedCheck) -> str | None:
        """One sentence when the estimate does not fit into what is left of tokens or money, else None."""
        if why := self.used_up():
            return why
        limits, tokens = self.limits, point.input_tokens + point.output_tokens
        if limits.tokens is not None and self.tokens + tokens > limits.tokens:
            return f"it would take about {tokens:,} tokens, and {limits.tokens - self.tokens:,} of the limit are left"
        if limits.usd is not None and point.usd is not None and self.usd + point.usd > limits.usd:
            return f"it would cost about {point.usd:.2f} USD, and {limits.usd - self.usd:.2f} of the limit are left"
        return None
