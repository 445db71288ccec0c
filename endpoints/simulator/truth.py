"""What the endpoint truly did, kept as it happens, for whoever measures it. Times are CLOCK_MONOTONIC, ns."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, deque
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

KEPT_REQUESTS = 200_000
KEPT_CHANGES = 4_000_000  # token writes, and changes of the number in flight: 16 bytes each

Outcome = Literal["running", "completed", "cancelled", "failed"]


class History:
    """A quantity that changes at certain times; the older half is forgotten when there are too many changes."""

    def __init__(self, ns: int, value: int, most: int):
        self._most = most
        self.ns, self.value = array("q", [ns]), array("q", [value])

    def append(self, ns: int, value: int) -> None:
        self.ns.append(ns)
        self.value.append(value)
        if len(self.ns) > self._most:
            half = self._most // 2
            del self.ns[:half], self.value[:half]

    def at(self, ns: int) -> int | None:
        """The value at a time; None before what is remembered."""
        i = bisect_right(self.ns, ns)
        return self.value[i - 1] if i else None

    def mean(self, from_ns: int, to_ns: int) -> float | None:
        """Time-weighted mean over the span; None if it is empty or begins before what is remembered."""
        before, until = bisect_right(self.ns, from_ns), bisect_right(self.ns, to_ns)
        if not before or to_ns <= from_ns:
            return None
        edges = np.array([from_ns, *self.ns[before:until], to_ns], np.int64)
        values = np.array(self.value[before - 1 : until], np.int64)
        return float(np.diff(edges) @ values) / (to_ns - from_ns)


@dataclass(slots=True)
class Served:
    """One request. `received_ns`: fully read; `first_token_ns`, `last_token_ns`: just after the write had returned;
    `chunks`: events that carried text (1 for an answer in one piece)."""

    id: int
    received_ns: int
    prompt_tokens: int = 0
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    tokens: int = 0
    chunks: int = 0
    outcome: Outcome = "running"


class Truth:
    def __init__(self, now_ns: int, kept_requests: int = KEPT_REQUESTS, kept_changes: int = KEPT_CHANGES):
        self._kept = kept_requests, kept_changes
        self._next_id = 0
        self._in_flight = 0
        self.reset(now_ns)

    def reset(self, now_ns: int) -> None:
        """Forget what has been; what is in flight stays in flight, its tokens from now on count."""
        requests, changes = self._kept
        self._since_ns = now_ns
        self._requests: deque[Served] = deque(maxlen=requests)
        self._counts = Counter({"received": 0, "completed": 0, "cancelled": 0, "failed": 0})
        self._tokens = 0
        self._written = History(now_ns, 0, changes)
        self._level = History(now_ns, self._in_flight, changes)
        self._most = self._in_flight

    def receive(self, now_ns: int) -> Served:
        served = Served(self._next_id, now_ns)
        self._next_id += 1
        self._requests.append(served)
        self._counts["received"] += 1
        self._move(now_ns, 1)
        return served

    def wrote(self, served: Served, now_ns: int, tokens: int, chunks: int) -> None:
        if served.first_token_ns is None:
            served.first_token_ns = now_ns
        served.last_token_ns = now_ns
        served.tokens += tokens
        served.chunks += chunks
        self._tokens += tokens
        self._written.append(now_ns, self._tokens)

    def end(self, served: Served, now_ns: int, outcome: Outcome) -> None:
        served.outcome = outcome
        self._counts[outcome] += 1
        self._move(now_ns, -1)

    def report(self, now_ns: int, from_ns: int | None = None, to_ns: int | None = None) -> dict[str, Any]:
        """All of it, or with a span (from, to]: the requests received in it, and what was written and in flight in it.

        A span reaches to now at most. What belongs to a span is null where it begins before what is remembered.
        """
        report: dict[str, Any] = {
            "since_ns": self._since_ns,
            "in_flight": {"now": self._in_flight, "max": self._most},
            "counts": dict(self._counts),
            "tokens_written": self._tokens,
        }
        begin = self._since_ns if from_ns is None else from_ns
        end = now_ns if to_ns is None else min(to_ns, now_ns)
        chosen = list(self._requests)
        if from_ns is not None or to_ns is not None:
            before, until = self._written.at(begin), self._written.at(end)
            report["span"] = {"from_ns": begin, "to_ns": end}
            report["tokens_in_span"] = None if before is None or until is None else max(0, until - before)
            report["in_flight_mean_in_span"] = self._level.mean(begin, end)
            chosen = [r for r in chosen if begin < r.received_ns <= end]
        report["requests"] = [asdict(r) for r in chosen]
        return report

    def _move(self, now_ns: int, by: int) -> None:
        self._in_flight += by
        self._most = max(self._most, self._in_flight)
        self._level.append(now_ns, self._in_flight)
