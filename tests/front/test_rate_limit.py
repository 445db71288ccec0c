"""A quota that admits so much and no more: the curve ends there, and says so."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from aiohttp import web

from tests.front.conftest import Cli
from tests.front.serving import serving


@dataclass
class TokenBucket:
    """Chat over aiohttp.web: `rate` requests a second, `burst` at once; beyond that 429 with Retry-After."""

    rate: float
    burst: int
    length_s: float = 0.1
    tokens: int = 5
    level: float = field(init=False)
    filled: float = field(init=False)
    served: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self.level, self.filled = float(self.burst), time.monotonic()

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        now = time.monotonic()
        self.level = min(self.burst, self.level + (now - self.filled) * self.rate)
        self.filled = now
        if self.level < 1:
            self.refused += 1
            error = {"error": {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}}
            return web.json_response(error, status=429, headers={"Retry-After": "1"})
        self.level -= 1
        self.served += 1
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        for i in range(self.tokens):
            await asyncio.sleep(self.length_s / self.tokens)
            last = i + 1 == self.tokens
            choice = {"index": 0, "delta": {"content": " word"}, "finish_reason": "length" if last else None}
            await reply.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        usage = {"prompt_tokens": 9, "completion_tokens": self.tokens}
        await reply.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
        return reply


@pytest.fixture
def bucket() -> Iterator[tuple[TokenBucket, str]]:
    """About ten a second are let through: two users of a tenth of a second each are too many."""
    state = TokenBucket(rate=14.0, burst=4)
    with serving(state.models, state.chat) as url:
        yield state, url


def test_the_quota_ends_the_curve(cli: Cli, bucket: tuple[TokenBucket, str], tmp_path: Path) -> None:
    state, url = bucket
    sweep = ["--concurrency", "1,4,8,16", "--requests", "40", "--max-tokens", "5"]
    done = cli("run", url, *sweep, "--out", "r", "--json")
    summary = json.loads(done.stdout)

    points = {p["concurrency"]: p for p in summary["points"]}
    assert set(points) == {1, 4}, "one user fits the quota, four do not, and beyond that nothing is spent"
    assert points[1]["counts"]["completed"] == 40
    assert not [v for v in points[1]["verdicts"] if v["code"] == "rate_limited"]
    limited = points[4]
    assert [v["severity"] for v in limited["verdicts"] if v["code"] == "rate_limited"] == ["warn"]
    assert limited["counts"]["failed"] == limited["counts_all"]["failed"] == 0
    assert limited["counts"]["completed"] == limited["counts"]["issued"] == 40
    assert limited["counts_all"]["rate_limited"] == state.refused > 0
    assert summary["ends"]["default"]["reason"] == "rate_limited"
    assert summary["ends"]["default"]["at"] == 4
    assert {s["concurrency"] for s in summary["skipped"]} == {8, 16}

    rows = pq.read_table(tmp_path / "r" / "points" / "default" / "c00004-t1" / "requests.parquet").to_pylist()
    refused = [row for row in rows if row["outcome"] == "rate_limited"]
    assert refused and all(row["attempts"] == 1 and not row["counted"] for row in refused)
    assert all(row["pause_ms"] == 1000 and row["status"] == 429 for row in refused)
    ends = [row["ended_ns"] for row in refused]
    after = [row["issued_ns"] for row in rows if row["issued_ns"] > min(ends)]
    assert min(after) >= min(ends) + 0.9e9, "the whole point waits, not only the slot that was refused"

    # Gone on with, the curve stays ended: nothing is sent but the look at the arm.
    before = state.served + state.refused
    again = cli("run", url, *sweep, "--out", "r", "--resume", "--json")
    assert state.served + state.refused - before <= 1
    assert "no further level is sent to it" in again.stderr
    resumed = json.loads(again.stdout)
    assert {p["concurrency"] for p in resumed["points"]} == {1, 4}
    assert {s["concurrency"] for s in resumed["skipped"]} == {8, 16}
    assert resumed["ends"]["default"] == summary["ends"]["default"]
