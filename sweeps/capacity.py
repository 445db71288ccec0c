"""How many client processes a point needs, and what is said when the machine has too few."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sweeps.plan import ASSUMED_TPS

UNMEASURED_STREAMS = 256  # more than this without a selftest, and one is suggested


@dataclass(frozen=True, slots=True)
class Capacity:
    """Chunks a second that one client process carries without a material error, and how that is known."""

    chunks_per_s: float
    measured: bool

    def __str__(self) -> str:
        how = "endsweep selftest" if self.measured else "assumed"
        return f"{self.chunks_per_s:,.0f} chunks/s a process ({how})"


ASSUMED = Capacity(20_000.0, measured=False)


@dataclass(frozen=True, slots=True)
class Crew:
    """How many processes carry a point, and why."""

    workers: int
    wanted: int  # what the load needs, whatever the machine has
    chunks_per_s: float  # expected

    @property
    def short(self) -> bool:
        return self.workers < self.wanted


def crew_for(
    concurrency: int,
    chunks_per_stream: float | None,
    asked: int | None,
    capacity: Capacity,
    *,
    cores: int,
    local: bool,
) -> Crew:
    """The workers of a point. One is this process itself; more only where the load needs them and cores are there.

    `chunks_per_stream`: chunks a second of one stream, as the arm's last point had them (None: not known yet).
    `asked`: a number the user named, which is taken as it is. `local`: the endpoint shares this machine's cores, and
    is left one of them.
    """
    expected = concurrency * (chunks_per_stream or ASSUMED_TPS)
    wanted = max(1, min(concurrency, math.ceil(expected / capacity.chunks_per_s)))
    if asked is not None:
        return Crew(min(asked, concurrency), wanted, expected)
    return Crew(min(wanted, room(cores, local=local)), wanted, expected)


def room(cores: int, *, local: bool) -> int:
    """Client processes that find a core of their own."""
    return max(1, cores - local)


def warning_for(highest: int, asked: int | None, capacity: Capacity | None, *, cores: int, local: bool) -> str | None:
    """One sentence before a run whose highest level may be beyond this machine's client. `capacity`: None without a
    selftest."""
    if capacity is None:
        if highest <= UNMEASURED_STREAMS:
            return None
        return (
            f"what this machine's client can carry has not been measured, and concurrency {highest} is a lot: "
            "`endsweep selftest` tells in under a minute"
        )
    crew = crew_for(highest, None, asked, capacity, cores=cores, local=local)
    if crew.workers * capacity.chunks_per_s >= crew.chunks_per_s:
        return None
    processes = "one process" if crew.workers == 1 else f"{crew.workers} processes"
    return (
        f"concurrency {highest} may mean {crew.chunks_per_s:,.0f} chunks/s (at {ASSUMED_TPS:g} a stream), and by "
        f"`endsweep selftest` {processes} of this machine's client can carry "
        f"{crew.workers * capacity.chunks_per_s:,.0f}: points beyond that will be marked client_bound"
    )
