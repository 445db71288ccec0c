"""What a running sweep tells whoever listens (terminal, live view): plain data, no behaviour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MEASURE, ANCHOR = "measure", "anchor"


@dataclass(frozen=True, slots=True)
class PointKey:
    """Which measurement: one arm, one load, one trial. `kind`: "measure", or "anchor", which is on no curve."""

    arm: str
    concurrency: int
    trial: int
    kind: str = "measure"

    @property
    def folder(self) -> str:
        """The name of its folder below the arm's: `c00064-t1`, `anchor-c00064-t1`."""
        return f"{self._prefix}c{self.concurrency:05d}-t{self.trial}"

    @property
    def load(self) -> str:
        """What its salts are made of beside arm, trial and seed, so that an anchor repeats no request."""
        return f"{self._prefix}c{self.concurrency}"

    @property
    def _prefix(self) -> str:
        return "" if self.kind == MEASURE else f"{self.kind}-"


@dataclass(frozen=True, slots=True)
class SweepStarted:
    name: str
    folder: str
    points: tuple[PointKey, ...]
    already_done: int


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence worth a line: a decision, a warning before the start."""

    text: str
    severity: str = "info"  # info | warn


@dataclass(frozen=True, slots=True)
class PointStarted:
    key: PointKey
    number: int  # from 1, in run order
    total: int


@dataclass(frozen=True, slots=True)
class PointProgress:
    """Sent a few times a second while a point runs."""

    key: PointKey
    phase: str  # warmup | measure | drain
    elapsed_s: float
    in_flight: int
    counted: int  # counted requests ended so far
    wanted: int | None  # counted requests asked for, when the point ends by requests
    failed: int
    tokens_per_s: float | None  # over the last second or so; None before the first token


@dataclass(frozen=True, slots=True)
class PointFinished:
    key: PointKey
    number: int
    total: int
    point: dict[str, Any]  # point.json


@dataclass(frozen=True, slots=True)
class PointSkipped:
    key: PointKey
    number: int
    total: int
    reason: str


@dataclass(frozen=True, slots=True)
class SweepFinished:
    folder: str
    finished: int  # measured now, without those that were stored before
    skipped: int
    interrupted: bool
    seconds: float


Event = SweepStarted | Note | PointStarted | PointProgress | PointFinished | PointSkipped | SweepFinished
Listener = Callable[[Event], None]
