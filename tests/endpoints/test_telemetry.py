"""Finding and reading pages of metrics over real sockets: which one is taken, and what it gets of us."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from endpoints.attempts import Timeouts
from endpoints.dialects import CHAT, RequestShape
from endpoints.target import Target
from endpoints.telemetry import ServerMetrics, find_metrics
from endpoints.tls import context_of
from profiles.models import Tls

KEY = "sk-telemetry-0123456789"
PROMETHEUS = 'vllm:generation_tokens_total{model_name="m"} 5\n'


@asynccontextmanager
async def serving(pages: dict[str, str | int]) -> AsyncIterator[tuple[str, list[web.Request]]]:
    """A server with these pages: a text, or the status that it answers with. Its root URL, and what it was asked."""
    asked: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request)
        page = pages.get(request.path, 404)
        return web.Response(text=page) if isinstance(page, str) else web.Response(status=page)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


def target(root: str, *pages: str) -> Target:
    shape = RequestShape(CHAT, "m", 16, {}, {})
    headers = {"Authorization": f"Bearer {KEY}"}
    waits = Timeouts(2.0, 2.0, 2.0)
    return Target("default", f"{root}/v1", headers, shape, context_of(Tls()), False, (KEY,), waits, tuple(pages))


@pytest.mark.parametrize(
    ("pages", "taken"),
    [
        ({"/metrics": PROMETHEUS}, ["/metrics"]),
        ({"/metrics": "[]", "/prometheus/metrics": "trtllm_num_requests_running 0\n"}, ["/prometheus/metrics"]),
        ({"/metrics": "[]"}, ["/metrics"]),  # hands each count out once, and nothing has run
        ({"/metrics": '[{"iter": 1, "numActiveRequests": 0}]'}, ["/metrics"]),
        ({"/metrics": "<html>a dashboard</html>"}, []),
        ({"/metrics": 401, "/prometheus/metrics": 500}, []),
        ({}, []),
    ],
)
async def test_the_page_that_is_taken(pages: dict[str, str | int], taken: list[str]) -> None:
    async with serving(pages) as (root, _):
        assert await find_metrics(target(root)) == tuple(root + path for path in taken)


async def test_pages_that_are_named_are_not_looked_for() -> None:
    async with serving({}) as (root, asked):
        assert await find_metrics(target(root, f"{root}/mine")) == (f"{root}/mine",)
        assert not asked


async def test_another_origin_gets_no_key() -> None:
    async with serving({"/metrics": PROMETHEUS}) as (home, own), serving({"/metrics": PROMETHEUS}) as (other, asked):
        metrics = ServerMetrics(target(home), [f"{home}/metrics", f"{other}/metrics"])
        found = await metrics.read()
        await metrics.close()
        assert found is not None and found.total("generated_tokens") == 10  # of two replicas
        assert own[0].headers["Authorization"] == f"Bearer {KEY}"
        assert "Authorization" not in asked[0].headers


@pytest.mark.parametrize(("page", "why"), [(503, "it answers 503"), ("up 1\n", "names no counter")])
async def test_a_replica_that_tells_nothing_spoils_the_reading(page: str | int, why: str) -> None:
    async with serving({"/a": PROMETHEUS, "/b": page}) as (root, _):
        metrics = ServerMetrics(target(root), [f"{root}/a", f"{root}/b"])
        assert await metrics.read() is None
        await metrics.close()
        assert why in metrics.unread and f"{root}/b" in metrics.unread


async def test_a_server_that_is_gone_and_a_page_of_many_pieces() -> None:
    filler = "".join(f'vllm:e2e_request_latency_seconds_bucket{{le="{n}"}} 1\n' for n in range(5_000))
    async with serving({"/metrics": filler + PROMETHEUS + filler}) as (root, _):
        metrics = ServerMetrics(target(root), [f"{root}/metrics"])
        found = await metrics.read()
        assert found is not None and found.total("generated_tokens") == 5
        assert 0 < metrics.cost_s < 1
    assert await metrics.read() is None
    assert metrics.unread
    await metrics.close()


async def test_a_key_that_a_server_echoes_into_a_label_is_not_kept() -> None:
    page = f'vllm:generation_tokens_total{{model_name="m",asked_by="Bearer {KEY}"}} 5\n'
    async with serving({"/metrics": page}) as (root, _):
        metrics = ServerMetrics(target(root), [f"{root}/metrics"])
        found = await metrics.read()
        await metrics.close()
    assert found is not None and found.total("generated_tokens") == 5
    assert KEY not in str(found)
