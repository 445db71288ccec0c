"""What is happening, while it happens: a listener for the sweep's events that draws on stderr.

On a terminal: finished points as lines, below them one progress line. Elsewhere: one plain line a point's start and
finish. There is no drawing thread, for it would compete with the load loop; a redraw happens inside an event, at most
four times a second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reports.formats import clean, number, seconds
from reports.points import num, verdicts
from sweeps.events import (
    MEASURE,
    Event,
    Note,
    PointFinished,
    PointKey,
    PointProgress,
    PointSkipped,
    PointStarted,
    SweepFinished,
    SweepStarted,
)
from sweeps.frontier import is_valid

REDRAW_S = 0.25


class LiveView:
    """Call it with each event; use it as a context manager so that the terminal is left in order whatever happens."""

    def __init__(self, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = Console(file=file or sys.stderr, highlight=False)
        self._clock = clock
        fancy = self.console.is_terminal and not self.console.is_dumb_terminal
        self._live = (
            Live(console=self.console, auto_refresh=False, transient=True, redirect_stdout=False) if fancy else None
        )
        self._total = 0
        self._done = 0
        self._trials = False
        self._started_at: float | None = None
        self._spent: list[float] = []  # wall seconds of the points finished here
        self._progress: PointProgress | None = None
        self._drawn_at = float("-inf")

    def __enter__(self) -> LiveView:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the progress line away; harmless when called twice."""
        if self._live:
            self._live.update(Text(""), refresh=False)
            self._live.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case SweepStarted():
                self._total, self._done = len(event.points), event.already_done
                self._trials = any(p.trial > 1 for p in event.points)
                done = f", {event.already_done} already done" if event.already_done else ""
                self._say(f"{clean(event.name, 120)}: {self._total} points{done}, into {clean(event.folder, 1000)}")
            case Note():
                self._say(clean(event.text), "yellow" if event.severity == "warn" else "")
            case PointStarted():
                self._started_at, self._progress, self._total = self._clock(), None, event.total
                if not self._live:
                    self._say(f"{self._label(event.number, event.total, event.key)} ...")
            case PointProgress():
                self._progress = event
                self._draw()
                return
            case PointFinished():
                if self._started_at is not None:
                    self._spent.append(self._clock() - self._started_at)
                self._finish(event.number)
                style = "" if not verdicts(event.point) else "yellow" if is_valid(event.point) else "red"
                self._say(f"{self._label(event.number, event.total, event.key)} ... {outcome(event.point)}", style)
            case PointSkipped():
                self._finish(event.number)
                self._say(
                    f"{self._label(event.number, event.total, event.key)} skipped: {clean(event.reason)}", "yellow"
                )
            case SweepFinished():
                state = "interrupted" if event.interrupted else "finished"
                skipped = f", {event.skipped} skipped" if event.skipped else ""
                self._say(f"{state} after {seconds(event.seconds)}: {event.finished} points measured{skipped}")
                self.close()
                return
        self._draw(force=True)

    def _finish(self, number: int) -> None:
        self._done, self._started_at, self._progress = max(self._done, number), None, None

    def _label(self, number: int, total: int, key: PointKey) -> str:
        trial = f" trial {key.trial}" if self._trials else ""
        anchor = "" if key.kind == MEASURE else f" {clean(key.kind, 20)}"
        return f"[{number:>{len(str(total))}}/{total}] {clean(key.arm, 40)} C={key.concurrency}{trial}{anchor}"

    def _say(self, line: str, style: str = "") -> None:
        # Through a Text, so that brackets in foreign strings are not read as markup; unwrapped, so that a line stays
        # a line.
        self.console.print(Text(line, style=style), soft_wrap=True)

    def _draw(self, force: bool = False) -> None:
        now = self._clock()
        if not self._live or not self._total or (not force and now - self._drawn_at < REDRAW_S):
            return
        self._drawn_at = now
        self._live.update(self._progress_lines(), refresh=True)

    def _progress_lines(self) -> Group:
        done = min(self._total, self._done + self._fraction())
        row = Table.grid(padding=(0, 1))
        row.add_row(
            ProgressBar(total=self._total, completed=done, width=24),
            Text(f"{self._done}/{self._total}"),
            Text(f"about {seconds(self.eta())} left" if self.eta() is not None else "", style="dim"),
        )
        now = self._now()
        return Group(Text(now, no_wrap=True, overflow="ellipsis"), row) if now else Group(row)

    def _now(self) -> str:
        p = self._progress
        if p is None:
            return ""
        parts = [
            f"{clean(p.key.arm, 24)} C={p.key.concurrency} {clean(p.phase, 20)} {p.elapsed_s:.0f} s",
            f"{number(p.tokens_per_s)} tok/s" if p.tokens_per_s is not None else "",
            f"{p.in_flight} in flight",
            f"{p.counted}/{p.wanted} counted" if p.wanted else f"{p.counted} counted",
            f"{p.failed} failed" if p.failed else "",
        ]
        return ", ".join(part for part in parts if part)

    def _fraction(self) -> float:
        """How far the running point is: by its requests, else by the time that points took so far, 0 where unknown."""
        p = self._progress
        if p is None:
            return 0.0
        if p.wanted:
            return min(0.95, p.counted / p.wanted)
        return min(0.95, p.elapsed_s / self._mean()) if self._spent else 0.0

    def _mean(self) -> float:
        return max(1e-9, sum(self._spent) / len(self._spent))

    def eta(self) -> float | None:
        """Seconds left, from the mean of the points finished so far; None before the first."""
        if not self._spent or self._total <= self._done:
            return None
        elapsed = self._clock() - self._started_at if self._started_at is not None else 0.0
        return max(0.0, (self._total - self._done) * self._mean() - min(elapsed, self._mean()))


def outcome(point: Mapping[str, Any]) -> str:
    """'812 tok/s, 101 tok/s/user, ttft p90 83 ms, 40 ok', then failures and verdict codes."""
    failed = num(point, "counts", "failed") or 0
    parts = [
        f"{number(num(point, 'system_tps'))} tok/s",
        f"{number(num(point, 'tps_per_user'))} tok/s/user",
        f"ttft p90 {number(num(point, 'ttft_ms', 'p90'))} ms",
        f"{num(point, 'counts', 'completed') or 0:.0f} ok",
        f"{failed:.0f} failed" if failed else "",
    ]
    codes = ", ".join(dict.fromkeys(clean(v.get("code"), 40) for v in verdicts(point)))
    state = "" if is_valid(point) else "invalid" if codes else f"invalid: {clean(point.get('status'), 40)}"
    suffix = " ".join(x for x in (state, f"[{codes}]" if codes else "") if x)
    return ", ".join(p for p in parts if p) + (f"  {suffix}" if suffix else "")
