"""What a client asks, in both dialects, read leniently where servers are lenient; and how it is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

import orjson

from endpoints.simulator.engine import MAX_TOKENS
from endpoints.simulator.options import SimulatorOptions

Dialect = Literal["chat", "completions"]

DEFAULT_OUTPUT_TOKENS = 128
_TURNING = 0x7E57  # another start than that of the text's seed


class Refused(Exception):
    """An answer other than 2xx, with the usual body: {"error": {message, type, param, code}}."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None, code: int | str | None = None):
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {"message": message, "type": kind, "param": param, "code": status if code is None else code}
        }


@dataclass(frozen=True, slots=True)
class Ask:
    """`output_tokens` is what the answer will have, `finish_reason` how it will end.

    From token `turns_at` on its text is another one than the seed says (None: nowhere).
    """

    dialect: Dialect
    prompt_tokens: int
    output_tokens: int
    finish_reason: Literal["length", "stop"]
    seed: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    turns_at: int | None = None


def estimate_tokens(text: str) -> int:
    """Prompt tokens of a text: a token per four bytes of UTF-8, rounded up. Stated, not learned."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def read_ask(dialect: Dialect, raw: bytes, options: SimulatorOptions) -> Ask:
    """Read a request body. Raises Refused.

    The same prompt and `seed` give the same text and the same accepted counts, whatever runs beside it.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"The body is not valid JSON: {error}", "Bad Request") from None
    if not isinstance(body, dict):
        raise Refused(400, "The body must be a JSON object.", "Bad Request")
    if (model := body.get("model", options.model)) != options.model:
        message = f"The model `{model}` does not exist. The one served is `{options.model}`."
        raise Refused(404, message, "NotFoundError", "model")
    if body.get("n") not in (None, 1):
        raise _bad("n", "only n = 1 is served")
    prompt, prompt_tokens = _chat_prompt(body) if dialect == "chat" else _prompt(body)
    prompt_tokens = max(1, prompt_tokens)
    asked = _output_tokens(dialect, body)
    capacity = min(options.kv_tokens, MAX_TOKENS)
    if prompt_tokens + asked > capacity:
        raise _bad(
            "input_tokens" if prompt_tokens >= capacity else "max_tokens",
            f"at most {capacity} tokens fit; {prompt_tokens} of prompt and {asked} of output were asked for",
        )
    seed = crc32(prompt, _integer(body, "seed", 0) & 0xFFFFFFFF)
    tokens = asked
    if options.natural_tokens and body.get("ignore_eos") is not True:
        tokens = min(asked, max(1, options.natural_tokens // 2 + seed % options.natural_tokens))
    stream_options = body.get("stream_options") or {}
    if not isinstance(stream_options, dict):
        raise _bad("stream_options", "must be an object")
    return Ask(
        dialect=dialect,
        prompt_tokens=prompt_tokens,
        output_tokens=tokens,
        finish_reason="stop" if tokens < asked else "length",
        seed=seed,
        stream=body.get("stream") is True,
        include_usage=stream_options.get("include_usage") is True,
        continuous_usage=stream_options.get("continuous_usage_stats") is True,
        turns_at=tokens // 2 if crc32(prompt, _TURNING) < options.diverge * 2**32 else None,
    )


def _chat_prompt(body: dict[str, Any]) -> tuple[bytes, int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _bad("messages", "must be a list of at least one message")
    texts: list[str] = []
    for message in messages:
        if not isinstance(message, dict):
            raise _bad("messages", "each message must be an object")
        content = message.get("content")
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text", "") if isinstance(part, dict) else part
            if not isinstance(text, str | None):
                raise _bad("messages", "content must be a string or a list of parts")
            texts.append(text or "")
    return _joined(texts), sum(estimate_tokens(text) for text in texts)


def _prompt(body: dict[str, Any]) -> tuple[bytes, int]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return _joined([prompt]), estimate_tokens(prompt)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return orjson.dumps(prompt), len(prompt)
    raise _bad("prompt", "must be one string or one list of token numbers")


def _joined(texts: list[str]) -> bytes:
    return "\x00".join(texts).encode("utf-8", "surrogatepass")


def _output_tokens(dialect: Dialect, body: dict[str, Any]) -> int:
    names = ("max_completion_tokens", "max_tokens") if dialect == "chat" else ("max_tokens",)
    for name in names:
        if body.get(name) is not None:
            tokens = _integer(body, name, 0)
            if tokens < 1:
                raise _bad(name, f"must be at least 1, not {tokens}")
            return tokens
    return DEFAULT_OUTPUT_TOKENS


def _integer(body: dict[str, Any], name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise _bad(name, "must be an integer")
    return value


def _bad(param: str, message: str) -> Refused:
    return Refused(400, f"{param}: {message}.", "BadRequestError", param)
