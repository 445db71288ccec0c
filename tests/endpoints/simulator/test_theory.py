"""The formulas against the engine in a closed loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from endpoints.simulator import theory
from endpoints.simulator.engine import Engine, EngineConfig, Finish, Sequence, SpeculationConfig

PLAIN = EngineConfig(
    prefill_ns_per_token=20_000,
    prefill_base_ns=2_000_000,
    decode_base_ns=4_800_000,
    decode_ns_per_sequence=200_000,
    max_batch=64,
    kv_capacity_tokens=262_144,
    prefill_budget_tokens=8192,
)
SPECULATION = SpeculationConfig(4, 0.7, 450_000, 220_000)
SPECULATING = replace(PLAIN, speculation=SPECULATION)
HEAVY = replace(PLAIN, prefill_ns_per_token=200_000)


@dataclass(frozen=True)
class Measured:
    system_tps: float
    tpot_ns: float
    ttft_ns: float
    e2e_ns: float


def measure(
    config: EngineConfig, concurrency: int, prompt: int, output: int, requests: int, apart: bool = True
) -> Measured:
    """A closed loop, with its first and last quarter left out. Slots start together, or `apart`: slot i when the first
    request has i/C of its tokens."""
    engine = Engine(config)
    sequences = [engine.submit(0, prompt, output, 0, watched=True)]
    ended: list[Sequence] = []
    first_tokens, slots = 0, 1
    while len(ended) < requests:
        while slots < concurrency and (not apart or first_tokens * concurrency >= slots * output):
            sequences.append(engine.submit(engine.snapshot().ns, prompt, output, len(sequences)))
            slots += 1
        due = engine.next_ns()
        assert due is not None
        for event in engine.advance(due):
            if event.sequence is sequences[0]:
                first_tokens += event.tokens
            if isinstance(event, Finish):
                ended.append(event.sequence)
                sequences.append(engine.submit(due, prompt, output, len(sequences)))
    counted = ended[requests // 4 : 3 * requests // 4]
    begin, end = ended[requests // 4 - 1].chunk_ns[-1], counted[-1].chunk_ns[-1]
    return Measured(
        system_tps=1e9 * output * len(counted) / float(end - begin),
        tpot_ns=float(np.mean([(s.chunk_ns[-1] - s.chunk_ns[0]) / (output - 1) for s in counted])),
        ttft_ns=float(np.mean([s.chunk_ns[0] - s.arrived_ns for s in counted])),
        e2e_ns=float(np.mean([s.chunk_ns[-1] - s.arrived_ns for s in counted])),
    )


def assert_agree(measured: Measured, expected: theory.Steady, ttft_rel: float = 0.01) -> None:
    for name in ("system_tps", "tpot_ns", "e2e_ns"):
        assert getattr(measured, name) == pytest.approx(getattr(expected, name), rel=0.01), name
    assert measured.ttft_ns == pytest.approx(expected.ttft_ns, rel=ttft_rel)


@pytest.mark.parametrize(("config", "prompt"), [(PLAIN, 128), (HEAVY, 512), (PLAIN, 3000)])
@pytest.mark.parametrize("concurrency", [1, 8, 64])
def test_lockstep_is_exact(config: EngineConfig, prompt: int, concurrency: int) -> None:
    measured = measure(config, concurrency, prompt, 64, requests=concurrency * 8, apart=False)
    expected = theory.lockstep(config, concurrency, prompt, 64)
    for name in ("system_tps", "tpot_ns", "ttft_ns"):
        assert getattr(measured, name) == pytest.approx(getattr(expected, name), rel=1e-9), name


@pytest.mark.parametrize(("config", "prompt"), [(PLAIN, 128), (HEAVY, 512)])
@pytest.mark.parametrize("concurrency", [1, 2, 8, 32])
def test_staggered_without_speculation(config: EngineConfig, prompt: int, concurrency: int) -> None:
    expected = theory.mixed(config, concurrency, prompt, 129)
    assert_agree(measure(config, concurrency, prompt, 129, concurrency * 8), expected)


@pytest.mark.parametrize("config", [SPECULATING, replace(HEAVY, speculation=SPECULATION)])
@pytest.mark.parametrize("concurrency", [1, 4, 16, 64])
def test_with_speculation(config: EngineConfig, concurrency: int) -> None:
    expected = theory.mixed(config, concurrency, 128, 96)
    # The ttft hangs on how often finishes coincide, which a finite run only samples: it scatters by 1-2 %.
    assert_agree(measure(config, concurrency, 128, 96, 2400), expected, ttft_rel=0.04)


@pytest.mark.parametrize(
    "config", [replace(SPECULATING, max_batch=8), replace(SPECULATING, kv_capacity_tokens=8 * (128 + 96) + 100)]
)
def test_more_requests_than_fit_queue(config: EngineConfig) -> None:
    expected = theory.mixed(config, 20, 128, 96)
    assert expected.batch == 8
    assert_agree(measure(config, 20, 128, 96, 2400), expected)


def test_steps_and_acceptance() -> None:
    assert theory.acceptance_length(SPECULATION) == pytest.approx((1 - 0.7**5) / 0.3)
    assert theory.acceptance_length(SpeculationConfig(3, 1.0)) == 4.0
    assert theory.expected_steps(1, SPECULATION) == 1.0
    assert theory.expected_steps(2, SpeculationConfig(1, 0.5)) == 1.5
    assert theory.expected_steps(9, SpeculationConfig(4, 1.0)) == 2.0
    assert theory.expected_steps(100, None) == 100.0
    engine = Engine(SPECULATING)
    for seed in range(3000):
        engine.submit(seed, 1, 41, seed)
    while (due := engine.next_ns()) is not None:
        engine.advance(due)
    counters = engine.snapshot().counters
    assert counters.drafts / 3000 == pytest.approx(theory.expected_steps(40, SPECULATION), rel=0.01)
    assert 1 + counters.accepted / counters.drafts == pytest.approx(theory.acceptance_length(SPECULATION), rel=0.01)
    assert 1 + counters.accepted_emitted / counters.drafts == pytest.approx(
        theory.tokens_per_step(41, SPECULATION), rel=0.01
    )
    assert theory.tokens_per_step(41, SPECULATION) < theory.acceptance_length(SPECULATION)


def test_speculation_wins_below_the_crossover_and_loses_above() -> None:
    at = theory.crossover(SPECULATING, output_tokens=96)
    for concurrency, wins in ((math.floor(at), True), (math.ceil(at), False)):
        on = measure(SPECULATING, concurrency, 128, 96, 3000)
        off = measure(PLAIN, concurrency, 128, 96, concurrency * 20)
        assert (on.system_tps > off.system_tps) is wins
    assert theory.crossover(SPECULATING) > at


@pytest.mark.parametrize(
    ("speculation", "at"),
    [
        (SpeculationConfig(4, 0.0, 1000, 1000), 0.0),
        (SpeculationConfig(4, 0.7), math.inf),
        (SpeculationConfig(4, 0.9, 10_000_000, 10_000), 0.0),
    ],
)
def test_crossover_at_its_ends(speculation: SpeculationConfig, at: float) -> None:
    assert theory.crossover(replace(PLAIN, speculation=speculation)) == at


def test_settings_outside_the_formulas_are_refused() -> None:
    with pytest.raises(ValueError, match="output tokens >= 2"):
        theory.mixed(PLAIN, 1, 128, 1)
    with pytest.raises(ValueError, match="KV capacity"):
        theory.mixed(PLAIN, 1, 262_144, 2)
    with pytest.raises(ValueError, match="lockstep"):
        theory.lockstep(SPECULATING, 4, 128, 64)
    with pytest.raises(ValueError, match="only 64 of 65"):
        theory.lockstep(PLAIN, 65, 128, 64)
    with pytest.raises(ValueError, match="speculating"):
        theory.crossover(PLAIN)
