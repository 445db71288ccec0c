"""Every request that was sent is in the records, and every record in the counts: at every level, on every transport."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from endpoints.attempts import ReusePolicy
from endpoints.fast import FastTransport
from endpoints.http import HttpTransport
from endpoints.simulator.null import NullOptions, NullProcess
from endpoints.simulator.options import SimulatorOptions
from endpoints.target import target_of, timeouts_of
from endpoints.transport import Transport
from endpoints.virtual import VirtualTransport
from endpoints.workers import WorkerPool
from profiles.loading import Sweep
from profiles.workloads import load_prompts, split
from sweeps.clock import RealClock
from sweeps.load import Sent
from sweeps.measure import Measured, Measurement, Prompts
from sweeps.plan import plan_sweep
from sweeps.virtual import virtual_point

TOKENS = 4


@pytest.fixture(scope="module")
def server() -> Iterator[NullProcess]:
    with NullProcess(NullOptions(ttft_ms=10, jitter_ms=20, chunk_ms=3)) as process:
        yield process


def sweep_of(lab: SimpleNamespace, url: str, level: int) -> Sweep:
    load = {"concurrency": [level], "requests": 3 * level + 2}
    sweep: Sweep = lab.sweep(load, arms={"a": {"url": url, "model": "m"}}, workload={"max_tokens": TOKENS})
    return sweep


def asked(server: NullProcess, method: str) -> dict[str, Any]:
    with urllib.request.urlopen(urllib.request.Request(server.root + "/truth", method=method), timeout=30) as reply:
        document: dict[str, Any] = json.load(reply)
    return document


@asynccontextmanager
async def carried_by(name: str, url: str) -> AsyncIterator[Transport]:
    pool = WorkerPool()
    route = url + "/chat/completions"
    try:
        if name == "workers":
            yield await pool.open(2, partial(FastTransport, route, {}), ReusePolicy())
        else:
            yield FastTransport(route, {}) if name == "fast" else HttpTransport(route, {})
    finally:
        await pool.close()


@pytest.mark.parametrize("level", [1, 7, 64])
@pytest.mark.parametrize("name", ["aiohttp", "fast", "workers"])
async def test_sent_recorded_counted(lab: SimpleNamespace, server: NullProcess, name: str, level: int) -> None:
    await asyncio.to_thread(asked, server, "DELETE")
    sweep = sweep_of(lab, server.url, level)
    measured, warmup = split(load_prompts(sweep.workload))
    shape = target_of(sweep.arms[0], TOKENS, {}, timeouts_of(sweep.limits), {}).shape
    ended: list[Sent] = []
    async with carried_by(name, server.url) as transport:
        planned = plan_sweep(sweep, measured)[0]
        prompts = Prompts(measured, warmup)
        measurement = Measurement(
            sweep, sweep.arms[0], shape, planned, prompts, transport, RealClock(), on_ended=ended.append
        )
        result = await measurement.run()
        await transport.close()
    truth = await asyncio.to_thread(asked, server, "GET")
    adds_up(result, ended, level)
    # A request that was cancelled before its first byte went out was not received.
    went_out = [s for s in ended if s.exchange.sent_ns is not None and s.exchange.outcome != "cancelled"]
    assert len(went_out) <= truth["received"] <= len(ended)
    assert truth["peak_open"] <= level
    assert {s.exchange.request_id for s in went_out} <= {f"chatcmpl-null-{r['id']:08x}" for r in truth["requests"]}
    assert {s.exchange.worker for s in ended} == ({0, 1} if name == "workers" and level > 1 else {0})


@pytest.mark.parametrize("level", [1, 7, 64])
def test_virtual(lab: SimpleNamespace, level: int) -> None:
    sweep = sweep_of(lab, "http://127.0.0.1:1", level)
    measured, warmup = split(load_prompts(sweep.workload))
    transport = VirtualTransport(SimulatorOptions().engine_config())
    result = virtual_point(sweep, plan_sweep(sweep, measured)[0], Prompts(measured, warmup), transport)
    adds_up(result, None, level)


def adds_up(result: Measured, ended: list[Sent] | None, level: int) -> None:
    r, point = result.requests, result.point
    assert r.ints("index").tolist() == list(range(len(r)))
    if ended is not None:
        assert sorted(s.planned.index for s in ended) == list(range(len(r)))
    every, counts = point["counts_all"], point["counts"]
    assert every["issued"] == len(r) == sum(every["by_outcome"].values()) == sum(every["by_phase"].values())
    assert counts["issued"] == int(r.counted.sum()) == 3 * level + 2 == counts["completed"]
    assert counts["by_outcome"] == {"ok": 3 * level + 2}
    assert counts["failed"] == every["failed"] == 0
    assert point["output_tokens"]["total"] == TOKENS * (3 * level + 2)
    assert point["in_flight"]["max"] <= level


def test_a_tokenizers_count_stands_where_usage_is_missing(lab: SimpleNamespace) -> None:
    told = {"counted_tokens": 9, "tokens": [4, 3, 2]}
    r = lab.requests(lab.sent(0, output=None, **told), lab.sent(1, output=12, **told))
    assert list(r.texts("token_source")) == ["tokenizer", "usage"]
    assert r.ints("output_tokens").tolist() == [9, 12]
    assert r.ints("output_tokens_after_first_chunk").tolist() == [5, 8]
