"""The endpoint over real sockets: what clients of both dialects see, and that the truth says the same."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from endpoints.simulator.options import SimulatorOptions
from endpoints.simulator.server import running
from endpoints.simulator.text import pieces

QUICK: dict[str, Any] = {
    "decode_base_ms": 1,
    "decode_ms_per_sequence": 0.01,
    "prefill_base_ms": 1,
    "prefill_ms_per_token": 0.001,
}
SPECULATING: dict[str, Any] = QUICK | {"speculation": "k=4,p=0.7,draft_ms=0.01,verify_ms=0.01"}


class Client:
    def __init__(self, session: aiohttp.ClientSession, root: str):
        self.session, self.root = session, root

    async def stream(self, path: str, **body: Any) -> tuple[list[Any], list[int]]:
        """Events of a stream, decoded ("[DONE]" as it is), and when each piece of the body came."""
        body = {"stream": True, **_prompt(path), **body}
        data, times = b"", []
        async with self.session.post(self.root + path, json=body) as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/event-stream")
            async for part in response.content.iter_any():
                data += part
                times.append(time.monotonic_ns())
        frames = data.decode().split("\n\n")
        assert frames.pop() == "" and all(f.startswith("data: ") for f in frames)
        return [f[6:] if f == "data: [DONE]" else orjson.loads(f[6:]) for f in frames], times

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) else orjson.dumps({**_prompt(path), **body})
        async with self.session.post(self.root + path, data=raw, headers=headers) as response:
            return response.status, await response.json(content_type=None)

    async def get(self, path: str, **headers: str) -> Any:
        async with self.session.get(self.root + path, headers=headers) as response:
            return await response.json(content_type=None)

    async def metrics(self) -> dict[str, Any]:
        async with self.session.get(self.root + "/metrics") as response:
            return {f.name: f for f in text_string_to_metric_families(await response.text())}

    async def until(self, true: Callable[[Any], bool]) -> Any:
        """The truth, once `true` of it."""
        async with asyncio.timeout(20):
            while True:
                if true(truth := await self.get("/truth")):
                    return truth
                await asyncio.sleep(0.01)


def _prompt(path: str) -> dict[str, Any]:
    chat = path.endswith("chat/completions")
    return {"messages": [{"role": "user", "content": "tell me"}]} if chat else {"prompt": "tell me"}


@contextlib.asynccontextmanager
async def client(**options: Any) -> AsyncIterator[Client]:
    async with running(SimulatorOptions(**options)) as root, aiohttp.ClientSession() as session:
        yield Client(session, root)


async def test_a_chat_stream_has_the_shape_of_vllm() -> None:
    async with client(**QUICK) as c:
        events, _ = await c.stream("/v1/chat/completions", max_tokens=4, stream_options={"include_usage": True})
        role, *text, usage, done = events
        assert role["object"] == "chat.completion.chunk" and role["model"] == "sim"
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert [e["choices"][0]["finish_reason"] for e in text] == [None, None, None, "length"]
        assert all(len(e["choices"][0]["delta"]["content"].split()) == 1 for e in text)
        assert all("usage" not in e for e in [role, *text])
        assert usage["choices"] == []
        assert usage["usage"] == {"prompt_tokens": 2, "total_tokens": 6, "completion_tokens": 4}
        assert done == "[DONE]"
        assert len({e["id"] for e in events[:-1]}) == 1


async def test_a_completions_stream_without_usage() -> None:
    async with client(**QUICK) as c:
        events, _ = await c.stream("/v1/completions", max_tokens=3)
        *text, done = events
        assert [e["object"] for e in text] == ["text_completion"] * 3
        assert [e["choices"][0]["finish_reason"] for e in text] == [None, None, "length"]
        assert "".join(e["choices"][0]["text"] for e in text).count(" ") == 3
        assert done == "[DONE]"


async def test_speculation_puts_several_tokens_in_an_event_and_running_usage_tells_them() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with client(**SPECULATING) as c:
        events, _ = await c.stream("/v1/chat/completions", max_tokens=60, stream_options=options)
        text = events[1:-2]
        sizes = [len(e["choices"][0]["delta"]["content"].split()) for e in text]
        assert sizes[0] == 1 and max(sizes) > 1 and max(sizes) <= 5 and sum(sizes) == 60
        assert [e["usage"]["completion_tokens"] for e in events[:-1]] == [0, *_sums(sizes), 60]
        truth = await c.get("/truth")
        assert truth["requests"][0]["chunks"] == len(text)
        assert truth["counters"]["drafts"] == len(text) - 1
        assert truth["counters"]["accepted_emitted"] == 60 - len(text)


async def test_burst_mode_sends_an_event_per_token_with_the_same_text() -> None:
    async with client(**SPECULATING) as plain, client(**SPECULATING, burst=True) as burst:
        whole, _ = await plain.stream("/v1/completions", max_tokens=60)
        single, _ = await burst.stream("/v1/completions", max_tokens=60)
        assert [len(e["choices"][0]["text"].split()) for e in single[:-1]] == [1] * 60
        assert _text(single) == _text(whole)
        assert [e["choices"][0]["finish_reason"] for e in single[:-1]] == [None] * 59 + ["length"]
        request = (await burst.get("/truth"))["requests"][0]
        assert request["chunks"] == request["tokens"] == 60


async def test_answers_in_one_piece_say_what_streams_say() -> None:
    async with client(**QUICK) as c:
        for path, said in (
            ("/v1/chat/completions", lambda x: x["message"]["content"]),
            ("/v1/completions", lambda x: x["text"]),
        ):
            status, body = await c.post(path, {"max_tokens": 12})
            streamed, _ = await c.stream(path, max_tokens=12)
            assert status == 200
            assert said(body["choices"][0]) == _text(streamed)
            assert body["choices"][0]["finish_reason"] == "length"
            assert body["usage"] == {"prompt_tokens": 2, "total_tokens": 14, "completion_tokens": 12}
        truth = await c.get("/truth")
        assert truth["counts"]["completed"] == 4 and truth["tokens_written"] == 48


async def test_a_natural_end_is_a_stop() -> None:
    async with client(**QUICK, natural_tokens=4) as c:
        events, _ = await c.stream("/v1/completions", max_tokens=100, stream_options={"include_usage": True})
        assert events[-3]["choices"][0]["finish_reason"] == "stop"
        assert events[-2]["usage"]["completion_tokens"] == len(events) - 2 < 7
        assert (await c.metrics())["vllm:request_success"].samples[1].value == 1


async def test_refusals() -> None:
    async with client(**QUICK, kv_tokens=200) as c:
        status, body = await c.post("/v1/chat/completions", {"model": "nope"})
        assert (
            status == 404
            and body["error"]["type"] == "NotFoundError"
            and "`nope` does not exist" in body["error"]["message"]
        )
        assert (await c.post("/v1/chat/completions", b"{"))[0] == 400
        status, body = await c.post("/v1/completions", {"prompt": "x" * 900})
        assert status == 400 and body["error"]["param"] == "input_tokens"
        async with c.session.get(c.root + "/v1/elsewhere") as response:
            assert response.status == 404
        truth = await c.get("/truth")
        assert truth["counts"] == {"received": 3, "completed": 0, "cancelled": 0, "failed": 3}
        assert truth["in_flight"]["now"] == 0


async def test_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATOR_TEST_KEY", "s3cret")
    async with client(**QUICK, api_key_env="SIMULATOR_TEST_KEY") as c:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
            status, body = await c.post("/v1/completions", {"max_tokens": 1}, **headers)
            assert status == 401
            assert (body["error"]["code"], body["error"]["type"]) == ("invalid_api_key", "invalid_request_error")
            assert "error" in await c.get("/v1/models", **headers)
        assert (await c.post("/v1/completions", {"max_tokens": 1}, Authorization="Bearer s3cret"))[0] == 200
        models = await c.get("/v1/models", Authorization="Bearer s3cret")
        assert [m["id"] for m in models["data"]] == ["sim"]
        truth = await c.get("/truth")
        assert "s3cret" not in orjson.dumps(truth).decode()


async def test_the_truth_is_what_clients_saw() -> None:
    async with client(**SPECULATING) as c:
        await c.stream("/v1/completions", max_tokens=5)
        async with c.session.post(c.root + "/truth/reset") as response:
            assert response.status == 200
        begin = time.monotonic_ns()
        seen = await asyncio.gather(
            *(c.stream("/v1/completions", prompt=f"ask {i}", max_tokens=20 + i) for i in range(6))
        )
        end = time.monotonic_ns()
        truth = await c.get(f"/truth?from_ns={begin}&to_ns={end}")
        assert truth["counts"] == {"received": 6, "completed": 6, "cancelled": 0, "failed": 0}
        assert truth["in_flight"] == {"now": 0, "max": 6}
        assert truth["tokens_written"] == truth["tokens_in_span"] == truth["counters"]["generated_tokens"]
        assert truth["tokens_in_span"] == sum(len(_text(events).split()) for events, _ in seen) == 135
        assert 0 < truth["in_flight_mean_in_span"] <= 6
        assert sorted(r["tokens"] for r in truth["requests"]) == [20 + i for i in range(6)]
        for (events, times), request in zip(seen, sorted(truth["requests"], key=lambda r: r["tokens"]), strict=True):
            assert request["chunks"] == len(events) - 1
            assert begin < request["received_ns"] < request["first_token_ns"] <= request["last_token_ns"]
            assert request["received_ns"] < times[0] and request["last_token_ns"] < times[-1] + 1_000_000_000
        assert (await c.get(f"/truth?from_ns={begin}&to_ns={begin}"))["tokens_in_span"] == 0
        assert (await c.get(f"/truth?from_ns={end}"))["requests"] == []
        assert "error" in await c.get("/truth?from_ns=soon")
        assert truth["clock"]["name"] == "CLOCK_MONOTONIC ns"
        assert begin < truth["clock"]["now_ns"] < time.monotonic_ns()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_place(stream: bool) -> None:
    async with client(**QUICK, max_batch=1) as c:
        body = {"prompt": "x", "max_tokens": 200_000, "stream": stream}
        leaver = aiohttp.ClientSession()
        asked = asyncio.create_task(leaver.post(c.root + "/v1/completions", json=body))
        if stream:
            response = await asked
            await response.content.readany()
        await c.until(lambda t: t["in_flight"]["now"] == 1)
        waiting = asyncio.create_task(c.stream("/v1/completions", max_tokens=3))
        await c.until(lambda t: t["in_flight"]["now"] == 2)
        asked.cancel()
        await leaver.close()
        events, _ = await waiting
        assert len(events) == 4
        truth = await c.until(lambda t: t["in_flight"]["now"] == 0)
        assert truth["counts"] == {"received": 2, "completed": 1, "cancelled": 1, "failed": 0}
        assert sorted(r["outcome"] for r in truth["requests"]) == ["cancelled", "completed"]
        metrics = await c.metrics()
        assert metrics["vllm:num_requests_running"].samples[0].value == 0
        assert metrics["vllm:kv_cache_usage_perc"].samples[0].value == 0


async def test_a_client_that_reads_nothing_holds_up_only_itself() -> None:
    many = QUICK | {"speculation": "k=64,p=1,draft_ms=0,verify_ms=0", "burst": True}
    async with client(**many) as c, aiohttp.ClientSession(read_bufsize=1024) as idle:
        body = {"prompt": "x", "max_tokens": 200_000, "stream": True}
        async with idle.post(c.root + "/v1/completions", json=body):
            await c.until(lambda t: t["counters"]["generated_tokens"] > t["tokens_written"] + 1000)
            events, _ = await c.stream("/v1/completions", max_tokens=100)
            assert len(events) == 101
        truth = await c.until(lambda t: t["in_flight"]["now"] == 0)
        assert truth["counts"]["cancelled"] == truth["counts"]["completed"] == 1


async def test_metrics_have_vllms_names_and_agree_with_the_truth() -> None:
    async with client(**SPECULATING) as on, client(**QUICK) as off:
        for c in (on, off):
            await c.stream("/v1/completions", max_tokens=40)
        counters = (await on.get("/truth"))["counters"]
        metrics = await on.metrics()

        def totals(name: str) -> list[float]:
            return [s.value for s in metrics[name].samples if s.name == name + "_total"]

        assert totals("vllm:generation_tokens") == [40] and totals("vllm:prompt_tokens") == [2]
        assert totals("vllm:request_success") == [1, 0]
        assert totals("vllm:spec_decode_num_drafts") == [counters["drafts"]]
        assert totals("vllm:spec_decode_num_draft_tokens") == [4 * counters["drafts"]]
        assert totals("vllm:spec_decode_num_accepted_tokens") == [counters["accepted"]]
        assert totals("vllm:spec_decode_num_accepted_tokens_per_pos") == counters["accepted_per_position"]
        positions = [s.labels["position"] for s in metrics["vllm:spec_decode_num_accepted_tokens_per_pos"].samples]
        assert positions == ["0", "1", "2", "3"]
        assert metrics["vllm:generation_tokens"].samples[0].labels == {"model_name": "sim", "engine": "0"}
        assert not any("spec_decode" in name for name in await off.metrics())


async def test_connections_are_kept_and_the_small_pages_answer() -> None:
    async with running(SimulatorOptions(**QUICK)) as root:
        connector = aiohttp.TCPConnector(limit=1)
        created = []
        trace = aiohttp.TraceConfig()

        async def note(*_: Any) -> None:
            created.append(1)

        trace.on_connection_create_end.append(note)
        async with aiohttp.ClientSession(connector=connector, trace_configs=[trace]) as session:
            c = Client(session, root)
            for _ in range(3):
                await c.stream("/v1/completions", max_tokens=2)
                await c.post("/v1/completions", b"{")
            async with session.get(root + "/health") as response:
                assert response.status == 200 and await response.read() == b""
            assert "version" in await c.get("/version")
        assert len(created) == 1


async def test_equal_prompts_give_equal_texts_with_speculation_off_and_on() -> None:
    async with client(**QUICK) as off, client(**SPECULATING, seed=5) as on:
        texts = [_text((await c.stream("/v1/completions", max_tokens=30))[0]) for c in (off, on)]
        assert texts[0] == texts[1]
        assert texts[0] != pieces(0, 0, 30)


def _text(events: list[Any]) -> str:
    choices = [choice for e in events if e != "[DONE]" for choice in e["choices"]]
    return "".join(c["text"] if "text" in c else c["delta"]["content"] for c in choices)


def _sums(sizes: list[int]) -> list[int]:
    return [sum(sizes[: i + 1]) for i in range(len(sizes))]
