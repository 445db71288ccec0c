"""A key planted in every place a key can go shows in no artefact, log, error or report of any command, also when the
server echoes it in every place a server can."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from aiohttp import web

from tests.front.conftest import Cli
from tests.front.serving import serving

BEARER = "sk-bearer/KEY+planted=0123456789"
HEADER = "hdr-KEY-planted-abcdef0123456789"
BODY = "body-KEY-planted-0987654321fedcba"
SECRETS = [BEARER, HEADER, BODY]
SPEC = """\
name: secrets
endpoint:
  url: "{url}"
  model: m
  auth: {{env: PLANTED_BEARER}}
  headers: {{X-Api-Key: "${{PLANTED_HEADER}}"}}
  extra_body: {{user_token: "${{PLANTED_BODY}}"}}
workload: {{use: chat-short, max_tokens: 6}}
load: {{concurrency: [1, 2], requests: 12}}
limits: {{error_rate: 1.0}}
"""
ENV = {"PLANTED_BEARER": BEARER, "PLANTED_HEADER": HEADER, "PLANTED_BODY": BODY}


def echo() -> str:
    """What a server may say: the keys as they are, and in the forms that quoting gives them."""
    forms = [form for s in SECRETS for form in (s, urllib.parse.quote(s, safe=""), json.dumps(s)[1:-1])]
    return " ".join([*forms, base64.b64encode(f"user:{BEARER}".encode()).decode()])


class Parrot:
    """Checks that it got the keys, then says them wherever a reply has room; every third request fails that way."""

    def __init__(self) -> None:
        self.seen = 0

    async def models(self, request: web.Request) -> web.Response:
        cards = [{"id": "m", "object": "model"}, {"id": echo(), "object": "model"}]
        return web.json_response({"data": cards}, headers={"Server": echo()})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert request.headers["Authorization"] == f"Bearer {BEARER}"
        assert request.headers["X-Api-Key"] == HEADER and body["user_token"] == BODY
        self.seen += 1
        if self.seen > 2 and self.seen % 3 == 0:
            error = {"error": {"message": f"bad key {echo()}", "type": echo(), "code": echo()}}
            return web.json_response(error, status=500, reason="no", headers={"X-Request-Id": echo()})
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Request-Id": echo()})
        await reply.prepare(request)
        head = {"id": echo(), "model": echo(), "system_fingerprint": echo()}
        for i in range(6):
            choice = {"index": 0, "delta": {"content": f" {echo()}"}, "finish_reason": "length" if i == 5 else None}
            await reply.write(b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n")
            await asyncio.sleep(0.002)
        usage = {"prompt_tokens": 9, "completion_tokens": 6}
        await reply.write(b"data: " + json.dumps({**head, "choices": [], "usage": usage}).encode() + b"\n\n")
        await reply.write(b"data: [DONE]\n\n")
        return reply


@pytest.fixture
def parrot() -> Iterator[str]:
    state = Parrot()
    with serving(state.models, state.chat) as url:
        yield url


def assert_clean(text: str, where: object) -> None:
    for secret in SECRETS:
        for piece in (secret, urllib.parse.quote(secret, safe=""), secret[:20], secret[-16:]):
            assert piece not in text, f"{piece} in {where}"
    assert base64.b64encode(f"user:{BEARER}".encode()).decode() not in text, where


def test_keys_show_nowhere(cli: Cli, parrot: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SPEC.format(url=parrot))
    said = [cli("plan", "s.yaml", env=ENV), cli("run", "s.yaml", "--out", "r", "--json", env=ENV, code=None)]
    assert (tmp_path / "r" / "report.html").exists(), said[-1].stderr
    said += [cli("run", "s.yaml", "--out", "r", "--resume", env=ENV, code=None)]
    said += [cli("report", "r"), cli("report", "r", "r", "--out", "both", code=None)]
    headers = ["--header", f"X-Api-Key: {HEADER}"]
    said += [cli("probe", parrot, "--model", "m", "--key-env", "PLANTED_BEARER", *headers, env=ENV, code=None)]
    said += [cli("run", parrot, "--model", "m", *headers, "--key-env", "PLANTED_BEARER", env=ENV, code=None)]
    for done in said:
        assert_clean(done.stdout + done.stderr, done.args)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        assert_clean(path.read_bytes().decode("utf-8", "replace"), path)
        if path.suffix == ".parquet":
            assert_clean(str(pq.read_table(path).to_pylist()), path)


def test_a_refused_key_is_not_quoted(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("two\nlines-of-secret")
    assert "lines-of-secret" not in cli("run", "http://127.0.0.1:9", "--key-file", "key", code=2).stderr
    said = cli("run", "http://user:pass-word-1@127.0.0.1:9/v1", "--model", "m", code=2).stderr
    assert "pass-word-1" not in said
    said = cli("run", "http://127.0.0.1:9/v1?api_key=query-secret-1", "--model", "m", code=2).stderr
    assert "query-secret-1" not in said
