"""`transformers serve`: no [DONE], and the usage within the event of the finish reason."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.engines.servers import Engine
from tests.real.engines.vllm import transformers
from tests.real.sweeping import assert_sound, points, rows, sweep

pytestmark = pytest.mark.timeout(1800)
LEVELS, REQUESTS, TOKENS = [1, 2], 20, 16
SPEC = """\
name: transformers
endpoint: {{url: "{url}", model: "{model}"}}
workload: {{use: chat-short, max_tokens: {tokens}}}
load: {{concurrency: {levels}, requests: {requests}}}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Engine, str]]:
    with transformers() as running:
        yield running


@pytest.fixture(scope="module")
def swept(server: tuple[Engine, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    engine, model = server
    text = SPEC.format(url=engine.url, model=model, tokens=TOKENS, levels=LEVELS, requests=REQUESTS)
    return sweep(tmp_path_factory.mktemp("transformers"), text)


def test_its_stream_is_what_this_is_about(server: tuple[Engine, str]) -> None:
    engine, model = server
    asked = {"model": model, "stream": True, "max_tokens": 4, "messages": [{"role": "user", "content": "the world"}]}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{engine.url}/chat/completions", json.dumps(asked).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        events = [line[5:].strip() for line in reply.read().splitlines() if line.startswith(b"data:")]
    assert b"[DONE]" not in events
    last = json.loads(events[-1])
    assert last["choices"][0]["finish_reason"] and last["usage"]["completion_tokens"] == 4


def test_every_point_is_valid_and_no_request_failed(swept: Path) -> None:
    assert [p["concurrency"] for p in points(swept)] == LEVELS
    for point in points(swept):
        assert_sound(point, REQUESTS)
    assert {row["finish_reason"] for row in rows(swept) if row["outcome"] == "ok"} == {"length"}


def test_tokens_are_the_servers_own(swept: Path) -> None:
    for point in points(swept):
        assert point["token_source"] == "usage"
        assert point["output_tokens"] == {"mean": TOKENS, "total": TOKENS * REQUESTS}
