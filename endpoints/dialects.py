"""What the two OpenAI-style routes ask and answer: request bodies, and the meaning of one streamed event."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

CHAT = "chat"
COMPLETIONS = "completions"
ROUTES = {CHAT: "/chat/completions", COMPLETIONS: "/completions"}
MAX_TOKENS, MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
_BROKEN = ("error", "abort")  # finish reasons that say the reply was cut short by a fault
_LONG_LINE = 16_384  # an error's text; cut short for show only after secrets are out, which a cut could hide


@dataclass(frozen=True, slots=True)
class RequestShape:
    """What every request of one arm has in common. Optional fields that are None are not sent."""

    api: str
    model: str
    max_tokens: int
    sampling: Mapping[str, Any]
    extra_body: Mapping[str, Any]
    max_tokens_field: str = MAX_TOKENS
    include_usage: bool = True
    stream: bool = True
    chunk_tokens: str = "none"  # how each chunk's tokens are asked for: none, usage (running), ids

    def body(self, messages: Sequence[Mapping[str, str]]) -> bytes:
        """Serialise one request (before any clock starts). `messages`: role and content, in order."""
        doc: dict[str, Any] = {"model": self.model}
        if self.api == CHAT:
            doc["messages"] = list(messages)
        else:
            doc["prompt"] = "\n\n".join(m["content"] for m in messages)
        doc[self.max_tokens_field] = self.max_tokens
        doc["stream"] = self.stream
        if self.stream and self.include_usage:
            doc["stream_options"] = {"include_usage": True}
            if self.chunk_tokens == "usage":
                doc["stream_options"]["continuous_usage_stats"] = True
        if self.stream and self.chunk_tokens == "ids":
            doc["return_token_ids"] = True
        doc.update({k: v for k, v in self.sampling.items() if v is not None})
        doc.update(self.extra_body)
        return orjson.dumps(doc, option=orjson.OPT_NON_STR_KEYS)  # YAML keys may be numbers, as in logit_bias


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as a server stated them; None where it stated none. `output_tokens` include all reasoning."""

    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None

    def after(self, earlier: Usage | None) -> Usage:
        """The last count of each field; zeros and silence take no count back."""
        if earlier is None:
            return self
        return Usage(
            self.input_tokens or earlier.input_tokens,
            self.output_tokens or earlier.output_tokens,
            earlier.cached_tokens if self.cached_tokens is None else self.cached_tokens,
            earlier.reasoning_tokens if self.reasoning_tokens is None else self.reasoning_tokens,
        )


@dataclass(frozen=True, slots=True)
class Drafting:
    """What a server says it drafted for one reply, and how much of that was accepted, in tokens.

    `drafts`: how often a draft was verified; None from a server that does not say.
    """

    drafts: int | None
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event says. `visible`: text a reader sees; `hidden`: reasoning, tool calls (also generated text)."""

    visible: str = ""
    hidden: str = ""
    reasoned: bool = False
    token_ids: list[Any] | None = None  # those that the event lists, where a server lists them
    finish_reason: str | None = None
    usage: Usage | None = None
    drafting: Drafting | None = None
    error: str | None = None
    model: str | None = None
    fingerprint: str | None = None
    request_id: str | None = None


class NotAnEvent(ValueError):
    """The event's data is not a JSON object."""


def parse(data: bytes) -> dict[str, Any]:
    """JSON of one event. Raises NotAnEvent.

    orjson is strict; what it refuses may still be legal for others (lone surrogates, NaN) or repairable as the
    standard says (invalid UTF-8 becomes U+FFFD), so the slow parser has the last word.
    """
    try:
        doc = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            doc = json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as exc:
            raise NotAnEvent(str(exc)) from None
    if not isinstance(doc, dict):
        raise NotAnEvent(f"a JSON {type(doc).__name__}, not an object")
    return doc


def interpret(doc: Mapping[str, Any], kind: bytes = b"", *, whole: bool = False) -> Delta:
    """The meaning of one event of either route. Unknown keys, nulls and wrong types never spoil another field.

    `whole`: the document is a reply that was not streamed, which has a `message` where an event has a `delta`.
    """
    visible = hidden = ""
    reasoned = False
    finish: str | None = None
    token_ids: list[Any] | None = None
    error = error_of(doc, kind)
    usage = usage_of(doc.get("usage"))
    choices = doc.get("choices")
    if isinstance(choices, list):
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            reason = choice.get("finish_reason")
            if isinstance(reason, str) and reason:
                finish = _str(reason)
                if reason in _BROKEN:
                    error = error or error_of(choice) or f"the server ended the reply with finish reason {reason!r}"
            usage = usage or usage_of(choice.get("usage"))  # Moonshot's place for it
            text = choice.get("text")
            if isinstance(text, str):
                visible += text
            ids = choice.get("token_ids")
            if isinstance(ids, list):
                token_ids = [*token_ids, *ids] if token_ids else ids
            delta = choice.get("message" if whole else "delta")
            if isinstance(delta, dict):
                content = delta.get("content")
                visible += _text(content)
                if len(delta) == 1 and isinstance(content, str):
                    continue  # nearly every delta of nearly every server
                visible += _text(delta.get("refusal"))
                thought = (
                    _text(delta.get("reasoning_content"))
                    or _text(delta.get("reasoning"))
                    or _text(delta.get("reasoning_details"))
                    or _thinking(content)
                )
                reasoned = reasoned or bool(thought)
                hidden += thought + _calls(delta)
    return Delta(
        visible,
        hidden,
        reasoned,
        token_ids,
        finish,
        usage,
        drafting_of(doc),
        error,
        _str(doc.get("model")),
        _str(doc.get("system_fingerprint")),
        _str(doc.get("id")),
    )


def usage_of(usage: object) -> Usage | None:
    """A server's usage object, or None when it holds no integer count (servers send null, {} and strings)."""
    if not isinstance(usage, dict):
        return None
    inputs, outputs = _int(usage.get("prompt_tokens")), _int(usage.get("completion_tokens"))
    if inputs is None and outputs is None:
        return None
    cached = _int(_detail(usage, "prompt_tokens_details").get("cached_tokens"))
    reasoning = _int(_detail(usage, "completion_tokens_details").get("reasoning_tokens"))
    if outputs is not None and reasoning:
        # Some servers (xAI) count reasoning beside the completion, not in it: the total tells.
        beside = _int(usage.get("total_tokens")) == (inputs or 0) + outputs + reasoning
        outputs += reasoning if beside or reasoning > outputs else 0
    return Usage(inputs, outputs, cached, reasoning)


def drafting_of(doc: Mapping[str, Any]) -> Drafting | None:
    """What an event says of the speculation behind its reply: in llama.cpp's `timings`, which have no number of drafts
    and say nothing where nothing was drafted, or in vLLM's `metrics.speculative_decoding`."""
    timings = doc.get("timings")
    if isinstance(timings, dict):
        drafted, accepted = _int(timings.get("draft_n")), _int(timings.get("draft_n_accepted"))
        if _int(timings.get("predicted_n")) is None and drafted is None:
            return None
        return Drafting(None if drafted else 0, drafted or 0, accepted or 0)
    metrics = doc.get("metrics")
    told = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    if not isinstance(told, dict):
        return None
    drafts, drafted, accepted = (
        next((n for name in names if (n := _int(told.get(name))) is not None), None)
        for names in (
            ("num_drafts", "num_spec_steps"),
            ("num_draft_tokens",),
            ("num_accepted_tokens", "num_accepted_draft_tokens"),
        )
    )
    return None if drafted is None or accepted is None else Drafting(drafts, drafted, accepted)


def error_of(doc: Mapping[str, Any], kind: bytes = b"") -> str | None:
    """The error an event or a body carries, in one line, or None.

    Known shapes: an `error` object or string, an event named `error`, `object: error`, and a bare
    `message` + `code` without choices.
    """
    error = doc.get("error")
    if isinstance(error, dict):
        message = error.get("message") or error.get("type") or error.get("code")
        said = _line(message if message is not None else error)
        param = error.get("param")
        return f"{said} ({param})" if isinstance(param, str) and param and param not in said else said
    if error:
        return _line(error)
    bare = "choices" not in doc and "message" in doc and ("code" in doc or "type" in doc or "status" in doc)
    if kind == b"error" or doc.get("object") == "error" or bare:
        return _line(doc.get("message") or doc.get("detail") or doc)
    return None


def _line(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return " ".join(text[:_LONG_LINE].encode("utf-8", "replace").decode().split())


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # content parts
        return "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""


def _thinking(content: object) -> str:
    parts = content if isinstance(content, list) else []
    return "".join(_text(part.get("thinking")) for part in parts if isinstance(part, dict))


def _calls(delta: Mapping[str, Any]) -> str:
    calls = delta.get("tool_calls")
    functions: list[object] = [delta.get("function_call")]
    if isinstance(calls, list):
        functions += [call.get("function") for call in calls if isinstance(call, dict)]
    return "".join(_text(f.get("name")) + _text(f.get("arguments")) for f in functions if isinstance(f, dict))


def _detail(usage: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    detail = usage.get(key)
    return detail if isinstance(detail, dict) else {}


def _int(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        return None
    return int(value) if value == int(value) else None


def _str(value: object) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    # A lone surrogate is legal in JSON, but cannot be stored.
    return value if value.isascii() else value.encode("utf-8", "replace").decode()
