"""Options, text, asks, truth and pacing: the parts of the endpoint that need no socket."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import orjson
import pytest

from endpoints.simulator import theory
from endpoints.simulator.__main__ import main
from endpoints.simulator.answers import Answer
from endpoints.simulator.asks import Refused, estimate_tokens, read_ask
from endpoints.simulator.engine import Engine, Finish, SpeculationConfig
from endpoints.simulator.options import SimulatorOptions, parse_speculation
from endpoints.simulator.pacer import Pacer
from endpoints.simulator.text import piece, pieces
from endpoints.simulator.truth import History, Truth

OPTIONS = SimulatorOptions()


def test_speculation_is_read() -> None:
    assert parse_speculation("off") is None
    assert parse_speculation("k=4,p=0.7") == SpeculationConfig(4, 0.7, 450_000, 220_000)
    assert parse_speculation(" k=2, p=1 ,verify_ms=0.5,draft_ms=0") == SpeculationConfig(2, 1.0, 0, 500_000)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "not understood"),
        ("on", "'on' is not understood"),
        ("k=4", "p missing"),
        ("p=0.7", "k missing"),
        ("k=4,p=0.7,q=1", "'q=1' is not understood"),
        ("k=4,k=5,p=0.7", "k is given twice"),
        ("k=4.5,p=0.7", "k must be a whole number"),
        ("k=4,p=often", "p must be a number"),
        ("k=4,p=1.5", "acceptance must be a probability"),
        ("k=4,p=nan", "acceptance must be a probability"),
        ("k=0,p=0.5", "draft_tokens must be 1 to 64"),
        ("k=4,p=0.5,draft_ms=-1", "draft_ns_per_token must not be negative"),
        ("k=4,p=0.5,draft_ms=inf", "not a duration"),
    ],
)
def test_nonsense_about_speculation_is_refused(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_speculation(text)


def test_the_defaults_do_what_their_docstring_says() -> None:
    off = OPTIONS.engine_config()
    on = replace(OPTIONS, speculation="k=4,p=0.7").engine_config()
    assert [off.decode_ns(b) for b in (1, 32, 64)] == [5_000_000, 11_200_000, 17_600_000]
    length = theory.acceptance_length(on.speculation)
    assert length == pytest.approx(2.773, abs=0.001)
    ratio = {b: length * off.decode_ns(b) / on.decode_ns(b) for b in (1, 32)}
    assert ratio == pytest.approx({1: 1.81, 32: 0.75}, abs=0.006)
    assert theory.crossover(on) == pytest.approx(12.8, abs=0.05)
    assert theory.crossover(on, 64) == pytest.approx(12.0, abs=0.05)
    with_prefill = {
        c: theory.mixed(on, c, 128, 64).system_tps / theory.mixed(off, c, 128, 64).system_tps for c in (1, 32)
    }
    assert 1.6 < with_prefill[1] < 2 and 0.7 < with_prefill[32] < 0.85


def test_options_stand_as_arguments() -> None:
    assert OPTIONS.arguments() == []
    changed = replace(OPTIONS, speculation="k=1,p=0.5", burst=True, kv_tokens=99)
    assert changed.arguments() == ["--kv-tokens=99", "--speculation=k=1,p=0.5", "--burst"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--port=70000"], "port must be"),
        (["--model="], "model must have a name"),
        (["--natural-tokens=-1"], "natural_tokens"),
        (["--max-batch=0"], "max_batch"),
        (["--diverge=1.5"], "diverge must be 0 to 1"),
        (["--decode-base-ms=nan"], "not a duration"),
        (["--speculation=k=4"], "p missing"),
        (["--api-key-env=SURELY_NOT_SET_ANYWHERE"], "SURELY_NOT_SET_ANYWHERE"),
    ],
)
def test_bad_settings_get_one_sentence_and_exit_2(arguments: list[str], named: str, capsys: Any) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and named in said.err and said.err.count("\n") == 1


def test_text_is_one_word_a_token_and_plain_in_json() -> None:
    text = pieces(3, 0, 500)
    assert text == "".join(piece(3, i) for i in range(500))
    assert text.count(" ") == len(text.split()) == 500
    assert text.isascii() and orjson.dumps(text) == b'"' + text.encode() + b'"'
    assert pieces(3, 100, 50) in text
    assert text[1].isupper() and "." in text and "," in text
    other = pieces(2, 0, 500).split()
    assert sum(a == b for a, b in zip(text.split(), other, strict=True)) < 50
    assert sorted(text.split()[:64]) != sorted(other[:64])


def chat(**fields: Any) -> bytes:
    return orjson.dumps({"model": "sim", "messages": [{"role": "user", "content": "hello"}], **fields})


def test_asks_are_read_in_both_dialects() -> None:
    ask = read_ask("chat", chat(), OPTIONS)
    assert (ask.prompt_tokens, ask.output_tokens, ask.stream, ask.finish_reason) == (2, 128, False, "length")
    assert read_ask("chat", chat(max_tokens=5, max_completion_tokens=7), OPTIONS).output_tokens == 7
    ask = read_ask(
        "chat", chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}), OPTIONS
    )
    assert ask.stream and ask.include_usage and ask.continuous_usage
    parts = [{"type": "text", "text": "four"}, {"type": "image_url", "image_url": {}}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    assert read_ask("chat", chat(messages=messages), OPTIONS).prompt_tokens == 1
    assert read_ask("completions", orjson.dumps({"prompt": "ä" * 6, "max_tokens": 3}), OPTIONS).prompt_tokens == 3
    assert read_ask("completions", orjson.dumps({"prompt": [5, 6, 7]}), OPTIONS).prompt_tokens == 3
    assert read_ask("completions", orjson.dumps({"prompt": [[5, 6]]}), OPTIONS).prompt_tokens == 2
    assert read_ask("completions", orjson.dumps({"prompt": ""}), OPTIONS).prompt_tokens == 1
    assert [estimate_tokens("x" * n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_prompt_and_seed_fix_the_answer() -> None:
    seeds = [
        read_ask("chat", chat(**fields), OPTIONS).seed for fields in ({}, {"max_tokens": 9}, {"seed": 1}, {"seed": -1})
    ]
    assert seeds[0] == seeds[1] and len({*seeds}) == 3
    other = read_ask("chat", chat(messages=[{"role": "user", "content": "hullo"}]), OPTIONS)
    assert other.seed != seeds[0]


def test_a_natural_length_ends_with_stop_unless_told_to_go_on() -> None:
    options = replace(OPTIONS, natural_tokens=40)
    asks = [read_ask("chat", chat(seed=i, max_tokens=50), options) for i in range(200)]
    assert {a.finish_reason for a in asks} == {"stop", "length"}
    assert all((a.output_tokens == 50) == (a.finish_reason == "length") for a in asks)
    assert min(a.output_tokens for a in asks) >= 20
    assert read_ask("chat", chat(max_tokens=500, ignore_eos=True), options).output_tokens == 500


def test_texts_turn_half_way_for_a_share_of_prompts() -> None:
    options = replace(OPTIONS, diverge=0.3)
    turned = 0
    for i in range(300):
        raw = chat(messages=[{"role": "user", "content": f"question {i}"}], max_tokens=20)
        usual, ask = read_ask("chat", raw, OPTIONS), read_ask("chat", raw, options)
        plain = Answer(usual, 1, 0, "sim", False).body()["choices"][0]["message"]["content"]
        whole = Answer(ask, 1, 0, "sim", False).body()["choices"][0]["message"]["content"]
        streamed = Answer(ask, 1, 0, "sim", True)
        steps = b"".join(streamed.events(n)[0] for n in (1, 4, 4, 4, 4, 3))
        texts = [orjson.loads(line[6:])["choices"] for line in steps.split(b"\n\n")[:-2]]
        assert "".join(c[0]["delta"]["content"] for c in texts) == whole
        assert whole.split()[:10] == plain.split()[:10]
        assert whole.count(" ") == 20
        assert (whole == plain) == (ask.turns_at is None)
        turned += whole != plain
    assert 60 < turned < 120


@pytest.mark.parametrize(
    ("raw", "status", "param"),
    [
        (b"{", 400, None),
        (b"[]", 400, None),
        (b"", 400, None),
        (b'"\xff"', 400, None),
        (chat(model="nope"), 404, "model"),
        (chat(n=2), 400, "n"),
        (chat(messages=[]), 400, "messages"),
        (chat(messages="hello"), 400, "messages"),
        (chat(messages=["hello"]), 400, "messages"),
        (chat(messages=[{"content": 5}]), 400, "messages"),
        (chat(max_tokens=0), 400, "max_tokens"),
        (chat(max_tokens="9"), 400, "max_tokens"),
        (chat(max_tokens=True), 400, "max_tokens"),
        (chat(max_tokens=300_000), 400, "max_tokens"),
        (chat(messages=[{"content": "x" * 1_200_000}]), 400, "input_tokens"),
        (chat(seed="x"), 400, "seed"),
        (chat(stream_options=5), 400, "stream_options"),
    ],
)
def test_bad_asks_are_refused_by_name(raw: bytes, status: int, param: str | None) -> None:
    with pytest.raises(Refused) as refused:
        read_ask("chat", raw, OPTIONS)
    error = refused.value.body["error"]
    assert (refused.value.status, error["param"], error["code"]) == (status, param, status)
    assert error["message"] and error["type"]


@pytest.mark.parametrize("prompt", [None, 5, [], ["a", "b"], [1, "a"], [True]])
def test_bad_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(Refused, match="prompt"):
        read_ask("completions", orjson.dumps({"prompt": prompt}), OPTIONS)


def test_history_knows_values_and_means_and_forgets_the_old() -> None:
    history = History(100, 0, most=4)
    history.append(200, 2)
    history.append(300, 1)
    assert [history.at(ns) for ns in (99, 100, 199, 200, 1000)] == [None, 0, 0, 2, 1]
    assert history.mean(100, 400) == (0 * 100 + 2 * 100 + 1 * 100) / 300
    assert history.mean(250, 260) == 2.0
    assert history.mean(150, 350) == (0 * 50 + 2 * 100 + 1 * 50) / 200
    assert history.mean(99, 200) is None and history.mean(300, 300) is None
    history.append(400, 5)
    history.append(500, 6)
    assert history.at(299) is None and history.at(300) == 1 and history.mean(300, 500) == 3.0


def test_truth_counts_by_span_and_forgets_on_reset() -> None:
    truth = Truth(0, kept_requests=2)
    a = truth.receive(10)
    b = truth.receive(20)
    truth.wrote(a, 30, 1, 1)
    truth.wrote(b, 40, 3, 1)
    truth.wrote(a, 50, 4, 2)
    truth.end(a, 60, "completed")
    report = truth.report(100)
    assert report["in_flight"] == {"now": 1, "max": 2}
    assert report["counts"] == {"received": 2, "completed": 1, "cancelled": 0, "failed": 0}
    assert report["tokens_written"] == 8 and "tokens_in_span" not in report
    first = report["requests"][0]
    assert (first["first_token_ns"], first["last_token_ns"], first["tokens"], first["chunks"]) == (30, 50, 5, 3)
    assert [r["outcome"] for r in report["requests"]] == ["completed", "running"]
    report = truth.report(100, from_ns=30, to_ns=50)  # (30, 50]
    assert report["tokens_in_span"] == 7 and report["requests"] == []
    assert truth.report(100, 10, 20)["requests"][0]["id"] == b.id
    assert truth.report(100, from_ns=0)["in_flight_mean_in_span"] == (10 + 2 * 40 + 40) / 100
    assert truth.report(100, 40, 10**18)["span"] == {"from_ns": 40, "to_ns": 100}
    truth.end(truth.receive(70), 80, "failed")
    assert [r["id"] for r in truth.report(100)["requests"]] == [1, 2]
    truth.reset(200)
    truth.wrote(b, 250, 2, 1)
    report = truth.report(300, 200, 300)
    assert report["tokens_written"] == report["tokens_in_span"] == 2
    assert report["in_flight_mean_in_span"] == 1.0 and report["in_flight"]["max"] == 1
    before = truth.report(300, 100, 300)
    assert before["tokens_in_span"] is None and before["in_flight_mean_in_span"] is None


async def test_steps_keep_to_the_clock_and_a_stopped_process_does_not_hurry_after() -> None:
    engine = Engine(replace(OPTIONS, decode_base_ms=10, decode_ms_per_sequence=0).engine_config())
    pacer = Pacer(engine)
    try:
        sequence, queue = pacer.submit(100, 10, 0, watched=True)
        events = [await queue.get() for _ in range(3)]
        assert time.monotonic_ns() - pacer.lag_ns >= events[-1].ns
        before = pacer.lag_ns
        time.sleep(0.2)  # noqa: ASYNC251 - the whole process stands still
        resumed = time.monotonic_ns()
        while not isinstance(await queue.get(), Finish):
            pass
        assert pacer.re_anchored >= 1
        assert pacer.lag_ns - before > 100_000_000
        assert time.monotonic_ns() - resumed > 50_000_000  # six more steps of 10 ms
        assert sequence.ended_ns is not None
        assert pacer.snapshot().counters.generated_tokens == 10
    finally:
        pacer.close()


async def test_a_later_submit_can_bring_the_alarm_forward() -> None:
    pacer = Pacer(Engine(OPTIONS.engine_config()))
    try:
        _, slow = pacer.submit(1000, 2000, 0, watched=False)
        _, quick = pacer.submit(1, 1, 0, watched=False)
        async with asyncio.timeout(5):
            await quick.get()
        assert slow.empty()
    finally:
        pacer.close()
