"""Does `client_bound` mark a client that is starved of its core, and leave a healthy one alone?

The null server has core 1; the client has core 0, alone (healthy) or with programs beside it that do nothing but spin
(starved). Figures, not tests: on a machine that others use, a healthy client is starved as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

import uvloop

from endpoints.resources import descriptor_shortage, raise_descriptor_limit
from endpoints.simulator.null import NullOptions, NullProcess
from sweeps.selftest import Level, Programme, measure_level

PACE = NullOptions(ttft_ms=200, jitter_ms=200, chunk_ms=20, tokens=24)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="runs of each kind")
    parser.add_argument("--streams", type=int, default=2048, help="when starved")
    parser.add_argument("--healthy-streams", type=int, default=64)
    parser.add_argument("--spinners", type=int, default=1)
    parser.add_argument("--only", choices=("healthy", "starved"))
    a = parser.parse_args()
    kinds = {"healthy": (a.healthy_streams, 0), "starved": (a.streams, a.spinners)}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before the start")
    marks({kind: of for kind, of in kinds.items() if a.only in (None, kind)}, a.runs)


def client_bound(runs: int) -> None:
    """Rows of `make bench`: 64 streams, and 2,048 with a spinning neighbour on the client's core."""
    print("\nclient_bound, which is to mark a starved client and no healthy one:")
    marks({"healthy": (64, 0), "starved": (2048, 1)}, runs)


def marks(kinds: Mapping[str, tuple[int, int]], runs: int) -> None:
    """Of each kind (streams, spinners), so many runs, and how many of them the verdict marked."""
    most = raise_descriptor_limit()
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        sys.exit("this needs Linux and two cores")
    if shortage := descriptor_shortage(max(streams for streams, _ in kinds.values()), most):
        sys.exit(shortage)
    print("         streams  verdict  loop lag client lag   cpu  waited ttft error")
    for kind, (streams, spinners) in kinds.items():
        rows = [one(kind, streams, spinners) for _ in range(runs)]
        marked = sum(row.client_bound is not None for row in rows)
        print(f"{kind}: {marked} of {len(rows)} marked\n")


def one(kind: str, streams: int, spinners: int) -> Level:
    client, server = sorted(os.sched_getaffinity(0))[:2]
    with NullProcess(PACE) as null, spinning(spinners, client):
        os.sched_setaffinity(null.pid, {server})
        every = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {client})
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                row = runner.run(measure_level(null, Programme((streams,), PACE, 2), streams))
        finally:
            os.sched_setaffinity(0, every)
    print(
        f"{kind:8} {row.streams:7} {row.client_bound or '-':>8} {row.loop_lag_ms_p99 or 0:9.2f} "
        f"{row.client_lag_ms_p99 or 0:10.2f} {row.cpu_fraction or 0:5.0%} {row.cpu_wait_fraction or 0:7.0%} "
        f"{row.ttft_error or 0:+10.2%}",
        flush=True,
    )
    return row


@contextlib.contextmanager
def spinning(number: int, core: int) -> Iterator[None]:
    """So many processes that keep a core busy."""
    children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        for child in children:
            os.sched_setaffinity(child.pid, {core})
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


if __name__ == "__main__":
    main()
