"""`make bench`: what the client costs, beside the least that it can cost, and how exact it is against known truth.

Figures, not tests: this machine may be shared. Each row is the median of several runs, beside its spread; runs of what
is compared take turns, so that ratios hold though the machine is busy. The client has one core, the server another.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import analysis, client_bound, embedded, wire
from benchmarks.rig import Bystanders, Truth

WIRE: dict[str, Callable[[Truth, int], None]] = {
    "chunks": wire.chunks,
    "requests": wire.requests,
    "burst": wire.burst,
    "exactness": wire.exactness,
    "memory": wire.memory,
    "startup": wire.startup,
    "answer": wire.answer,
}
OTHERS: dict[str, Callable[[int], None]] = {
    "sweeps": embedded.sweeps,
    "virtual": lambda runs: embedded.virtual_time(),
    "analysis": lambda runs: print(f"\nAnalysis: {analysis.measured(10_000_000)}"),
}
LONG: dict[str, Callable[[int], None]] = {  # many minutes each, so only by name
    "scale": lambda runs: analysis.scale(),
    "client_bound": client_bound.client_bound,
}
SHORT = {"exactness": 3, "memory": 1, "startup": 3, "answer": 3, "sweeps": 2}  # runs of the rows that take longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "rows",
        nargs="*",
        metavar="ROW",
        help=f"of {', '.join([*WIRE, *OTHERS, *LONG])}; all but {', '.join(LONG)} when none is named",
    )
    parser.add_argument("--runs", type=int, help="runs of each row (5; fewer of the longest)")
    a = parser.parse_args()
    if unknown := set(a.rows) - WIRE.keys() - OTHERS.keys() - LONG.keys():
        parser.error(f"no rows {', '.join(sorted(unknown))}")
    rows = a.rows or [*WIRE, *OTHERS]
    began, others = time.monotonic(), Bystanders()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.2f} before the start"
    )
    with Truth() as server:
        print(f"server of known truth: {'in C' if server.compiled else 'in Python'}")
        for row in rows:
            runs = a.runs or SHORT.get(row, 5)
            if row in WIRE:
                WIRE[row](server, runs)
            elif row in LONG:
                LONG[row](a.runs or 20)
            else:
                OTHERS[row](runs)
            sys.stdout.flush()
    busy = others.cores()
    noise = "unknown" if busy is None else f"{busy:.2f} cores busy with other work on average"
    print(f"\n{time.monotonic() - began:.0f} s; noise: {noise}")


if __name__ == "__main__":
    main()
