"""One load in a process of its own: so many requests, so many at a time, over one transport. Prints JSON.

`cpu_s` is what the process used from the first request to the last reply, parsing included.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import time
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.floor import FloorTransport
from endpoints.fast import FastTransport
from endpoints.http import HttpTransport
from endpoints.outcomes import Outcome
from endpoints.resources import raise_descriptor_limit
from endpoints.transport import Call, Exchange, Transport

KINDS = {"floor": FloorTransport, "httptools": FastTransport, "aiohttp": HttpTransport}
COLLECTOR = {
    "freeze": lambda: (gc.collect(), gc.freeze()),  # what a sweep does around a point
    "disable": lambda: (gc.collect(), gc.freeze(), gc.disable()),
    "threshold": lambda: (gc.collect(), gc.freeze(), gc.set_threshold(50_000, 20, 100)),
    "none": lambda: None,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--collector", choices=COLLECTOR, default="freeze")
    a = parser.parse_args()
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(load(a))))


async def load(a: argparse.Namespace) -> dict[str, Any]:
    transport: Transport = KINDS[a.kind](a.url, {})
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 200}], "stream": True})
    call = Call(f'{body[:-1]}, "max_tokens": {a.tokens}}}'.encode(), a.tokens, 200, 0)
    exchanges = [Exchange() for _ in range(a.requests)]
    left = iter(exchanges)

    async def slot() -> None:
        for exchange in left:
            exchange.issued_ns = time.monotonic_ns()
            await transport.send(call, exchange)

    COLLECTOR[a.collector]()
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(slot() for _ in range(a.streams)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    memory = memory_mb()
    await transport.close()
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "memory_mb": memory,
        "failed": sum(e.outcome is not Outcome.OK for e in exchanges),
        "chunks": sum(len(e.chunk_ns) for e in exchanges),
        "ttft_ms": summary([(e.chunk_ns[0] - (e.sent_ns or 0)) / 1e6 for e in exchanges if e.chunk_ns]),
        "tpot_ms": summary(
            [(e.chunk_ns[a.tokens - 1] - e.chunk_ns[0]) / 1e6 / (a.tokens - 1) for e in exchanges]
            if a.tokens > 1 and all(len(e.chunk_ns) >= a.tokens for e in exchanges)
            else []
        ),
    }


def summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    if not ordered:
        return {"mean": math.nan, "p99": math.nan}
    return {"mean": sum(ordered) / len(ordered), "p99": ordered[last * 99 // 100]}


def memory_mb() -> float:
    """Proportional set size where the kernel tells it, else the peak of what was resident."""
    try:
        with Path("/proc/self/smaps_rollup").open() as page:
            return sum(int(line.split()[1]) for line in page if line.startswith("Pss:")) / 1024
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
