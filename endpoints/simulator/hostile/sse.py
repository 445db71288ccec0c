"""The events of an ordinary streamed reply, in both dialects, for cases to spoil."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

WORDS = ("The", " quick", " brown", " fox", " jumps", " over", " it", ".")  # the tokens of the ordinary reply
TEXT = "".join(WORDS)
INPUT_TOKENS, OUTPUT_TOKENS = 5, len(WORDS)
DONE = b"data: [DONE]\n\n"
PAUSE_S = 0.3  # after the first token, where a case is about when it is seen
_ABSENT: Any = object()


def event(doc: object, name: str = "") -> bytes:
    """One event whose data is `doc` in JSON, UTF-8 unescaped."""
    named = f"event: {name}\n" if name else ""
    return f"{named}data: {json.dumps(doc, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def frame(choices: object = _ABSENT, **more: Any) -> dict[str, Any]:
    """A chat chunk around `choices` (left out when not given)."""
    doc = {"id": "chatcmpl-hostile", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "hostile"}
    return doc | ({} if choices is _ABSENT else {"choices": choices}) | more


def choice(delta: object, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish} | more


def chat(delta: object, finish: str | None = None, **more: Any) -> bytes:
    """An event with one choice; `more` goes beside `choices`."""
    return event(frame([choice(delta, finish)], **more))


def token(text: str, **more: Any) -> bytes:
    return chat({"content": text}, **more)


def completion(text: str | None, finish: str | None = None, **more: Any) -> bytes:
    """An event of the completions route."""
    doc = {"id": "cmpl-hostile", "object": "text_completion", "created": 1_700_000_000, "model": "hostile"}
    return event(doc | {"choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]} | more)


def counts(output: object = OUTPUT_TOKENS, inputs: object = INPUT_TOKENS, **details: Any) -> dict[str, Any]:
    """A usage object."""
    total = inputs + output if isinstance(inputs, int) and isinstance(output, int) else None
    return {"prompt_tokens": inputs, "completion_tokens": output, "total_tokens": total} | details


def usage(stated: object) -> bytes:
    """The last event of a stream with `include_usage`: no choices, and `usage`."""
    return event(frame([], usage=stated))


ROLE = chat({"role": "assistant", "content": ""})
TOKENS = tuple(map(token, WORDS))
FINISH = chat({}, "stop")
USAGE = usage(counts())
TAIL = (FINISH, USAGE, DONE)
REPLY = (ROLE, *TOKENS, *TAIL)
BODY = b"".join(REPLY)


def reply(tokens: Sequence[bytes | float] = TOKENS, *, tail: Sequence[bytes] = TAIL) -> tuple[bytes | float, ...]:
    """The ordinary reply with other tokens, or another tail."""
    return (ROLE, *tokens, *tail)


def paused(events: Sequence[bytes | float] = REPLY, after: int = 2) -> tuple[bytes | float, ...]:
    """The same with a pause after the first token."""
    return (*events[:after], PAUSE_S, *events[after:])
