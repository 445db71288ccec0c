"""What one streamed reply means: fragments, counts, errors, and whether it was whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpoints.dialects import Usage
from endpoints.outcomes import Outcome
from endpoints.reply import EventTooLarge, Reply

STREAMS = Path(__file__).with_name("streams")
DONE = b"data: [DONE]\n\n"


def event(doc: Any, kind: str = "") -> bytes:
    named = f"event: {kind}\n" if kind else ""
    return f"{named}data: {json.dumps(doc, ensure_ascii=False)}\n\n".encode("utf-8", "surrogatepass")


def chat(finish: str | None = None, usage: Any = None, **delta: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage})


def used(inputs: int, outputs: int, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": inputs, "completion_tokens": outputs, "total_tokens": inputs + outputs} | more


def read(*blocks: bytes) -> Reply:
    """The reply of blocks that arrive at 0, 1, 2... ns."""
    reply = Reply(keep_text=True)
    for at, block in enumerate(blocks):
        reply.feed(block, at)
    return reply


# --- what stops the first-token clock


@pytest.mark.parametrize(
    "nothing",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None, "reasoning_content": None, "tool_calls": None},
        {"content": [], "tool_calls": [], "refusal": ""},
        {},
    ],
)
def test_a_frame_without_text_never_stops_the_clock(nothing: dict[str, Any]) -> None:
    reply = read(b": ping\n\n", chat(**nothing), event({"choices": []}), b"data:\n\n", chat(content="a"), chat("stop"))
    assert list(reply.chunk_ns) == [4]
    assert reply.first_visible_ns == 4
    assert reply.verdict() == (Outcome.OK, None)


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        ({"reasoning": "hm"}, "hm"),
        ({"reasoning_content": "hm"}, "hm"),
        ({"reasoning": "hm", "reasoning_content": "hm"}, "hm"),  # the same thought under two names
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}, "hm"),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, "f"),
        ({"tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}, None]}, '{"a'),
        ({"function_call": {"name": None, "arguments": "{}"}}, "{}"),
    ],
)
def test_unseen_text_is_a_fragment_but_not_a_visible_one(delta: dict[str, Any], text: str) -> None:
    reply = read(chat(role="assistant", content=""), chat(**delta), chat(content="seen"), DONE)
    assert list(reply.chunk_ns) == [1, 2]
    assert reply.first_visible_ns == 2
    assert reply.text == text + "seen"
    assert reply.reasoned == (text == "hm")


@pytest.mark.parametrize(
    "delta",
    [{"content": "a"}, {"refusal": "a"}, {"content": [{"type": "text", "text": "a"}, {"type": "image"}, "?", None]}],
)
def test_content_of_every_form_is_visible(delta: dict[str, Any]) -> None:
    reply = read(chat(**delta), chat("stop"))
    assert (reply.first_visible_ns, reply.text, reply.text_bytes) == (0, "a", 1)


def test_completions_speak_of_text() -> None:
    reply = read(event({"choices": [{"text": ""}]}), event({"choices": [{"text": "a", "finish_reason": "stop"}]}))
    assert (list(reply.chunk_ns), reply.text, reply.finish_reason) == ([1], "a", "stop")


def test_several_choices_in_one_event_are_one_fragment() -> None:
    choices = [{"index": 0, "delta": {"content": "a"}}, None, {"index": 1, "delta": {"content": "b"}}]
    reply = read(event({"choices": choices}), DONE)
    assert (list(reply.chunk_ns), reply.text) == ([0], "ab")


def test_unknown_keys_nulls_and_wrong_types_spoil_nothing() -> None:
    strange = {
        "id": None,
        "model": 7,
        "system_fingerprint": None,
        "new": {"deep": [1]},
        "error": None,
        "usage": "soon",
        "choices": [{"delta": {"content": "a", "audio": 3, "tool_calls": {"no": "list"}}, "logprobs": None, "x": 1}],
    }
    reply = read(event(strange), event({"choices": None}), event({"choices": [{"delta": None}]}), DONE)
    assert (reply.text, reply.dropped, reply.verdict()) == ("a", 0, (Outcome.OK, None))


def test_names_are_those_of_the_first_event_that_gives_them() -> None:
    doc = {"id": "r1", "model": "m", "system_fingerprint": "fp", "choices": []}
    reply = read(event({"id": "", "choices": []}), event(doc), event(doc | {"id": "r2"}), DONE)
    assert (reply.request_id, reply.model, reply.fingerprint) == ("r1", "m", "fp")


# --- counts


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([chat(content="a"), chat("stop"), event({"choices": [], "usage": used(3, 9)}), DONE], (3, 9)),
        ([chat(content="a"), chat("stop"), event({"usage": used(3, 9)}), DONE], (3, 9)),
        ([chat(content="a"), chat("stop", used(3, 9)), DONE], (3, 9)),
        ([chat(content="a", usage=used(3, 1)), chat("stop", used(3, 9)), chat(), DONE], (3, 9)),
        ([chat("stop", used(3, 9), content="a"), event({"choices": [], "usage": None}), DONE], (3, 9)),
        ([chat("stop", used(3, 9), content="a"), event({"choices": [], "usage": {}}), DONE], (3, 9)),
        ([chat("stop", {"prompt_tokens": 3.0, "completion_tokens": 9.0}, content="a"), DONE], (3, 9)),
        ([chat("stop", {"prompt_tokens": "3", "completion_tokens": None}, content="a"), DONE], None),
        ([chat("stop", {"prompt_tokens": True, "completion_tokens": -1}, content="a"), DONE], None),
        ([chat(content="a"), chat("stop"), DONE], None),
    ],
)
def test_usage_counts_wherever_it_comes_and_the_last_stands(
    frames: list[bytes], expected: tuple[int, int] | None
) -> None:
    usage = read(*frames).usage
    assert (None if usage is None else (usage.input_tokens, usage.output_tokens)) == expected


def test_details_of_usage_and_their_absence() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 4}}
    assert read(chat("stop", used(3, 9, **details), content="a")).usage == Usage(3, 9, 2, 4)
    nulls = {"prompt_tokens_details": None, "completion_tokens_details": {"reasoning_tokens": None}}
    assert read(chat("stop", used(3, 9, **nulls), content="a")).usage == Usage(3, 9, None, None)


def test_running_usage_tells_the_tokens_of_each_fragment() -> None:
    reply = read(
        chat(role="assistant", content="", usage=used(5, 0)),
        chat(content="four", usage=used(5, 4)),
        chat(content="", usage=used(5, 5)),  # a token that is not yet a whole character
        chat(content="é", usage=used(5, 6)),
        chat("stop", used(5, 7)),
        event({"choices": [], "usage": used(5, 7)}),
        DONE,
    )
    assert reply.chunk_tokens() == [4, 2]
    assert reply.usage is not None and reply.usage.output_tokens == 7


def test_the_same_final_usage_on_every_fragment_tells_nothing_of_them() -> None:
    assert read(*(chat(content=c, usage=used(5, 9)) for c in "abc"), DONE).chunk_tokens() is None


def test_usage_on_some_fragments_only_tells_nothing_of_them() -> None:
    assert read(chat(content="a", usage=used(5, 1)), chat(content="b"), DONE).chunk_tokens() is None


def test_listed_token_ids_tell_the_tokens_of_each_fragment() -> None:
    def ids(text: str, *tokens: int, finish: str | None = None) -> bytes:
        return event({"choices": [{"delta": {"content": text}, "token_ids": tokens, "finish_reason": finish}]})

    reply = read(ids("", 1), ids("é", 2), ids("", 3), ids("ab", 4, 5), ids("", 6, finish="stop"), DONE)
    assert reply.chunk_tokens() == [2, 3]  # those without text belong to the fragment they complete; the last to none
    assert reply.token_ids() == [1, 2, 3, 4, 5, 6]
    assert read(ids("a", 1), chat(content="b"), DONE).chunk_tokens() is None
    assert read(ids("a"), DONE).chunk_tokens() is None
    for some in (
        read(ids("a", 1), chat(content="b"), DONE),
        read(ids("a", -1), DONE),
        read(ids("a"), DONE),
        read(DONE),
    ):
        assert some.token_ids() is None


# --- errors inside a 200 stream


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (event({"error": {"message": "out of\nmemory", "type": "server_error", "code": 500}}), "out of memory"),
        (event({"error": {"type": "overloaded"}}), "overloaded"),
        (event({"error": {"message": "not so", "param": "seed"}}), "not so (seed)"),
        (event({"error": "boom"}), "boom"),
        (event({"error": {"message": "boom"}, "choices": []}), "boom"),
        (event({"message": "boom"}, "error"), "boom"),
        (event({"detail": "boom"}, "error"), "boom"),
        (b"event: error\ndata: boom\n\n", "boom"),
        (event({"message": "boom", "code": 500}), "boom"),
        (event({"object": "error", "message": "boom", "type": "x"}), "boom"),
        (chat("error"), "finish reason 'error'"),
        (chat("abort"), "finish reason 'abort'"),
        (event({"choices": [{"delta": {}, "finish_reason": "error", "error": {"message": "boom"}}]}), "boom"),
    ],
)
def test_an_error_among_good_events_fails_the_reply(frame: bytes, said: str) -> None:
    reply = read(chat(content="a"), frame, chat("stop"), DONE)
    outcome, why = reply.verdict()
    assert outcome is Outcome.ERROR_EVENT
    assert why is not None and said in why
    assert list(reply.chunk_ns) == [0]  # what had come is still known


def test_events_that_only_look_like_errors() -> None:
    innocent = [
        event({"error": None, "choices": []}),
        event({"error": False, "choices": []}),
        event({"message": "hello"}),
        event({"message": "x", "code": 1, "choices": []}),
        chat(content='{"error": "quoted by the model"}'),
    ]
    assert read(*innocent, chat("stop"), DONE).verdict() == (Outcome.OK, None)


# --- malformed events


@pytest.mark.parametrize("bad", [b"{", b"null", b"[1]", b'"x"', b"{'a': 1}", b"\xff\xfe", b"[" * 200_000, b"NaN"])
def test_a_malformed_event_harms_no_other(bad: bytes) -> None:
    good = [chat(content="a"), chat(content="b"), chat("stop"), DONE]
    reply = read(good[0] + b"data: " + bad + b"\n\n" + b"".join(good[1:]))  # all in one write
    assert (reply.text, reply.dropped, reply.verdict()) == ("ab", 1, (Outcome.OK, None))


def test_a_stream_of_malformed_events_is_a_bad_stream() -> None:
    assert read(b"data: {\n\n", b"data: }\n\n").verdict()[0] is Outcome.BAD_STREAM
    assert read(b"data: {\n\n", DONE).verdict()[0] is Outcome.BAD_STREAM
    assert read(chat(content="a"), b"data: {\n\n").verdict()[0] is Outcome.BAD_STREAM


@pytest.mark.parametrize("text", ["a\u2028b\u0085c", "\x00\x1b[31m", "日本語", "👩‍👩‍👧", '"\\'])
def test_any_text_comes_through_and_may_be_cut_anywhere(text: str) -> None:
    stream = chat(content=text) + chat("stop") + DONE
    for cut in range(len(stream)):
        assert read(stream[:cut], stream[cut:]).text == text


def test_lone_surrogates_and_invalid_bytes_can_still_be_stored() -> None:
    pair = [b'data: {"choices":[{"delta":{"content":"\\ud83d"}}],"model":"\\udc00m"}\n\n']
    pair += [b'data: {"choices":[{"delta":{"content":"\\ude00"}}]}\n\n']
    assert read(*pair, DONE).text == "😀"
    lone = read(
        pair[0], b'data: {"error":"\\ud83d"}\n\n', b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n', DONE
    )
    assert lone.text == "\ufffd\ufffd"
    assert (lone.model, lone.error) == ("?m", "?")
    assert len(lone.chunk_ns) == 2


# --- whole or not


def test_a_finish_reason_or_done_is_enough_and_neither_is_too_little() -> None:
    assert read(chat(content="a"), chat("length")).verdict() == (Outcome.OK, None)
    assert read(chat(content="a"), DONE).verdict() == (Outcome.OK, None)
    assert read(chat(content="a"), b"data:[DONE]\n\n").verdict() == (Outcome.OK, None)
    assert read(chat(content="a"), b"data: [DONE] \n\n").verdict() == (Outcome.OK, None)
    assert read(chat(content="a")).verdict()[0] is Outcome.TRUNCATED
    assert read(chat(content="a"), DONE[:-1]).verdict()[0] is Outcome.TRUNCATED  # its blank line never came
    assert read(chat(content="a"), chat("")).verdict()[0] is Outcome.TRUNCATED


def test_what_comes_after_done_is_no_part_of_the_reply() -> None:
    reply = read(chat(content="a"), DONE, chat(content="b"), event({"error": "late"}))
    assert (reply.text, reply.verdict()) == ("a", (Outcome.OK, None))


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b"", Outcome.EMPTY),
        (b" \r\n", Outcome.EMPTY),
        (DONE, Outcome.EMPTY),
        (chat(role="assistant", content="") + chat("stop") + DONE, Outcome.EMPTY),
        (b'{"error": {"message": "no such model"}}', Outcome.ERROR_EVENT),
        (b'{"error": {"message": "' + b"x" * 5000 + b'"}}', Outcome.ERROR_EVENT),
        (b'{"object": "error", "message": "no", "code": 404}', Outcome.ERROR_EVENT),
        (b'{"choices": [{"message": {"content": "whole"}}]}', Outcome.NOT_A_STREAM),
        (b"<html><body>Welcome</body></html>", Outcome.NOT_A_STREAM),
        (b"data: {", Outcome.TRUNCATED),
        (b": waiting\n\n", Outcome.TRUNCATED),
    ],
)
def test_bodies_without_a_reply(body: bytes, outcome: Outcome) -> None:
    for blocks in ([body], [body[i : i + 1] for i in range(len(body))]):
        seen, why = read(*blocks).verdict()
        assert seen is outcome
        assert why and "\n" not in why


def test_an_event_beyond_the_bound_is_raised() -> None:
    with pytest.raises(EventTooLarge):
        Reply(max_event_bytes=1000).feed(b"data: " + b"x" * 2000, 0)


# --- recorded from real servers


def blocks_of(name: str) -> list[bytes]:
    """The chunks of a recorded chunked HTTP response."""
    _, _, rest = (STREAMS / f"{name}.raw").read_bytes().partition(b"\r\n\r\n")
    blocks: list[bytes] = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if (n := int(size, 16)) == 0:
            return blocks
        blocks.append(rest[:n])
        rest = rest[n + 2 :]


RECORDED: dict[str, dict[str, Any]] = {
    "llamacpp-off-chat": {
        "usage": Usage(20, 16, 0, None),
        "chunks": 16,
        "finish": "length",
        "visible": 0,
        "model": "tiny",
        "fingerprint": "b0-unknown",
    },
    "llamacpp-think-chat": {
        "usage": Usage(26, 6, 0, None),
        "chunks": 6,
        "finish": "length",
        "visible": None,
        "model": "think",
        "fingerprint": "b0-unknown",
    },
    "vllm-off-completions": {
        "usage": Usage(5, 4, None, None),
        "chunks": 4,
        "finish": "length",
        "visible": 0,
        "model": "m",
        "fingerprint": "vllm-0.32.0-41492d6c",
    },
    "vllm-noisydraft-chat-token-ids": {
        "usage": Usage(13, 12, None, None),
        "chunks": 9,
        "tokens": [1, 2, 1, 1, 3, 1, 1, 1, 1],
        "finish": "length",
        "visible": 1,
        "model": "m",
        "fingerprint": "vllm-0.32.0-11bcd850",
    },
    "vllm-noisydraft-chat-continuous-usage": {
        "usage": Usage(23, 24, None, None),
        "chunks": 17,
        "tokens": [1, 1, 2, 2, 2, 1, 1, 2, 3, 1, 1, 1, 1, 2, 1, 1, 1],
        "finish": "length",
        "visible": 1,
        "model": "m",
        "fingerprint": "vllm-0.32.0-11bcd850",
    },
    "dynamo-mtp-completions": {
        "usage": Usage(4, 16, None, None),
        "chunks": 16,
        "finish": "length",
        "visible": 0,
        "model": "m",
    },
    "transformers-serve-chat": {
        "usage": Usage(15, 6, None, None),
        "chunks": 4,
        "finish": "length",
        "visible": 1,
        "model": "/models/xxxxxxxxxxxxxxxxxxxxx@main",
        "done": False,
    },
    "cyllama-embedded-chat": {"usage": None, "chunks": 6, "finish": "stop", "visible": 1, "model": "tiny"},
    "aimock-reasoning-chat": {
        "usage": Usage(3, 5, None, None),
        "chunks": 11,
        "finish": "stop",
        "visible": 8,
        "model": "gpt-4o",
    },
}


def check(reply: Reply, wanted: dict[str, Any]) -> None:
    assert reply.verdict() == (Outcome.OK, None)
    assert reply.usage == wanted["usage"]
    assert len(reply.chunk_ns) == wanted["chunks"]
    assert reply.chunk_tokens() == wanted.get("tokens")
    assert reply.finish_reason == wanted["finish"]
    assert (reply.model, reply.fingerprint) == (wanted["model"], wanted.get("fingerprint"))
    assert (reply.done, reply.dropped) == (wanted.get("done", True), 0)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_replies(name: str) -> None:
    reply = read(*blocks_of(name))
    check(reply, RECORDED[name])
    assert reply.first_visible_ns == RECORDED[name]["visible"]
    assert reply.reasoned == (name in ("llamacpp-think-chat", "aimock-reasoning-chat"))


def test_a_recorded_reply_with_token_ids_has_them_all() -> None:
    ids = read(*blocks_of("vllm-noisydraft-chat-token-ids")).token_ids()
    assert ids is not None
    assert (len(ids), ids[:5]) == (12, [695, 1512, 1110, 769, 1354])


def test_every_recording_is_asserted() -> None:
    assert {path.stem for path in STREAMS.glob("*.raw")} == set(RECORDED)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(RECORDED)), st.data(), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_recorded_replies_cut_and_framed_anyhow(name: str, data: st.DataObject, end: bytes) -> None:
    whole = b"".join(blocks_of(name))
    stream = whole.replace(b"\n", end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    reply = read(*(stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)))
    check(reply, RECORDED[name])
    assert reply.text == read(whole).text
    assert reply.text_hash == read(whole).text_hash
