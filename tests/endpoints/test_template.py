"""Reading by template: never another answer than reading in full, and nothing read in full that need not be."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpoints import dialects, reply
from endpoints.dialects import Delta, interpret, parse
from endpoints.reply import Reply
from endpoints.template import learn

PLAIN = st.characters(min_codepoint=0x20, exclude_characters='"\\\x7f', exclude_categories=["Cs"])


def chat(delta: Any, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    return {"id": "chatcmpl-1", "created": 1, "model": "m", "choices": [choice], **more}


def learnt(data: bytes) -> bool:
    return learn(data, interpret(parse(data))) is not None


def dumped(doc: Any, compact: bool = True) -> bytes:
    return json.dumps(doc, separators=(",", ":") if compact else None, ensure_ascii=False).encode()


STYLES = {
    "vllm": chat({"content": "a"}),
    "sglang": chat({"role": None, "content": "a", "reasoning_content": None, "tool_calls": None}, usage=None),
    "thinking": chat({"reasoning_content": "a"}),
    "thinking-new": chat({"reasoning": "a", "content": ""}),
    "completions": {"id": "c", "choices": [{"text": "a", "index": 0, "finish_reason": None}], "model": "m"},
    "fingerprint": chat({"content": "a"}, system_fingerprint="fp", usage={}),
    "other-string": chat({"content": "a"}, object="chat.completion.chunk", extra={"name": "größe"}),
}


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@given(text=st.text(PLAIN, min_size=1))
@settings(max_examples=50)
def test_the_string_in_a_document_says_what_the_document_says(style: Any, compact: bool, text: str) -> None:
    data = dumped(style, compact)
    delta = interpret(parse(data))
    template = learn(data, delta)
    assert template is not None
    other = template.head + text.encode() + template.tail
    assert template.text_in(other) == text.encode()
    read = interpret(parse(other))
    assert (read.visible or read.hidden, read.reasoned, read.model) == (text, delta.reasoned, delta.model)


REFUSED = {
    "nothing": b'{"choices":[{"delta":{"content":""}}]}',
    "escaped": rb'{"choices":[{"delta":{"content":"a\n"}}]}',
    "not-utf-8": b'{"choices":[{"delta":{"content":"\xff"}}]}',
    "half-a-pair": b'{"choices":[{"delta":{"content":"\xed\xa0\xbd"}}]}',
    "two": b'{"choices":[{"delta":{"content":"a","reasoning":"b"}}]}',
    "two-choices": b'{"choices":[{"delta":{"content":"a"}},{"delta":{"content":"b"}}]}',
    "said-twice": b'{"choices":[{"delta":{"content":"b","content":"a"}}]}',
    "said-again-in-disguise": rb'{"choices":[{"delta":{"content":"a","c\u006fntent":"a"}}]}',
    "of-another-key": rb'{"choices":[{"delta":{"x\"content":"a","c\u006fntent":"a"}}]}',
    "in-another-place": rb'{"content":"a","choices":[{"delta":{"c\u006fntent":"a"}}]}',
    "tool": b'{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"a"}}]}}]}',
    "finish": b'{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}',
    "usage": b'{"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":1}}',
    "ids": b'{"choices":[{"text":"a","token_ids":[1]}]}',
    "error": b'{"choices":[{"delta":{"content":"a"}}],"error":"no"}',
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_what_says_more_than_one_plain_string_is_not_learnt(data: bytes) -> None:
    assert not learnt(data)


@pytest.mark.parametrize(
    "text", [b"", b'"', b"\\", b"\n", b"\x1f", b"\x7f", b"\xff", b"a\xc3", b"\xed\xa0\xbd", b'a","b":"c']
)
def test_only_a_plain_string_is_read_by_template(text: bytes) -> None:
    data = dumped(STYLES["vllm"])
    template = learn(data, interpret(parse(data)))
    assert template is not None
    assert template.text_in(template.head + b"b" + template.tail) == b"b"
    assert template.text_in(template.head + text + template.tail) is None
    assert template.text_in(template.head) is template.text_in(template.tail) is None


FACTS = (
    "text", "text_hash", "text_bytes", "first_visible_ns", "reasoned", "finish_reason", "usage", "model",
    "fingerprint", "request_id", "dropped", "events", "done", "error",
)  # fmt: skip

_texts = st.one_of(st.text(PLAIN, max_size=5), st.text(max_size=4), st.sampled_from(['"', "\\", "\ud83d", "\ude00"]))
_deltas = st.one_of(
    st.fixed_dictionaries({"content": _texts}),
    st.fixed_dictionaries({"reasoning_content": _texts}),
    st.fixed_dictionaries({"content": _texts, "reasoning": _texts}),
    st.fixed_dictionaries({"refusal": _texts, "content": _texts}),
    st.just({"role": "assistant", "content": ""}),
    st.fixed_dictionaries({"content": st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": _texts}))}),
)
_rare = st.fixed_dictionaries(
    {},
    optional={
        "usage": st.sampled_from([None, {}, {"prompt_tokens": 3, "completion_tokens": 2}]),
        "model": st.sampled_from(["m", "n"]),
        "error": st.sampled_from([None, "no", {"message": "content"}]),
        "content": _texts,
    },
)
_raw = st.sampled_from([b"[DONE]", b"{}", b"nonsense", b"", *REFUSED.values(), *map(dumped, STYLES.values())])


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Blocks of a stream whose events are mostly alike."""
    usual = draw(st.sampled_from([{}, {"finish_reason": None}, {"token_ids": [1]}]))
    events = []
    for _ in range(draw(st.integers(1, 25))):
        if draw(st.integers(0, 9)):
            doc = chat(draw(_deltas), **(draw(_rare) if draw(st.integers(0, 3)) == 0 else {}))
            doc["choices"][0].update(usual)
            data = json.dumps(doc, separators=draw(st.sampled_from([(",", ":"), (", ", ": ")]))).encode()
        else:
            data = draw(_raw)
        end = draw(st.sampled_from([b"\n", b"\n", b"\n", b"\r\n"]))
        name = draw(st.sampled_from([b""] * 8 + [b"event: message\n", b"event: error\n"]))
        events.append(name + b"data: " + data + end + end)
    whole = b"".join(events)
    if draw(st.booleans()):
        return events
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@given(streams())
@settings(max_examples=400, deadline=None)
def test_a_reply_is_the_same_without_templates(blocks: list[bytes]) -> None:
    def read() -> tuple[Any, ...]:
        it = Reply(keep_text=True)
        fed = [it.feed(block, at) for at, block in enumerate(blocks)]
        return fed, list(it.chunk_ns), it.chunk_tokens(), it.verdict(), [getattr(it, name) for name in FACTS]

    fast = read()
    with patch.object(reply, "learn", lambda data, delta: None):
        assert read() == fast


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("together", [1, 7])
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_few_of_many_like_events_are_read_in_full(style: Any, together: int, end: bytes) -> None:
    data = dumped(style)
    events = [b"data: " + data.replace(b'"a"', b'"%d"' % n) + end for n in range(700)]
    read = 0

    def counted(data: bytes) -> dict[str, Any]:
        nonlocal read
        read += 1
        return parse(data)

    it = Reply()
    with patch.object(dialects, "parse", counted):
        for at in range(0, len(events), together):
            it.feed(b"".join(events[at : at + together]), at)
    assert len(it.chunk_ns) == it.events == 700
    assert read == 1


def test_what_changes_with_every_event_is_not_learnt_again_and_again() -> None:
    it = Reply()
    with patch.object(reply, "learn", lambda data, delta: learnings.append(delta)):
        learnings: list[Delta] = []
        for n in range(400):
            it.feed(b"data: " + dumped(chat({"content": "a"}, created=n)) + b"\n\n", n)
    assert len(it.chunk_ns) == 400
    assert len(learnings) <= 101
