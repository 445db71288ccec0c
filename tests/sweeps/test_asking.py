"""One arm asked for greedy answers over a real socket: what is sent, waited for, kept, and not asked again."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from endpoints.attempts import Timeouts
from endpoints.dialects import RequestShape
from endpoints.target import Target, target_of
from endpoints.transport import Call, Exchange
from profiles.loading import load_sweep
from profiles.workloads import Message, Prompt
from sweeps.answers import read_answers
from sweeps.asking import Question, ask, chosen, greedy, questions
from tests.endpoints.fake_endpoint import FakeEndpoint


def target_at(root: str, **endpoint: Any) -> Target:
    document = {"endpoint": {"url": f"{root}/v1", "model": "m", **endpoint}}
    (arm,) = load_sweep(None, document, {}).arms
    return target_of(arm, 20, {"temperature": 0.7, "top_p": 0.9}, Timeouts(5.0, 5.0, 5.0), {})


def wanted(n: int, repeats: int = 1) -> list[Question]:
    return questions([Prompt(f"p{i}", "kind", (Message("user", f"ask {i}"),)) for i in range(n)], "Be brief.", repeats)


def test_a_larger_count_only_adds_prompts() -> None:
    prompts = [Prompt(f"p{i}", "kind", (Message("user", f"text {i % 9}"),)) for i in range(12)]
    few, many = chosen(prompts, 4, 7), chosen(prompts, 100, 7)
    assert many[:4] == few
    assert len(many) == len({p.text for p in many}) == 9
    assert chosen(reversed(prompts), 4, 7) != []
    assert chosen(prompts, 9, 8) != many


def test_greedy_leaves_all_other_sampling_out() -> None:
    sampling = {"temperature": 0.7, "top_p": 0.9, "seed": 5}
    shape = RequestShape("chat", "m", 8, sampling, {"top_k": 3, "temperature": 1, "ignore_eos": True})
    assert dict(greedy(shape).sampling) == {"temperature": 0, "seed": 1}
    assert dict(greedy(shape).extra_body) == {"ignore_eos": True}
    assert dict(greedy(shape, seeded=False).sampling) == {"temperature": 0}


async def test_answers_are_kept_whole_and_not_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "points" / "a" / "equality" / "responses.parquet"
    endpoint, spent = FakeEndpoint(honours=frozenset({"return_token_ids"})), list[Exchange]()

    def spend(_call: Call, exchange: Exchange) -> None:
        spent.append(exchange)

    async with endpoint.running() as root:
        target = target_at(root, extra_body={"return_token_ids": True, "top_k": 4})
        assert await ask(target, wanted(3), path, spend=spend) is None
        assert len(endpoint.asked) == len(spent) == 3
        assert await ask(target, wanted(3), path, spend=spend) is None
        assert len(endpoint.asked) == 3
        assert await ask(target, wanted(4, repeats=2), path, spend=spend) is None
        assert len(endpoint.asked) == 8
    body = endpoint.asked[0]
    assert {k: body[k] for k in ("temperature", "seed", "max_tokens")} == {
        "temperature": 0,
        "seed": 1,
        "max_tokens": 20,
    }
    assert "top_p" not in body
    assert "top_k" not in body
    assert [m["content"] for m in body["messages"]] == ["Be brief.", "ask 0"]
    answers = {a.key: a for a in read_answers(path)}
    assert set(answers) == {(f"p{i}", repeat) for i in range(4) for repeat in (1, 2)}
    one = answers["p0", 1]
    assert (one.text, one.finish_reason, one.token_ids) == ("word " * 9, "stop", list(range(9)))
    assert (one.outcome, one.input_tokens, one.output_tokens, one.seeded) == ("ok", 11, 9, True)


async def test_a_rate_limit_is_waited_for(tmp_path: Path) -> None:
    endpoint, said = FakeEndpoint(limits=2), list[str]()
    async with endpoint.running() as root:
        assert await ask(target_at(root), wanted(2), tmp_path / "a", say=said.append) is None
    assert [a.outcome for a in read_answers(tmp_path / "a")] == ["ok", "ok"]
    assert len(said) == 2
    assert "over its rate limit" in said[0]


async def test_a_rate_limit_that_stays_ends_the_asking(tmp_path: Path) -> None:
    endpoint = FakeEndpoint(limits=99)
    async with endpoint.running() as root:
        why = await ask(target_at(root), wanted(5), tmp_path / "a")
    assert "rate limit" in (why or "")
    assert len(endpoint.asked) == 4
    assert [a.outcome for a in read_answers(tmp_path / "a")] == ["rate_limited"]


async def test_a_refused_seed_is_left_out(tmp_path: Path) -> None:
    endpoint = FakeEndpoint(refuses={"seed": "Unsupported parameter"})
    async with endpoint.running() as root:
        assert await ask(target_at(root), wanted(2), tmp_path / "a") is None
    assert ["seed" in body for body in endpoint.asked] == [True, False, False]
    assert [(a.outcome, a.seeded) for a in read_answers(tmp_path / "a")] == [("ok", False)] * 2


async def test_without_temperature_0_there_is_nothing_greedy(tmp_path: Path) -> None:
    endpoint = FakeEndpoint(refuses={"temperature": "does not support 0 with this model"})
    async with endpoint.running() as root:
        why = await ask(target_at(root), wanted(5), tmp_path / "a")
    assert "it refuses temperature 0 (HTTP 400: does not support 0 with this model" in (why or "")
    assert len(endpoint.asked) == 1


async def test_failures_are_kept_and_asked_again_later(tmp_path: Path) -> None:
    endpoint = FakeEndpoint(missing=("/chat/completions",))
    async with endpoint.running() as root:
        why = await ask(target_at(root), wanted(9), tmp_path / "a")
        assert why is not None
        assert why.startswith("3 requests in a row failed, the last with http_4xx: HTTP 404")
        assert [a.outcome for a in read_answers(tmp_path / "a")] == ["http_4xx"] * 3
        endpoint.missing = ()
        assert await ask(target_at(root), wanted(9), tmp_path / "a") is None
    assert [a.outcome for a in read_answers(tmp_path / "a")] == ["ok"] * 9


async def test_no_text_is_an_answer(tmp_path: Path) -> None:
    endpoint = FakeEndpoint(natural=0)
    async with endpoint.running() as root:
        assert await ask(target_at(root), wanted(5), tmp_path / "a") is None
        assert await ask(target_at(root), wanted(5), tmp_path / "a") is None
    assert [a.outcome for a in read_answers(tmp_path / "a")] == ["empty"] * 5
    assert len(endpoint.asked) == 5


async def test_an_endless_answer_is_a_failure(tmp_path: Path) -> None:
    endpoint = FakeEndpoint(natural=10**6, length_fields=())
    endpoint.length = lambda _body: (10**6, "length")  # type: ignore[method-assign]
    async with endpoint.running() as root:
        await ask(target_at(root), wanted(1), tmp_path / "a")
    (answer,) = read_answers(tmp_path / "a")
    assert answer.outcome == "bad_stream"
    assert "the body is larger than" in (answer.error or "")
    assert len(answer.text) <= 4096 + 64 * 20


class Slow(FakeEndpoint):
    """Never answers the fourth request."""

    stuck = asyncio.Event()

    async def answer(self, request: Any, body: dict[str, Any], route: str) -> Any:
        if len(self.asked) == 3:
            self.asked.append(body)
            self.stuck.set()
            await asyncio.Event().wait()
        return await super().answer(request, body, route)


async def test_a_cancellation_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    endpoint = Slow()
    endpoint.stuck = asyncio.Event()
    async with endpoint.running() as root:
        task = asyncio.create_task(ask(target_at(root), wanted(9), tmp_path / "a"))
        await endpoint.stuck.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
    assert [a.prompt_id for a in read_answers(tmp_path / "a")] == ["p0", "p1", "p2"]


async def test_time_and_limits_end_it(tmp_path: Path) -> None:
    endpoint = Slow()
    async with endpoint.running() as root:
        why = await ask(target_at(root), wanted(9), tmp_path / "a", seconds=0.5)
        assert why == "0.5 s were over"
        assert len(read_answers(tmp_path / "a")) == 3
        why = await ask(target_at(root), wanted(9), tmp_path / "a", limits=lambda: "the limit of 9 tokens is used up")
        assert why == "the limit of 9 tokens is used up"
        assert len(read_answers(tmp_path / "a")) == 3


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_an_endpoint_that_does_not_stream(tmp_path: Path, api: str) -> None:
    endpoint = FakeEndpoint(streams=False)
    async with endpoint.running() as root:
        assert await ask(target_at(root, stream=False, api=api), wanted(1), tmp_path / "a") is None
    (answer,) = read_answers(tmp_path / "a")
    assert set(answer.text.split()) == {"word"}
