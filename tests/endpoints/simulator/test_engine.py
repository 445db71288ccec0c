"""The engine: exact times by hand, run-ahead against stepping, limits, cancellation, cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpoints.simulator.engine import (
    Engine,
    EngineConfig,
    Finish,
    Progress,
    Sequence,
    SpeculationConfig,
    draw_accepted,
)

PLAIN = EngineConfig(
    prefill_ns_per_token=10,
    prefill_base_ns=100,
    decode_base_ns=1000,
    decode_ns_per_sequence=50,
    max_batch=4,
    kv_capacity_tokens=1000,
    prefill_budget_tokens=64,
)
SPECULATING = replace(PLAIN, speculation=SpeculationConfig(4, 0.7, 90, 45), seed=7)


def drain(engine: Engine) -> list[Finish | Progress]:
    events = []
    while (at := engine.next_ns()) is not None:
        events += engine.advance(at)
    return events


def test_one_request_by_hand() -> None:
    engine = Engine(PLAIN)
    sequence = engine.submit(5000, prompt_tokens=7, output_tokens=4, seed=0)
    assert engine.next_ns() == 5170
    events = drain(engine)
    assert [(type(e), e.ns) for e in events] == [(Finish, 5170 + 3 * 1050)]
    assert sequence.chunk_ns.tolist() == [5170, 6220, 7270, 8320]
    assert sequence.chunk_tokens.tolist() == [1, 1, 1, 1]
    assert engine.next_ns() is None


def test_an_arrival_in_mid_step_waits_for_its_end_and_stalls_the_others() -> None:
    engine = Engine(PLAIN)
    first = engine.submit(0, 10, 5, 0)  # prefill until 200, then steps of 1050
    engine.advance(200 + 1050 + 1)
    second = engine.submit(200 + 1050 + 1, 20, 2, 0)  # admitted at 2300, prefill of 300, then together 1100 a step
    drain(engine)
    assert first.chunk_ns.tolist() == [200, 1250, 2300, 2600 + 1100, 3700 + 1050]
    assert second.chunk_ns.tolist() == [2600, 3700]


@pytest.mark.parametrize("told_first", [True, False])
def test_an_arrival_at_a_boundary_is_admitted_there(told_first: bool) -> None:
    engine = Engine(PLAIN)
    engine.submit(0, 10, 5, 0)
    if told_first:
        engine.advance(1250)
    second = engine.submit(1250, 20, 1, 0)
    drain(engine)
    assert second.chunk_ns.tolist() == [1250 + 300]


def test_prompts_beyond_the_budget_are_prefilled_in_turn_but_one_always_fits() -> None:
    engine = Engine(PLAIN)
    sequences = [engine.submit(0, prompt, 1, 0) for prompt in (40, 30, 100, 10)]
    drain(engine)
    assert [s.first_ns for s in sequences] == [500, 500 + 400, 900 + 1100, 2000 + 200]


def test_a_blocked_head_blocks_those_behind_it_and_goes_in_at_a_finish() -> None:
    engine = Engine(replace(PLAIN, kv_capacity_tokens=50))
    running = engine.submit(0, 10, 20, 0)
    head = engine.submit(1, 10, 11, 0)  # 21 tokens: 30 + 21 > 50
    behind = engine.submit(2, 1, 1, 0)
    assert engine.snapshot().waiting == 2
    drain(engine)
    assert running.ended_ns is not None and head.first_ns is not None
    assert head.first_ns == behind.first_ns == running.ended_ns + 100 + 11 * 10


def test_watched_sequences_report_every_step_and_finish_in_place_of_the_last() -> None:
    engine = Engine(PLAIN)
    watched = engine.submit(0, 10, 3, 0, watched=True)
    other = engine.submit(0, 10, 2, 0)
    events = drain(engine)
    assert [(type(e), e.sequence, e.ns, e.tokens) for e in events] == [
        (Progress, watched, 300, 1),
        (Progress, watched, 1400, 1),
        (Finish, other, 1400, 1),
        (Finish, watched, 2450, 1),
    ]


def test_cancel_frees_the_slot_and_the_batch_shrinks_after_the_step_in_progress() -> None:
    engine = Engine(replace(PLAIN, max_batch=2))
    stays = engine.submit(0, 10, 5, 0)
    leaves = engine.submit(0, 10, 5, 0)  # both first at 300, then 1100 a step
    waits = engine.submit(0, 10, 1, 0)
    engine.cancel(1400 + 1, leaves)
    assert (engine.snapshot().running, engine.snapshot().kv_tokens) == (1, 15)
    assert leaves.state == "cancelled" and leaves.chunk_ns.tolist() == [300, 1400]
    events = drain(engine)
    assert [e.sequence for e in events] == [waits, stays]
    assert waits.chunk_ns.tolist() == [2500 + 200]
    assert stays.chunk_ns.tolist() == [300, 1400, 2500, 2700 + 1050, 3750 + 1050]
    engine.cancel(10_000, stays)
    assert stays.state == "finished"
    assert engine.snapshot().counters.generated_tokens == 2 + 5 + 1


def test_cancel_while_waiting_and_while_prefilling() -> None:
    engine = Engine(replace(PLAIN, max_batch=1))
    prefilling, waiting = engine.submit(0, 10, 5, 0), engine.submit(0, 10, 5, 0)
    engine.advance(50)
    engine.cancel(50, prefilling)
    engine.cancel(60, waiting)
    assert engine.snapshot().kv_tokens == 0
    assert drain(engine) == []
    assert prefilling.chunk_ns.size == waiting.chunk_ns.size == 0
    assert engine.snapshot().counters.generated_tokens == 0


def test_counters_are_live_within_a_jump() -> None:
    engine = Engine(SPECULATING)
    watched = engine.submit(0, 10, 400, 3)
    duration = SPECULATING.decode_ns(1)
    engine.advance(200 + 10 * duration + duration // 2)
    counters = engine.snapshot().counters
    assert watched.accepted is not None
    assert counters.decode_steps == counters.drafts == 10
    assert counters.draft_tokens == 40
    assert counters.accepted == counters.accepted_emitted == int(watched.accepted[:10].sum())
    assert counters.generated_tokens == 1 + 10 + counters.accepted
    assert sum(counters.accepted_per_position) == counters.accepted


def test_accepted_counts_follow_the_geometric_law_and_the_cut_step_keeps_what_was_accepted() -> None:
    spec = SpeculationConfig(4, 0.7)
    config = replace(PLAIN, speculation=spec)
    accepted = draw_accepted(config, 1, 100_000)
    for j in range(1, 5):
        assert np.mean(accepted >= j) == pytest.approx(0.7**j, abs=0.01)
    engine = Engine(replace(config, speculation=SpeculationConfig(4, 1.0)))
    sequence = engine.submit(0, 10, 8, 0)
    drain(engine)
    assert sequence.chunk_tokens.tolist() == [1, 5, 2]
    counters = engine.snapshot().counters
    assert (counters.drafts, counters.accepted, counters.accepted_emitted) == (2, 8, 5)
    assert counters.accepted_per_position == (2, 2, 2, 2)
    engine = Engine(replace(config, speculation=SpeculationConfig(4, 0.0)))
    sequence = engine.submit(0, 10, 8, 0)
    drain(engine)
    assert sequence.chunk_tokens.tolist() == [1] * 8


def test_accepted_counts_do_not_depend_on_company_or_length() -> None:
    alone, together = Engine(SPECULATING), Engine(SPECULATING)
    a = alone.submit(0, 10, 60, seed=5)
    others = [together.submit(0, 10, 30 + i, seed=i) for i in range(3)]
    b = together.submit(0, 10, 60, seed=5)
    drain(alone), drain(together)
    assert a.chunk_tokens.tolist() == b.chunk_tokens.tolist()
    assert others[2].chunk_tokens.tolist() != a.chunk_tokens.tolist()[: len(others[2].chunk_tokens)]
    longer = draw_accepted(SPECULATING, 5, 500)
    assert a.accepted is not None
    assert longer[: len(a.accepted)].tolist() == a.accepted.tolist()


@dataclass(frozen=True)
class Order:
    wait_ns: int
    prompt: int
    output: int
    leaves_after_ns: int | None


orders = st.lists(
    st.builds(
        Order,
        wait_ns=st.one_of(st.just(0), st.integers(0, 20_000), st.integers(0, 200).map(lambda n: n * 50)),
        prompt=st.integers(1, 80),
        output=st.integers(1, 40),
        leaves_after_ns=st.one_of(
            st.none(), st.none(), st.integers(0, 40_000), st.integers(0, 400).map(lambda n: n * 50)
        ),
    ),
    min_size=1,
    max_size=25,
)
configs = st.builds(
    EngineConfig,
    prefill_ns_per_token=st.sampled_from([0, 7, 50]),
    prefill_base_ns=st.sampled_from([1, 50, 700]),
    decode_base_ns=st.sampled_from([13, 50, 1000]),
    decode_ns_per_sequence=st.sampled_from([0, 50]),
    max_batch=st.integers(1, 6),
    kv_capacity_tokens=st.sampled_from([120, 250, 10_000]),
    prefill_budget_tokens=st.sampled_from([1, 100, 1000]),
    speculation=st.sampled_from(
        [None, SpeculationConfig(3, 0.6, 50, 0), SpeculationConfig(1, 1.0), SpeculationConfig(8, 0.0)]
    ),
    seed=st.integers(0, 3),
)


def play(
    config: EngineConfig,
    orders: list[Order],
    watched: Callable[[int], bool],
    after: Callable[[Engine], None] | None = None,
) -> tuple[list[Sequence], Any, list[Finish | Progress]]:
    """Submit and cancel at the times the orders say; the state each time, all sequences at the end, all events."""
    actions: list[tuple[int, int, str]] = []
    at = 0
    for i, order in enumerate(orders):
        at += order.wait_ns
        actions.append((at, i, "submit"))
        if order.leaves_after_ns is not None:
            actions.append((at + order.leaves_after_ns, i, "zcancel"))
    engine, sequences, states, events = Engine(config), {}, [], []
    for at, i, what in sorted(actions, key=lambda a: (a[0], a[2], a[1])):
        while (due := engine.next_ns()) is not None and due < at:
            events += engine.advance(due)
            if after:
                after(engine)
        if what == "submit":
            sequences[i] = engine.submit(at, orders[i].prompt, orders[i].output, seed=i, watched=watched(i))
        else:
            engine.cancel(at, sequences[i])
        states.append(engine.snapshot())
    events += drain(engine)
    return [sequences[i] for i in range(len(orders))], (states, engine.snapshot()), events


def outcome(s: Sequence) -> tuple[Any, ...]:
    return s.state, s.first_ns, s.ended_ns, s.chunk_ns.tolist(), s.chunk_tokens.tolist()


@settings(max_examples=150, deadline=None)
@given(config=configs, orders=orders, some=st.sets(st.integers(0, 24)))
def test_running_ahead_equals_stepping(config: EngineConfig, orders: list[Order], some: set[int]) -> None:
    ahead, ahead_states, ahead_events = play(config, orders, lambda i: False)
    mixed, mixed_states, _ = play(config, orders, lambda i: i in some)
    stepped, stepped_states, stepped_events = play(config, orders, lambda i: True)
    assert [outcome(s) for s in ahead] == [outcome(s) for s in stepped] == [outcome(s) for s in mixed]
    assert ahead_states == stepped_states == mixed_states
    assert [(e.ns, e.sequence.id) for e in ahead_events] == [
        (e.ns, e.sequence.id) for e in stepped_events if isinstance(e, Finish)
    ]
    for s in stepped:  # what the events said is what the record says
        told = [(e.ns, e.tokens) for e in stepped_events if e.sequence is s]
        assert told == list(zip(s.chunk_ns.tolist(), s.chunk_tokens.tolist(), strict=True))


@settings(max_examples=100, deadline=None)
@given(config=configs, orders=orders)
def test_limits_hold_and_nothing_is_lost(config: EngineConfig, orders: list[Order]) -> None:
    def check(engine: Engine) -> None:
        state = engine.snapshot()
        assert state.running <= config.max_batch
        assert 0 <= state.kv_tokens <= config.kv_capacity_tokens

    sequences, (states, last), events = play(config, orders, lambda i: True, check)
    assert all(s.running <= config.max_batch and 0 <= s.kv_tokens <= config.kv_capacity_tokens for s in states)
    assert (last.running, last.waiting, last.kv_tokens) == (0, 0, 0)
    assert [e.ns for e in events] == sorted(e.ns for e in events)
    for s in sequences:
        assert s.state in ("finished", "cancelled")
        assert np.all(np.diff(s.chunk_ns) > 0)
        assert (
            s.chunk_tokens.sum() == s.output_tokens if s.state == "finished" else s.chunk_tokens.sum() < s.output_tokens
        )
    counters = last.counters
    assert counters.generated_tokens == sum(int(s.chunk_tokens.sum()) for s in sequences)
    assert counters.prompt_tokens == sum(s.prompt_tokens for s in sequences if s.chunk_ns.size)
    if config.speculation is None:
        assert counters.drafts == counters.accepted == 0
    else:
        assert (
            counters.generated_tokens
            == sum(s.chunk_ns.size > 0 for s in sequences) + counters.drafts + counters.accepted_emitted
        )
        assert counters.accepted_emitted <= counters.accepted


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"max_batch": 0}, "max_batch"),
        ({"kv_capacity_tokens": 1}, "kv_capacity_tokens"),
        ({"prefill_budget_tokens": 0}, "prefill_budget_tokens"),
        ({"decode_base_ns": -1}, "decode_base_ns"),
        ({"decode_base_ns": 0, "decode_ns_per_sequence": 0}, "decode step"),
        ({"prefill_base_ns": 0, "prefill_ns_per_token": 0}, "prefill step"),
        ({"seed": -1}, "seed"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        replace(PLAIN, **change)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 0.5), "draft_tokens"),
        ((65, 0.5), "draft_tokens"),
        ((4, 1.1), "acceptance"),
        ((4, float("nan")), "acceptance"),
        ((4, 0.5, -1), "draft_ns"),
    ],
)
def test_impossible_speculation_is_refused(arguments: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SpeculationConfig(*arguments)


def test_impossible_requests_are_refused() -> None:
    engine = Engine(PLAIN)
    for prompt, output in ((0, 5), (5, 0), (1_000_001, 5)):
        with pytest.raises(ValueError, match="tokens must be 1 to 1000000"):
            engine.submit(0, prompt, output, 0)
    with pytest.raises(ValueError, match="KV capacity of 1000"):
        engine.submit(0, 600, 401, 0)
    engine.advance(10)
    with pytest.raises(ValueError, match="time goes back"):
        engine.advance(9)
    assert engine.snapshot().waiting == 0


def test_a_million_tokens_cost_a_few_events() -> None:
    engine = Engine(replace(SPECULATING, kv_capacity_tokens=3_000_000, prefill_budget_tokens=10**7))
    sequence = engine.submit(0, 1_000_000, 1_000_000, 0)
    assert len(drain(engine)) == 1
    assert int(sequence.chunk_tokens.sum()) == 1_000_000


def closed_loop(config: EngineConfig, concurrency: int, requests: int, prompt: int, output: int) -> Engine:
    engine, issued = Engine(config), concurrency
    for i in range(concurrency):
        engine.submit(0, prompt, output, i)
    while (at := engine.next_ns()) is not None:
        for _ in engine.advance(at):
            if issued < requests:
                engine.submit(at, prompt, output, issued)
                issued += 1
    return engine


def test_memory_stays_bounded() -> None:
    engine = closed_loop(SPECULATING, 4, 2000, 10, 20)
    assert len(engine._piece_first) < 200
    assert not engine._running and not engine._finishes and not engine._watched


def test_a_sweep_point_costs_little() -> None:
    config = replace(SPECULATING, max_batch=64, kv_capacity_tokens=100_000)
    spent = []
    for _ in range(4):
        begin = time.process_time()
        engine = closed_loop(config, 8, 200, 128, 64)
        spent.append(time.process_time() - begin)
    assert engine.snapshot().counters.generated_tokens == 200 * 64
    assert min(spent) < 0.04
