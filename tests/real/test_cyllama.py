"""Servers that state no usage, one of them in HTTP/1.0; both send 200 and no token where a prompt is too long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from endpoints.dialects import CHAT, ROUTES, RequestShape
from endpoints.http import HttpTransport
from endpoints.outcomes import Outcome
from endpoints.transport import Call, Exchange
from tests.real.engines.cyllama import CONTEXT, cyllama
from tests.real.engines.servers import Engine
from tests.real.sweeping import assert_sound, points, rows, sweep, verdicts

pytestmark = pytest.mark.timeout(300)
LEVELS, REQUESTS, TOKENS = [1, 2], 20, 12
SPEC = """\
name: cyllama
endpoint: {{url: "{url}", model: tiny}}
workload: {{use: chat-short, max_tokens: {tokens}}}
load: {{concurrency: {levels}, requests: {requests}}}
"""


@pytest.fixture(scope="module", params=["embedded", "python"])
def server(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with cyllama(request.param) as engine:
        yield engine


@pytest.fixture(scope="module")
def swept(server: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = SPEC.format(url=server.url, tokens=TOKENS, levels=LEVELS, requests=REQUESTS)
    return sweep(tmp_path_factory.mktemp("cyllama"), spec)


def test_every_point_ends_and_no_request_failed(swept: Path) -> None:
    assert [p["concurrency"] for p in points(swept)] == LEVELS
    for point in points(swept):
        assert_sound(point, REQUESTS, but=frozenset({"buffered"}))
    assert {row["outcome"] for row in rows(swept)} <= {"ok", "cancelled"}  # filler ends with the point


def test_replies_that_the_servers_kernel_held_back_are_called_buffered(swept: Path) -> None:
    """The embedded server leaves Nagle's algorithm on: what follows its headers waits for the client's delayed ACK,
    40 ms, and a quick machine has the whole answer ready by then. A slower one shows nothing of it."""
    for point in points(swept):
        counted = [row for row in rows(swept, load=f"c{point['concurrency']:05}-t1") if row["counted"]]
        spans_us = [row["chunk_offsets_us"][-1] - row["chunk_offsets_us"][0] for row in counted]
        if sum(span < 100 for span in spans_us) > len(spans_us) / 2:
            assert verdicts(point)["buffered"] == "invalid"


def test_without_usage_fragments_are_counted_and_the_point_says_so(swept: Path) -> None:
    for point in points(swept):
        assert point["token_source"] == "chunks"
        assert verdicts(point)["estimated_tokens"] == "warn"
    for row in [row for row in rows(swept) if row["outcome"] == "ok"]:
        assert row["output_tokens"] == row["chunks"] <= TOKENS
        assert row["input_tokens"] is None


def test_it_says_stop_where_it_was_cut(swept: Path) -> None:
    for point in points(swept):
        assert point["finish_reasons"] == {"stop": REQUESTS}


async def test_a_prompt_too_long_is_no_success(server: Engine) -> None:
    for words, expected in ((5, Outcome.OK), (3 * CONTEXT, Outcome.EMPTY)):
        exchange = await _send(server, " of" * words)
        assert exchange.status == 200
        assert exchange.outcome is expected, exchange.error
        assert exchange.finish_reason == "stop"
        assert bool(exchange.chunk_ns) == (expected is Outcome.OK)


async def _send(server: Engine, prompt: str) -> Exchange:
    body = RequestShape(CHAT, "tiny", TOKENS, {}, {}).body([{"role": "user", "content": prompt}])
    transport, exchange = HttpTransport(server.url + ROUTES[CHAT], {}), Exchange(issued_ns=time.monotonic_ns())
    try:
        await transport.send(Call(body, TOKENS, len(prompt), 0), exchange)
    finally:
        await transport.close()
    return exchange
