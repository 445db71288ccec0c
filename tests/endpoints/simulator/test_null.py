"""The null server: what it sends, and that its record is of what it sent."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from endpoints.simulator.null import NullOptions, NullProcess


@pytest.fixture(scope="module")
def server() -> Iterator[NullProcess]:
    with NullProcess(NullOptions(ttft_ms=20, jitter_ms=5, chunk_ms=4)) as process:
        yield process


@pytest.fixture
def line(server: NullProcess) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(server.root.removeprefix("http://"), timeout=20)
    yield connection
    connection.close()


def ask(line: http.client.HTTPConnection, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    line.request(method, path, json.dumps(body) if body is not None else None)
    return line.getresponse().read()


def test_a_stream_is_paced_as_its_record_says(line: http.client.HTTPConnection) -> None:
    ask(line, "DELETE", "/truth")
    began = time.monotonic_ns()
    raw = ask(line, "POST", "/v1/chat/completions", {"max_tokens": 6, "stream": True})
    ended = time.monotonic_ns()
    *events, done = raw.decode().strip().split("\n\n")
    assert done == "data: [DONE]"
    documents = [json.loads(event.removeprefix("data: ")) for event in events]
    assert sum(bool(d["choices"] and d["choices"][0]["delta"].get("content")) for d in documents) == 6
    assert documents[-1]["usage"]["completion_tokens"] == 6
    truth = json.loads(ask(line, "GET", "/truth"))
    (row,) = truth["requests"]
    assert int(documents[0]["id"].rpartition("-")[2], 16) == row["id"]
    assert began <= row["received_ns"] <= row["first_token_ns"] <= row["last_token_ns"] <= ended
    assert row["first_token_ns"] - row["received_ns"] >= 20e6
    assert row["last_token_ns"] - row["received_ns"] >= 40e6
    assert (truth["received"], truth["completed"], truth["open"], truth["peak_open"]) == (1, 1, 0, 1)
    assert truth["ttft_ms"]["n"] == truth["tpot_ms"]["n"] == 1


def test_the_query_changes_the_pace(line: http.client.HTTPConnection) -> None:
    ask(line, "DELETE", "/truth")
    raw = ask(line, "POST", "/v1/completions?bulk=1&ttft_ms=0&jitter_ms=0", {"max_tokens": 50, "stream": True})
    assert raw.count(b"a ") == 50
    (row,) = json.loads(ask(line, "GET", "/truth"))["requests"]
    assert row["first_token_ns"] == row["last_token_ns"]


def test_a_client_that_leaves_is_noticed(server: NullProcess, line: http.client.HTTPConnection) -> None:
    ask(line, "DELETE", "/truth")
    other = http.client.HTTPConnection(server.root.removeprefix("http://"), timeout=20)
    other.request("POST", "/v1/completions", json.dumps({"max_tokens": 100_000, "stream": True}))
    other.getresponse().read(10)
    other.close()
    deadline = time.monotonic() + 20
    while (truth := json.loads(ask(line, "GET", "/truth?requests=0")))["cut"] == 0:
        assert time.monotonic() < deadline
    assert truth["open"] == 0
    assert "requests" not in truth


@pytest.mark.parametrize(("method", "path"), [("GET", "/nowhere"), ("POST", "/v1/chat/completions?ttft_ms=soon")])
def test_what_it_cannot_do_is_refused(line: http.client.HTTPConnection, method: str, path: str) -> None:
    line.request(method, path, "{}")
    reply = line.getresponse()
    assert reply.status in (400, 404)
    assert json.loads(reply.read())["error"]["message"]


def test_options_as_arguments() -> None:
    options = NullOptions(ttft_ms=5, bulk=True)
    assert options.arguments() == ["--ttft-ms=5", "--bulk"]
    assert options.under("chunk_ms=7&bulk=0") == NullOptions(ttft_ms=5, chunk_ms=7)
