"""Calls carried by worker processes, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import uvloop

from endpoints.attempts import ReusePolicy
from endpoints.http import HttpTransport
from endpoints.outcomes import Outcome
from endpoints.simulator.hostile.server import running
from endpoints.simulator.null import NullOptions, NullProcess
from endpoints.target import Target, target_of, timeouts_of
from endpoints.transport import Call, Exchange
from endpoints.workers import WorkerError, WorkerPool, WorkerTransport
from profiles.loading import load_sweep

ROOT = Path(__file__).resolve().parents[2]
CALL = Call(b'{"max_tokens": 5, "stream": true}', 5, 2, 0)
LONG = Call(b'{"max_tokens": 100000, "stream": true}', 100_000, 2, 0)


@pytest.fixture(scope="module")
def server() -> Iterator[NullProcess]:
    with NullProcess(NullOptions(ttft_ms=5, jitter_ms=10, chunk_ms=3)) as process:
        yield process


@contextlib.asynccontextmanager
async def workers(
    number: int, url: str, policy: ReusePolicy | None = None
) -> AsyncIterator[tuple[WorkerPool, WorkerTransport]]:
    pool = WorkerPool()
    try:
        make = partial(HttpTransport, url + "/chat/completions", {}, keep_text=True)
        yield pool, await pool.open(number, make, policy or ReusePolicy())
    finally:
        await pool.close()


async def ask(transport: WorkerTransport, call: Call = CALL) -> Exchange:
    exchange = Exchange(issued_ns=time.monotonic_ns())
    await transport.send(call, exchange)
    return exchange


async def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def on_uvloop(main: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize(("number", "concurrency"), [(2, 8), (3, 7)])
async def test_the_load_is_split_exactly_and_nothing_is_lost(
    server: NullProcess, number: int, concurrency: int
) -> None:
    async with workers(number, server.url) as (_, transport):
        splits: Counter[tuple[int, ...]] = Counter()
        done: list[Exchange] = []

        async def slot() -> None:
            for _ in range(6):
                exchange = Exchange(issued_ns=time.monotonic_ns())
                task = asyncio.ensure_future(transport.send(CALL, exchange))
                await asyncio.sleep(0)  # by now it is with a worker
                splits[tuple(sorted(len(child.carried) for child in transport._children))] += 1
                await task
                done.append(exchange)

        await asyncio.gather(*(slot() for _ in range(concurrency)))
    few, more = divmod(concurrency, number)
    exact = tuple(sorted([few + 1] * more + [few] * (number - more)))
    assert {split for split in splits if sum(split) >= concurrency} == {exact}
    assert max(max(split) for split in splits) == max(exact)
    assert len({e.request_id for e in done}) == len(done) == 6 * concurrency
    for e in done:
        assert e.outcome is Outcome.OK, e.error
        assert (len(e.chunk_ns), e.output_tokens, e.finish_reason) == (5, 5, "length")
        assert e.sent_ns is not None and e.ended_ns is not None
        assert e.issued_ns <= e.sent_ns <= e.chunk_ns[0] <= e.chunk_ns[-1] <= e.ended_ns <= time.monotonic_ns()


def test_the_same_on_uvloop(server: NullProcess) -> None:
    async def main() -> None:
        async with workers(2, server.url) as (_, transport):
            assert {(await ask(transport)).outcome for _ in range(4)} == {Outcome.OK}

    on_uvloop(main)


async def test_progress_comes_to_whoever_asks(server: NullProcess) -> None:
    async with workers(2, server.url) as (_, transport):
        seen: list[int] = []
        await transport.send(CALL, Exchange(issued_ns=1), seen.append)
        assert seen == sorted(seen)
        assert seen[-1] == 5


async def test_a_cancelled_request_tells_what_was_known(server: NullProcess) -> None:
    async with workers(1, server.url) as (_, transport):
        exchange, seen = Exchange(issued_ns=time.monotonic_ns()), []
        task = asyncio.ensure_future(transport.send(LONG, exchange, seen.append))
        await until(lambda: len(seen) >= 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert exchange.outcome is None
        assert len(exchange.chunk_ns) >= 3
        assert exchange.ended_ns is not None
        assert (await ask(transport)).outcome is Outcome.OK


async def test_a_worker_killed_in_mid_request_voids_what_it_carried_and_is_replaced(server: NullProcess) -> None:
    async with workers(2, server.url) as (pool, transport):
        counted: list[int] = []
        exchanges = [Exchange(issued_ns=time.monotonic_ns()) for _ in range(4)]
        tasks = [asyncio.ensure_future(transport.send(LONG, e, counted.append)) for e in exchanges]
        await until(lambda: len(counted) > 20)
        pids = pool.pids
        os.kill(pids[1], signal.SIGKILL)
        lost = [(e, t) for e, t in zip(exchanges, tasks, strict=True) if e.worker == 1]
        assert len(lost) == 2
        for e, task in lost:
            await asyncio.wait_for(task, 20)
            assert e.outcome is Outcome.CLIENT_RESOURCE
            assert e.error is not None and f"worker 1 (process {pids[1]})" in e.error
            assert e.ended_ns is not None
        assert not any(t.done() for e, t in zip(exchanges, tasks, strict=True) if e.worker == 0)
        assert (await ask(transport)).worker == 0  # the other one carries on
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        again = await pool.open(2, partial(HttpTransport, server.url + "/chat/completions", {}), ReusePolicy())
        assert [pid in pids for pid in pool.pids] == [True, False]
        assert {(e.worker, e.outcome) for e in await asyncio.gather(ask(again), ask(again))} == {
            (0, Outcome.OK),
            (1, Outcome.OK),
        }


async def test_without_any_worker_left_requests_end_at_once(server: NullProcess) -> None:
    async with workers(1, server.url) as (pool, transport):
        os.kill(pool.pids[0], signal.SIGKILL)
        await until(lambda: not transport._children[0].alive)
        e = await ask(transport)
        assert (e.outcome, e.error) == (Outcome.CLIENT_RESOURCE, "every worker process has died")


async def test_vitals_of_each_worker(server: NullProcess) -> None:
    async with workers(2, server.url) as (pool, transport):
        pool.watch()
        await asyncio.gather(*(ask(transport) for _ in range(8)))
        found = await pool.vitals()
        assert [v is not None and v.sockets for v in found] == [4, 4]


async def test_signals_of_the_group_are_not_for_workers(server: NullProcess) -> None:
    async with workers(1, server.url) as (pool, transport):
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pool.pids[0], number)
        assert (await ask(transport)).outcome is Outcome.OK


async def test_what_cannot_be_made_is_said(server: NullProcess) -> None:
    pool = WorkerPool()
    try:
        with pytest.raises(WorkerError, match="cannot start"):
            await pool.open(1, partial(HttpTransport, nonsense=1), ReusePolicy())
    finally:
        await pool.close()


async def test_deaths_on_reused_connections_are_counted_across_workers() -> None:
    async with running("good") as hostile:
        policy = ReusePolicy(1)
        async with workers(2, hostile.url, policy) as (_, transport):
            e = Exchange(issued_ns=1)
            await transport.send(Call(b'{"model": "good", "stream": true}', 5, 2, 0), e)
            assert (e.outcome, e.attempts, policy.deaths) == (Outcome.OK, 1, 1)


def test_a_target_travels_with_its_key_and_without_its_tls_context() -> None:
    document = {
        "endpoint": {"url": "https://h.example/v1", "model": "m", "auth": {"env": "K"}, "tls": {"verify": False}}
    }
    sweep = load_sweep(None, document, {"K": "sk-secret-0123456789"})
    target = target_of(sweep.arms[0], 8, {}, timeouts_of(sweep.limits), {"K": "sk-secret-0123456789"})
    there: Target = pickle.loads(pickle.dumps(target))
    assert there.headers == target.headers
    assert there.tls.check_hostname is False
    assert there.scrub("sk-secret-0123456789") == target.scrub("sk-secret-0123456789")


def test_workers_do_not_outlive_a_parent_that_is_killed(server: NullProcess) -> None:
    script = """
        import asyncio, sys
        from functools import partial
        from endpoints.attempts import ReusePolicy
        from endpoints.http import HttpTransport
        from endpoints.transport import Call, Exchange
        from endpoints.workers import WorkerPool

        async def main():
            pool = WorkerPool()
            transport = await pool.open(2, partial(HttpTransport, sys.argv[1] + "/chat/completions", {}), ReusePolicy())
            call = Call(b'{"max_tokens": 100000, "stream": true}', 100000, 2, 0)
            begun = asyncio.Event()
            tasks = [asyncio.create_task(transport.send(call, Exchange(), lambda n: begun.set())) for _ in range(4)]
            await begun.wait()
            print(*pool.pids, flush=True)
            await asyncio.gather(*tasks)

        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(script), server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(alive(pid) for pid in pids)
        parent.kill()
        assert parent.stderr.read() == ""
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker lives on"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
