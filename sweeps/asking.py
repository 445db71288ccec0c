"""One arm asked for greedy answers, one request at a time, so that no batch moves the numerics; kept as they come."""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from endpoints.attempts import Bounds
from endpoints.dialects import RequestShape
from endpoints.findings import Probed, Say
from endpoints.outcomes import Outcome
from endpoints.preflight import limited, patiently
from endpoints.target import Target
from endpoints.transport import Call, Exchange
from profiles.models import Sampling
from profiles.workloads import Prompt
from sweeps.answers import Answer, read_answers, write_answers

SEED = 1  # what greedy decoding does not need, and a server may break ties by
_STORE_EVERY_S = 30.0  # what a kill may lose
_LONGEST_PAUSE_S = 60.0  # that a server may ask for between two requests
_FAILURES = 3  # in a row, after which an arm is not asked any further
_BODY_BYTES, _BODY_BYTES_A_TOKEN = 1 << 20, 8192  # of a reply; beyond it is a failure
_CHARACTERS, _CHARACTERS_A_TOKEN = 4096, 64  # of a text that are kept and compared


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, put the `repeat`-th time."""

    prompt_id: str
    repeat: int
    messages: tuple[dict[str, str], ...]


def chosen(measured: Iterable[Prompt], count: int, seed: int) -> list[Prompt]:
    """The first `count` prompts (fewer where there are fewer) of an order that depends on the seed alone, so that a
    larger count only adds to them; no text twice."""
    distinct = list({p.text: p for p in reversed(list(measured))}.values())
    distinct.sort(key=lambda p: hashlib.blake2b(p.text.encode(), digest_size=8).digest())
    random.Random(f"equality/{seed}").shuffle(distinct)
    return distinct[:count]


def questions(prompts: Sequence[Prompt], system: str | None, repeats: int) -> list[Question]:
    """All prompts, unsalted, and then all of them again, `repeats` times in all."""
    return [
        Question(p.id, repeat, tuple({"role": m.role, "content": m.content} for m in p.with_system(system)))
        for repeat in range(1, repeats + 1)
        for p in prompts
    ]


def greedy(shape: RequestShape, *, seeded: bool = True) -> RequestShape:
    """The arm's requests with temperature 0 and a fixed seed, and no other sampling field, wherever it was given."""
    seed = {"seed": SEED} if seeded else {}
    extra = {name: value for name, value in shape.extra_body.items() if name not in Sampling.model_fields}
    return replace(shape, sampling={"temperature": 0, **seed}, extra_body=extra)


async def ask(
    target: Target,
    wanted: Sequence[Question],
    path: Path,
    *,
    spend: Callable[[Call, Exchange], None] = lambda _call, _exchange: None,
    limits: Callable[[], str | None] = lambda: None,
    seconds: float = math.inf,
    say: Say | None = None,
    start: int | None = None,
) -> str | None:
    """Ask whatever has no whole answer at `path` yet, and store the answers there. Why it ended early, else None.

    `spend` is told of every request, `limits` asked before each; `seconds` bounds all of it; `start`: of the server, is
    kept with what it answers. A rate limit is waited for. A reply without any text is an answer: to ask until there is
    one would hide what is compared. A cancellation passes through; what was answered by then is stored. Raises OSError
    where it cannot be.
    """
    have = {answer.key: answer for answer in read_answers(path)}
    missing = [q for q in wanted if (q.prompt_id, q.repeat) not in have or not have[q.prompt_id, q.repeat].answered]
    if not missing:
        return None
    tokens = target.shape.max_tokens
    bounds = Bounds(body=_BODY_BYTES + _BODY_BYTES_A_TOKEN * tokens)
    transport = target.transport(keep_text=True, bounds=bounds)
    shape, failed, stored = greedy(target.shape), 0, time.monotonic()

    async def send(question: Question) -> Exchange:
        size = sum(len(m["content"].encode()) for m in question.messages)
        call = Call(shape.body(question.messages), tokens, size, SEED)
        exchange = Exchange(issued_ns=time.monotonic_ns())
        try:
            await transport.send(call, exchange)
        finally:
            spend(call, exchange)
        return exchange

    async def put(question: Question) -> Exchange:
        found = Probed(shape, scrub=target.scrub)  # a patience of its own
        return await patiently(lambda: send(question), target, found, say)

    try:
        async with asyncio.timeout(None if math.isinf(seconds) else seconds):
            for question in missing:
                if why := limits():
                    return why
                asked_unix_ns = time.time_ns()
                exchange = await put(question)
                if _refuses(exchange, "seed") and "seed" in shape.sampling:
                    shape = greedy(target.shape, seeded=False)
                    exchange = await put(question)
                seeded = "seed" in shape.sampling
                longest = _CHARACTERS + _CHARACTERS_A_TOKEN * tokens
                answer = _answer(question, exchange, seeded, asked_unix_ns, longest, start)
                have[answer.key] = answer
                if limited(exchange):
                    return f"its rate limit still refuses requests ({exchange.error})"
                if _refuses(exchange, "temperature"):
                    return f"it refuses temperature 0 ({exchange.error}), so it has no greedy answers"
                failed = 0 if answer.answered else failed + 1
                if failed == _FAILURES:
                    return f"{_FAILURES} requests in a row failed, the last with {answer.outcome}: {answer.error}"
                if exchange.pause_s and question is not missing[-1]:
                    await asyncio.sleep(min(exchange.pause_s, _LONGEST_PAUSE_S))
                if time.monotonic() - stored > _STORE_EVERY_S:
                    write_answers(path, have.values())
                    stored = time.monotonic()
    except TimeoutError:
        return limits() or f"{seconds:.3g} s were over"
    finally:
        await transport.close()
        write_answers(path, have.values())
    return None


def _refuses(exchange: Exchange, field: str) -> bool:
    return exchange.status in (400, 422) and field in (exchange.error or "")


def _answer(
    question: Question, exchange: Exchange, seeded: bool, asked_unix_ns: int, longest: int, start: int | None
) -> Answer:
    return Answer(
        question.prompt_id,
        question.repeat,
        str(exchange.outcome or Outcome.CANCELLED),
        (exchange.text or "")[:longest],
        exchange.finish_reason,
        exchange.token_ids,
        exchange.input_tokens,
        exchange.output_tokens,
        exchange.status,
        exchange.error,
        seeded,
        exchange.model,
        exchange.system_fingerprint,
        asked_unix_ns,
        start,
    )
