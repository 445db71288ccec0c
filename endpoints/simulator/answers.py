"""The bytes of an answer: events of a stream in vLLM's shape, or one JSON body."""

from __future__ import annotations

from typing import Any

import orjson

from endpoints.simulator.asks import Ask
from endpoints.simulator.text import piece, pieces

DONE = b"data: [DONE]\n\n"


class Answer:
    """The events of one answer, in order. Its text needs no escape in JSON, so they are put together by hand."""

    def __init__(self, ask: Ask, id: int, created_s: int, model: str, burst: bool):
        chat = ask.dialect == "chat"
        self._ask, self._burst = ask, burst
        self._id, self._created, self._model = f"{'chatcmpl' if chat else 'cmpl'}-{id:016x}", created_s, model
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = {"id": self._id, "object": kind, "created": created_s, "model": model}
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._before = self._head + b'{"index":0,' + (b'"delta":{"content":"' if chat else b'"text":"')
        self._after = (b'"}' if chat else b'"') + b',"logprobs":null,"finish_reason":'
        self._role = (
            self._head
            + b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            + self._running_usage(0)
            + b"}\n\n"
            if chat
            else b""
        )
        self.tokens = 0

    def events(self, tokens: int) -> tuple[bytes, int]:
        """The events that carry the next `tokens` tokens, and how many; with what opens and what closes a stream."""
        parts = [self._role] if self.tokens == 0 else []
        sizes = [1] * tokens if self._burst else [tokens]
        parts += [self._text_event(size) for size in sizes]
        if self.tokens == self._ask.output_tokens:
            if self._ask.include_usage:
                parts += [self._head, b'],"usage":', orjson.dumps(self._usage(self.tokens)), b"}\n\n"]
            parts.append(DONE)
        return b"".join(parts), len(sizes)

    def body(self) -> dict[str, Any]:
        """The whole answer at once."""
        ask = self._ask
        text = self._text(0, ask.output_tokens)
        chat = ask.dialect == "chat"
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return {
            "id": self._id,
            "object": "chat.completion" if chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": ask.finish_reason}],
            "usage": self._usage(ask.output_tokens),
        }

    def _text_event(self, tokens: int) -> bytes:
        ask = self._ask
        first, self.tokens = self.tokens, self.tokens + tokens
        text = self._text(first, tokens)
        ends = f'"{ask.finish_reason}","stop_reason":null}}]' if self.tokens == ask.output_tokens else "null}]"
        return b"".join(
            (self._before, text.encode(), self._after, ends.encode(), self._running_usage(self.tokens), b"}\n\n")
        )

    def _text(self, first: int, tokens: int) -> str:
        ask = self._ask
        if ask.turns_at is not None and first + tokens > ask.turns_at:
            before = max(0, ask.turns_at - first)
            return pieces(ask.seed, first, before) + pieces(~ask.seed, first + before, tokens - before)
        return piece(ask.seed, first) if tokens == 1 else pieces(ask.seed, first, tokens)

    def _running_usage(self, tokens: int) -> bytes:
        return b',"usage":' + orjson.dumps(self._usage(tokens)) if self._ask.continuous_usage else b""

    def _usage(self, tokens: int) -> dict[str, int]:
        prompt = self._ask.prompt_tokens
        return {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}
