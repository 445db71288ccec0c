"""Which prompt is sent when, and what makes it unlike every other: order, salt, and the bytes of the request."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from endpoints.dialects import RequestShape
from endpoints.transport import Call
from profiles.workloads import Prompt

WARMUP, MEASURE, FILLER = "warmup", "measure", "filler"
SALT_BYTES = len(b"[0123456789abcdef] ")


@dataclass(frozen=True, slots=True)
class Planned:
    """One request about to be sent. `index` counts all requests of the point; `super_pass` the passes over the
    measured prompts (warmup has its own prompts, and -1)."""

    index: int
    phase: str
    prompt_id: str
    category: str
    super_pass: int
    salt: str
    call: Call


class PromptFeed:
    """Hands out requests in an order that depends on (seed, trial) alone, so that every arm gets the same.

    Measured prompts come in whole passes, each shuffled anew; filler goes on where the measured ones ended. The salt
    depends on (seed, arm, load, trial, index), so no request of a run repeats another's first words; it stands in front
    of the first user message, behind the system prompt, which stays a prefix all requests share.
    """

    def __init__(
        self,
        measured: Sequence[Prompt],
        warmup: Sequence[Prompt],
        shape: RequestShape,
        *,
        system: str | None,
        salted: bool,
        seed: int,
        arm: str,
        load: str,
        trial: int,
    ) -> None:
        self._measured, self._warmup = measured, warmup
        self._shape = shape
        self._system = system
        self._salted = salted
        self._order_key = f"order/{seed}/{trial}"
        self._salt_key = f"{seed}/{arm}/{load}/{trial}"
        self._request_key = f"request/{seed}/{load}/{trial}"
        self._next = 0
        self._taken = {MEASURE: 0, WARMUP: 0}
        self._orders: dict[tuple[str, int], list[int]] = {}

    def next(self, phase: str) -> Planned:
        """The next request of a phase. Filler takes from the measured prompts."""
        pool, kind = (self._warmup, WARMUP) if phase == WARMUP else (self._measured, MEASURE)
        position = self._taken[kind]
        self._taken[kind] += 1
        index = self._next
        self._next += 1
        turn, at = divmod(position, len(pool))
        prompt = pool[self._order(kind, turn, len(pool))[at]]
        salt = salt_of(self._salt_key, index) if self._salted else ""
        messages = [{"role": m.role, "content": m.content} for m in prompt.with_system(self._system)]
        if salt:
            first = next(i for i, m in enumerate(messages) if m["role"] == "user")
            messages[first]["content"] = salt + messages[first]["content"]
        size = sum(len(m["content"].encode()) for m in messages)
        seed = int.from_bytes(_digest(f"{self._request_key}/{kind}/{position}"), "big") >> 1
        call = Call(self._shape.body(messages), self._shape.max_tokens, size, seed)
        return Planned(index, phase, prompt.id, prompt.category, -1 if kind == WARMUP else turn, salt, call)

    def _order(self, kind: str, turn: int, size: int) -> list[int]:
        order = self._orders.get((kind, turn))
        if order is None:
            order = list(range(size))
            random.Random(f"{self._order_key}/{kind}/{turn}").shuffle(order)
            self._orders = {k: v for k, v in self._orders.items() if k[0] != kind}
            self._orders[(kind, turn)] = order
        return order


def salt_of(key: str, index: int) -> str:
    """64 bits as 16 hex digits in brackets and a space: always of the same length."""
    return f"[{_digest(f'salt/{key}/{index}').hex()}] "


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
