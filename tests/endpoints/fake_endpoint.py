"""An OpenAI-style endpoint whose habits a test chooses: what it refuses, ignores, honours and tells."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class FakeEndpoint:
    """`natural`: tokens after which it stops by itself; `honours`: fields that change that; `refuses`: field -> error.

    `length_fields`: names of the length that it keeps to. `limits`: how often a request is refused by 429 first.
    """

    natural: int = 9
    honours: frozenset[str] = frozenset()
    refuses: dict[str, str] = field(default_factory=dict)
    length_fields: tuple[str, ...] = ("max_tokens", "max_completion_tokens")
    missing: tuple[str, ...] = ()  # routes
    streams: bool = True
    usage: bool = True
    usage_details: dict[str, Any] = field(default_factory=dict)
    text_field: str = "content"
    prelude: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    pages: dict[str, tuple[int, str]] = field(default_factory=dict)
    models: dict[str, Any] | None = field(default_factory=lambda: {"data": [{"id": "m"}]})
    key: tuple[str, str] | None = None  # header and value that every request must carry
    query: dict[str, str] = field(default_factory=dict)  # that every request must carry
    base: str = "/v1"
    limits: int = 0
    limit_status: int = 429
    retry_after: str | None = "0.01"
    asked: list[dict[str, Any]] = field(default_factory=list)
    requests: list[web.Request] = field(default_factory=list)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if request.path in self.pages:
            status, text = self.pages[request.path]
            return web.Response(status=status, text=text)
        if self.key is not None and request.headers.get(self.key[0]) != self.key[1]:
            return self.error(401, {"message": f"no access with {dict(request.headers)}"})
        if any(request.query.get(name) != value for name, value in self.query.items()):
            return self.error(404, {"message": "Resource not found"})
        if request.method == "GET" and request.path == f"{self.base}/models" and self.models is not None:
            return web.json_response(self.models, headers=self.headers)
        if request.method != "POST" or not request.path.startswith(self.base):
            return self.error(404, {"message": "Not Found"})
        return await self.answer(request, await request.json(), request.path.removeprefix(self.base))

    def error(self, status: int, error: dict[str, Any], **headers: str) -> web.Response:
        return web.json_response({"error": error}, status=status, headers={**self.headers, **headers})

    async def answer(self, request: web.Request, body: dict[str, Any], route: str) -> web.StreamResponse:
        self.asked.append(body)
        if self.limits > 0:
            self.limits -= 1
            wait = {} if self.retry_after is None else {"Retry-After": self.retry_after}
            return self.error(self.limit_status, {"message": "slow down"}, **wait)
        for name, said in self.refuses.items():
            given = body.get(name) is not None and body[name] is not False
            if given or name in (body.get("stream_options") or {}) or name == route:
                return self.error(400, {"message": said, "param": name})
        if route in self.missing:
            return self.error(404, {"message": "Not Found"})
        tokens, reason = self.length(body)
        usage = {"prompt_tokens": 11, "completion_tokens": tokens, **self.usage_details}
        if not (self.streams and body.get("stream")):
            message = {"role": "assistant", self.text_field: "word " * tokens}
            choice = {"index": 0, "message": message, "text": "word " * tokens, "finish_reason": reason}
            return web.json_response({"choices": [choice], **({"usage": usage} if self.usage else {})})
        return await self.stream(request, body, route, tokens, reason, usage)

    def length(self, body: dict[str, Any]) -> tuple[int, str]:
        given = [body[name] for name in self.length_fields if name in body]
        most = min(given) if given else 50
        natural = self.natural
        if "ignore_eos" in self.honours and body.get("ignore_eos"):
            natural = most
        if "min_tokens" in self.honours:
            natural = max(natural, body.get("min_tokens", 0))
        return (most, "length") if natural >= most else (natural, "stop")

    async def stream(
        self, request: web.Request, body: dict[str, Any], route: str, tokens: int, reason: str, usage: dict[str, Any]
    ) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream", **self.headers})
        await reply.prepare(request)

        async def event(doc: dict[str, Any]) -> None:
            await reply.write(b"data: " + json.dumps(doc).encode() + b"\n\n")

        if self.prelude is not None:
            await event(self.prelude)
        options = body.get("stream_options") or {}
        for i in range(tokens):
            text = {"text": "word "} if route == "/completions" else {"delta": {self.text_field: "word "}}
            choice: dict[str, Any] = {"index": 0, **text, "finish_reason": reason if i + 1 == tokens else None}
            if "return_token_ids" in self.honours and body.get("return_token_ids"):
                choice["token_ids"] = [i]
            doc: dict[str, Any] = {"model": "m", "choices": [choice]}
            if "continuous_usage_stats" in self.honours and options.get("continuous_usage_stats"):
                doc["usage"] = {"prompt_tokens": 11, "completion_tokens": i + 1}
            await event(doc)
        if self.usage and options.get("include_usage"):
            await event({"model": "m", "choices": [], "usage": usage})
        await reply.write(b"data: [DONE]\n\n")
        return reply

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve on a free port; gives the root URL."""

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            assert isinstance(request, web.Request)
            return await self(request)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
