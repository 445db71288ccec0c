"""The client against every case of the hostile server, over real sockets: what it reports, field by field; that the
next requests on the same transport are none the worse; and that what never ends takes neither all memory nor all time.

Another transport is tested by adding it to TRANSPORTS; those that are there also as worker processes carry them.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

from endpoints.attempts import Attempts, Bounds, ReusePolicy, Timeouts
from endpoints.fast import FastTransport
from endpoints.http import HttpTransport
from endpoints.simulator.hostile.cases import CASES
from endpoints.simulator.hostile.expected import Case, Expected
from endpoints.simulator.hostile.server import HostileServer, running
from endpoints.transport import Call, Exchange, Transport
from endpoints.workers import WorkerPool
from sweeps.columns import table_of
from sweeps.load import Sent
from sweeps.prompts import Planned

KEY = "sk-hostile-0123456789"
MOST_BODY, MOST_EVENT = 24 * 2**20, 8 * 2**20


def maker(kind: type[Attempts]) -> Callable[[str], Callable[..., Transport]]:
    """From a URL to what makes a transport for it, which travels to a worker."""
    return partial(
        partial,
        kind,
        headers={"Authorization": f"Bearer {KEY}"},
        timeouts=Timeouts(connect=5, first_byte=0.5, idle=0.5),
        bounds=Bounds(body=MOST_BODY, event=MOST_EVENT),
        keep_text=True,
    )


TRANSPORTS = {kind.name: maker(kind) for kind in (HttpTransport, FastTransport)}

by_transport = pytest.mark.parametrize("make", TRANSPORTS.values(), ids=TRANSPORTS)


async def ask(client: Transport, model: str) -> Exchange:
    exchange = Exchange(issued_ns=time.monotonic_ns())
    async with asyncio.timeout(30):
        await client.send(call(model), exchange)
    return exchange


def call(model: str) -> Call:
    return Call(json.dumps({"model": model, "messages": [], "stream": True}).encode(), 99, 2, 0)


def reported(e: Exchange, expected: Expected) -> Expected:
    """What the client reports, as it would be stored; `expected` where that leaves the answer open, or is kept."""
    planned = Planned(0, "measure", "p", "c", 0, "", call("x"))
    row = table_of([Sent(planned, 0, e.issued_ns, e, True, "measure")], 0).to_pylist()[0]
    stated = row["token_source"] != "chunks"
    output = row["output_tokens"] if stated else None
    offsets = [1e-6 * us for us in row["chunk_offsets_us"]]
    ttft = offsets[0] if offsets else None
    visible = None if e.first_visible_ns is None or e.sent_ns is None else 1e-9 * (e.first_visible_ns - e.sent_ns)
    return Expected(
        why=expected.why,
        outcome=row["outcome"],
        status=row["status"],
        output_tokens=output,
        input_tokens=row["input_tokens"],
        streamed_tokens=row["streamed_tokens"] if stated and row["streamed_tokens"] != output else None,
        reasoning_tokens=row["reasoning_tokens"],
        cached_tokens=row["cached_tokens"],
        token_source=row["token_source"],
        fragments=None if expected.fragments is None else row["chunks"],
        tokens_per_fragment=None if row["chunk_tokens"] is None else tuple(row["chunk_tokens"]),
        ttft_at_least=bounded(expected.ttft_at_least, ttft, at_least=True),
        ttft_at_most=bounded(expected.ttft_at_most, ttft, at_least=False),
        visible_at_least=bounded(expected.visible_at_least, visible, at_least=True),
        dropped_events=row["dropped_events"],
        attempts=expected.attempts if 1 <= row["attempts"] <= expected.attempts else row["attempts"],
        finish_reason=row["finish_reason"],
        retry_after=e.retry_after,
        text=None if expected.text is None else e.text,
    )


def bounded(bound: float | None, seen: float | None, *, at_least: bool) -> float | None:
    """The bound, when it holds (a timer may fire a little early); else what was seen."""
    if bound is None:
        return None
    holds = seen is not None and (seen >= bound - 0.02 if at_least else seen < bound)
    return bound if holds else seen


def differences(seen: Expected, expected: Expected) -> dict[str, tuple[object, object]]:
    """Field: (seen, expected)."""
    pairs = {f.name: (getattr(seen, f.name), getattr(expected, f.name)) for f in fields(Expected)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def at_rest(e: Exchange) -> bool:
    """Every stamp that came is in order, and an outcome is there."""
    stamps = [e.issued_ns, e.connected_ns, e.sent_ns, e.headers_ns, *e.chunk_ns, e.ended_ns]
    known = [stamp for stamp in stamps if stamp is not None]
    return e.outcome is not None and e.ended_ns is not None and known == sorted(known)


@by_transport
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_case(case: Case, make: Callable[[str], Callable[..., Transport]]) -> None:
    await plays(case, make)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[WorkerPool]:
    workers = WorkerPool()
    yield workers
    await workers.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_case_carried_by_workers(case: Case, pool: WorkerPool) -> None:
    async with running(case.name) as server:
        make = TRANSPORTS[FastTransport.name](server.url + "/chat/completions")
        client = await pool.open(2, make, ReusePolicy())
        await conforms(case, client, server, lambda: max(map(peak_bytes_of, pool.pids)))


@by_transport
@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.kind in ("endings", "http")], ids=lambda case: case.name
)
def test_a_case_on_uvloop(case: Case, make: Callable[[str], Callable[..., Transport]]) -> None:
    """Where connections matter, on the loop that sweeps run on as well."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(plays(case, make))


async def plays(case: Case, make: Callable[[str], Callable[..., Transport]]) -> None:
    async with running(case.name) as server:
        client = make(server.url + "/chat/completions")()
        try:
            await conforms(case, client, server, peak_bytes)
        finally:
            await client.close()


async def conforms(case: Case, client: Transport, server: HostileServer, peak: Callable[[], int]) -> None:
    for _ in range(case.asks - 1):
        assert at_rest(await ask(client, case.name))
    before = peak()
    e = await ask(client, case.name)
    if case.endless:
        assert peak() - before < 5 * MOST_BODY, "memory grows with what never ends"
        if e.outcome == "bad_stream":  # others end by time
            assert server.sent < 2 * MOST_BODY, "read on beyond the bound"
    assert differences(reported(e, case.expected), case.expected) == {}, e.error
    assert at_rest(e)
    assert (e.error is None) == (e.outcome == "ok")
    assert KEY not in repr(e)
    # One fault never harms another: what comes next on the same transport is whole, and is its own reply.
    if not case.greeting:
        for _ in range(2):
            after = await ask(client, "good")
            assert (after.outcome, after.text, after.output_tokens) == ("ok", CASES["good"].expected.text, 8), (
                after.error
            )


def peak_bytes_of(pid: int) -> int:
    """Of another process; 0 where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
