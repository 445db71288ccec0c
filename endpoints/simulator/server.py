"""The embedded endpoint over HTTP: the API of an OpenAI-compatible server, its metrics, and the truth."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from endpoints.simulator.answers import Answer
from endpoints.simulator.asks import Ask, Dialect, Refused, read_ask
from endpoints.simulator.engine import Counters, Engine, Finish
from endpoints.simulator.exposition import EngineCollector, exposition
from endpoints.simulator.options import SimulatorOptions
from endpoints.simulator.pacer import Pacer
from endpoints.simulator.truth import Served, Truth

MAX_BODY_BYTES = 64 * 1024 * 1024
EVENT_STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}


class Simulator:
    """One engine and the handlers around it. Must be made inside a running event loop, and closed."""

    def __init__(self, options: SimulatorOptions):
        """Raises ValueError for settings that cannot be, or a key variable that is not set."""
        self.options = options
        self._key: bytes | None = None
        if options.api_key_env is not None:
            if not (key := os.environ.get(options.api_key_env)):
                raise ValueError(
                    f"the environment variable {options.api_key_env}, which should hold the key, is not set"
                )
            self._key = key.encode()
        self._engine = Engine(options.engine_config())
        self._pacer = Pacer(self._engine)
        self._truth = Truth(time.monotonic_ns())
        self._counters_before = self._pacer.snapshot().counters
        self._finished = Counter({"length": 0, "stop": 0})
        self._created_s = int(time.time())
        self._collector = EngineCollector(
            options.model, self._engine.config.speculation is not None, self._pacer.snapshot, lambda: self._finished
        )

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completions),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/metrics", self._metrics),
                web.get("/truth", self._get_truth),
                web.post("/truth/reset", self._reset_truth),
            ]
        )
        return app

    def close(self) -> None:
        self._pacer.close()

    # The API

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "chat")

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "completions")

    async def _answer(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        raw = await request.read()
        served = self._truth.receive(time.monotonic_ns())
        try:
            self._check_key(request)
            ask = read_ask(dialect, raw, self.options)
            served.prompt_tokens = ask.prompt_tokens
            sequence, events = self._pacer.submit(ask.prompt_tokens, ask.output_tokens, ask.seed, watched=ask.stream)
        except Refused as refused:
            self._truth.end(served, time.monotonic_ns(), "failed")
            return _json(refused.body, refused.status)
        answer = Answer(ask, served.id, int(time.time()), self.options.model, self.options.burst)
        try:
            if ask.stream:
                response = await self._stream(request, answer, events, served)
            else:
                response = await self._whole(request, answer, events, ask, served)
        except BaseException as error:  # above all CancelledError: the client has left
            self._pacer.cancel(sequence)
            left = isinstance(error, asyncio.CancelledError | ConnectionError)
            self._truth.end(served, time.monotonic_ns(), "cancelled" if left else "failed")
            raise
        self._finished[ask.finish_reason] += 1
        self._truth.end(served, time.monotonic_ns(), "completed")
        return response

    async def _stream(
        self, request: web.Request, answer: Answer, events: asyncio.Queue[Any], served: Served
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENT_STREAM)
        await response.prepare(request)
        event = None
        while not isinstance(event, Finish):
            event = await events.get()
            data, chunks = answer.events(event.tokens)
            await response.write(data)  # waits only while this very client reads too slowly
            self._truth.wrote(served, time.monotonic_ns(), event.tokens, chunks)
        await response.write_eof()
        return response

    async def _whole(
        self, request: web.Request, answer: Answer, events: asyncio.Queue[Any], ask: Ask, served: Served
    ) -> web.StreamResponse:
        await events.get()
        response = _json(answer.body())
        await response.prepare(request)
        await response.write_eof()
        self._truth.wrote(served, time.monotonic_ns(), ask.output_tokens, 1)
        return response

    async def _models(self, request: web.Request) -> web.Response:
        try:
            self._check_key(request)
        except Refused as refused:
            return _json(refused.body, refused.status)
        card = {"id": self.options.model, "object": "model", "created": self._created_s, "owned_by": "endsweep"}
        return _json({"object": "list", "data": [{**card, "max_model_len": self.options.kv_tokens}]})

    def _check_key(self, request: web.Request) -> None:
        if self._key is None:
            return
        sent = request.headers.get("Authorization", "")
        if not hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), b"Bearer " + self._key):
            what = "Incorrect API key provided." if sent else "You didn't provide an API key."
            raise Refused(401, what, "invalid_request_error", code="invalid_api_key")

    # Beside the API

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return _json({"version": "endsweep-simulator"})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=exposition(self._collector), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _get_truth(self, request: web.Request) -> web.Response:
        now = time.monotonic_ns()
        span: dict[str, int | None] = {}
        for name in ("from_ns", "to_ns"):
            text = request.query.get(name)
            try:
                span[name] = None if text is None else int(text)
            except ValueError:
                return _json({"error": {"message": f"{name} must be an integer, not {text!r}"}}, 400)
        counters = _less(self._pacer.snapshot().counters, self._counters_before)
        return _json(
            {
                "config": asdict(self._engine.config),
                "options": asdict(self.options),
                "clock": {"name": "CLOCK_MONOTONIC ns", "now_ns": now},
                "engine": {"lag_ns": self._pacer.lag_ns, "re_anchored": self._pacer.re_anchored},
                "counters": asdict(counters),
                **self._truth.report(now, span["from_ns"], span["to_ns"]),
            }
        )

    async def _reset_truth(self, request: web.Request) -> web.Response:
        now = time.monotonic_ns()
        self._truth.reset(now)
        self._counters_before = self._pacer.snapshot().counters
        return _json({"since_ns": now})


@contextlib.asynccontextmanager
async def running(options: SimulatorOptions) -> AsyncIterator[str]:
    """The endpoint, listening; gives its root URL. Raises OSError if it cannot listen, ValueError for bad settings."""
    simulator = Simulator(options)
    # With handler_cancellation a client that leaves is noticed at once, not at the next write.
    runner = web.AppRunner(
        simulator.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.2, handle_signals=False
    )
    try:
        await runner.setup()
        await web.TCPSite(runner, options.host, options.port, backlog=4096).start()
        host, port = runner.addresses[0][:2]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        await runner.cleanup()
        simulator.close()


def _less(now: Counters, before: Counters) -> Counters:
    changes: dict[str, Any] = {
        name: value - getattr(before, name) for name, value in asdict(now).items() if isinstance(value, int)
    }
    pairs = zip(now.accepted_per_position, before.accepted_per_position, strict=True)
    return replace(now, **changes, accepted_per_position=tuple(n - b for n, b in pairs))


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
