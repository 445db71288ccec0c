"""The virtual transport: the engine's own times and tokens, in the client's records."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from endpoints.outcomes import Outcome
from endpoints.simulator.engine import Engine, EngineConfig, SpeculationConfig
from endpoints.transport import Call, Exchange
from endpoints.virtual import BYTES_PER_TOKEN, VirtualTransport, prompt_tokens
from sweeps.clock import VirtualLoop, run_virtual

PLAIN = EngineConfig(
    prefill_ns_per_token=10_000,
    prefill_base_ns=1_000_000,
    decode_base_ns=5_000_000,
    decode_ns_per_sequence=100_000,
    max_batch=2,
    kv_capacity_tokens=10_000,
    prefill_budget_tokens=4096,
)
SPECULATING = EngineConfig(
    **{name: getattr(PLAIN, name) for name in PLAIN.__dataclass_fields__ if name != "speculation"},
    speculation=SpeculationConfig(draft_tokens=3, acceptance=0.7),
)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return run_virtual(main, VirtualLoop())


def call(tokens: int, seed: int = 1, prompt_bytes: int = 400) -> Call:
    return Call(b"", tokens, prompt_bytes, seed)


def now() -> int:
    loop: Any = asyncio.get_running_loop()
    at: int = loop.now_ns()
    return at


async def send(transport: VirtualTransport, asked: Call, after_s: float = 0.0) -> Exchange:
    await asyncio.sleep(after_s)
    exchange = Exchange(issued_ns=now())
    await transport.send(asked, exchange)
    return exchange


@pytest.mark.parametrize("config", [PLAIN, SPECULATING], ids=["plain", "speculating"])
@pytest.mark.parametrize("watched", [False, True])
def test_records_are_the_engines(config: EngineConfig, watched: bool) -> None:
    """Three requests on two slots, against the engine driven by hand."""
    engine = Engine(config)
    truth = []
    for at, tokens, seed in ((0, 20, 1), (0, 30, 2), (7_000_000, 10, 3)):
        list(engine.advance(at))
        truth.append(engine.submit(at, 100, tokens, seed))
    while (at_ns := engine.next_ns()) is not None:
        list(engine.advance(at_ns))

    told: list[list[int]] = [[], [], []]

    async def main() -> list[Exchange]:
        transport = VirtualTransport(config)
        exchanges = [Exchange(issued_ns=ns) for ns in (0, 0, 7_000_000)]

        async def one(i: int, tokens: int, after_s: float) -> None:
            await asyncio.sleep(after_s)
            await transport.send(call(tokens, i + 1), exchanges[i], told[i].append if watched else None)

        await asyncio.gather(one(0, 20, 0), one(1, 30, 0), one(2, 10, 0.007))
        await transport.close()
        return exchanges

    for e, sequence, seen in zip(run(main()), truth, told, strict=True):
        assert (e.outcome, e.finish_reason, e.status, e.attempts) == (Outcome.OK, "length", 200, 1)
        assert e.chunk_ns == sequence.chunk_ns.tolist()
        assert e.chunk_tokens == sequence.chunk_tokens.tolist()
        assert (e.output_tokens, e.input_tokens) == (sequence.output_tokens, 100)
        assert sum(e.chunk_tokens) == e.output_tokens
        assert e.issued_ns == e.connected_ns == e.sent_ns == sequence.arrived_ns
        assert e.headers_ns == e.first_visible_ns == e.chunk_ns[0] >= e.issued_ns
        assert e.ended_ns == e.chunk_ns[-1] == sequence.ended_ns
        assert e.text_bytes == BYTES_PER_TOKEN * e.output_tokens
        if watched:  # the running total after each chunk
            assert seen == [sum(e.chunk_tokens[: i + 1]) for i in range(len(e.chunk_tokens))]
        else:
            assert seen == []


def test_the_first_chunk_by_hand() -> None:
    async def main() -> Exchange:
        return await send(VirtualTransport(PLAIN), call(3, prompt_bytes=399), after_s=1.0)

    e = run(main())
    first = 1_000_000_000 + 1_000_000 + 100 * 10_000  # 399 bytes are 100 tokens
    assert e.chunk_ns == [first, first + 5_100_000, first + 10_200_000]


def test_progress_may_start_other_requests() -> None:
    """As a staggered start does: the second goes out at the first one's fifth token."""

    async def main() -> tuple[Exchange, Exchange]:
        transport = VirtualTransport(PLAIN)
        first, others = Exchange(issued_ns=0), []

        def on_progress(tokens: int) -> None:
            if tokens == 5:
                others.append(asyncio.create_task(send(transport, call(4))))

        await transport.send(call(20), first, on_progress)
        return first, await others[0]

    first, second = run(main())
    assert second.issued_ns == first.chunk_ns[4]
    assert first.outcome is second.outcome is Outcome.OK


def test_cancelling_keeps_what_had_come_and_frees_the_slot() -> None:
    async def main() -> tuple[Exchange, Exchange, Exchange, Exchange]:
        transport = VirtualTransport(PLAIN)
        running, beside, waiting = Exchange(), Exchange(), Exchange()
        tasks = [
            asyncio.create_task(transport.send(call(1000, i), e)) for i, e in enumerate((running, beside, waiting))
        ]
        last = asyncio.create_task(send(transport, call(5), after_s=0.001))
        await asyncio.sleep(0.5)
        for task in (tasks[0], tasks[2]):
            task.cancel()
        assert [type(r) for r in await asyncio.gather(*tasks[::2], return_exceptions=True)] == [
            asyncio.CancelledError,
            asyncio.CancelledError,
        ]
        after = await last
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        return running, beside, waiting, after

    running, beside, waiting, after = run(main())
    assert (running.outcome, running.ended_ns, running.status) == (None, 500_000_000, 200)
    assert 50 < len(running.chunk_ns) < 100 and running.chunk_ns[-1] <= 500_000_000
    assert running.chunk_tokens is not None and len(running.chunk_tokens) == len(running.chunk_ns)
    assert (waiting.outcome, waiting.status, waiting.headers_ns, waiting.chunk_ns) == (None, None, None, [])
    assert after.outcome is Outcome.OK and after.chunk_ns[0] > 500_000_000  # it waited for the slot
    assert len(beside.chunk_ns) > len(running.chunk_ns)


def test_what_can_never_fit_is_refused_as_a_server_would() -> None:
    async def main() -> Exchange:
        return await send(VirtualTransport(PLAIN), call(20_000))

    e = run(main())
    assert (e.outcome, e.status, e.attempts, e.chunk_ns) == (Outcome.HTTP_4XX, 400, 1, [])
    assert e.error is not None and "KV capacity" in e.error


def test_prompt_tokens_are_four_bytes_each() -> None:
    assert [prompt_tokens(n) for n in (0, 1, 4, 5, 8)] == [1, 1, 1, 2, 2]
