"""One real engine over every way in which the client carries requests: each gets the same replies, whole."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.real.engines.llamacpp import DRAFT_TOKENS
from tests.real.engines.servers import Engine
from tests.real.sweeping import assert_sound, points, rows, sweep

pytestmark = pytest.mark.timeout(900)
REQUESTS, TOKENS = 12, 32
SPEC = """\
name: transports
endpoint: {{model: tiny, proxy: {proxy}}}
arms:
  off: {{url: "{off}"}}
  on:
    url: "{on}"
    speculation: {{method: draft, draft_tokens: {draft_tokens}}}
workload: {{use: chat-short, max_tokens: {tokens}}}
load: {{concurrency: [6], requests: {requests}, workers: {workers}}}
"""


@pytest.mark.parametrize(
    ("name", "proxy", "workers"),
    [("httptools", "none", 1), ("aiohttp", "env", 1), ("httptools", "none", 2), ("aiohttp", "env", 2)],
    ids=["httptools", "aiohttp", "httptools in workers", "aiohttp in workers"],
)
def test_a_sweep(
    name: str,
    proxy: str,
    workers: int,
    llamacpp: tuple[Engine, Engine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)  # the transport for proxies, without one
    off, on = llamacpp
    spec = SPEC.format(
        off=off.url,
        on=on.url,
        proxy=proxy,
        draft_tokens=DRAFT_TOKENS,
        tokens=TOKENS,
        requests=REQUESTS,
        workers=workers,
    )
    run = sweep(tmp_path, spec)
    assert len(points(run)) == 2
    for point in points(run):
        assert_sound(point, REQUESTS)
        assert (point["client"]["transport"], point["client"]["workers"]) == (name, workers)
        assert point["token_source"] == "usage"
        assert point["output_tokens"] == {"mean": TOKENS, "total": TOKENS * REQUESTS}
    stored = rows(run)
    assert Counter(row["outcome"] for row in stored if row["phase"] != "filler") == {
        "ok": sum(row["phase"] != "filler" for row in stored)
    }
    assert len({(row["prompt_id"], row["salt"]) for row in stored}) == len(stored)
    assert {row["worker"] for row in stored} == set(range(workers))
