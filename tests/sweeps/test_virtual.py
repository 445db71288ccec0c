"""Whole points over the simulator's engine in virtual time, against the engine's closed forms."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from endpoints.simulator import theory
from endpoints.simulator.engine import EngineConfig, SpeculationConfig
from endpoints.transport import Call, Exchange, Progress
from endpoints.virtual import VirtualTransport
from profiles.workloads import load_prompts, split
from sweeps.measure import Measured, Prompts
from sweeps.plan import plan_sweep
from sweeps.virtual import virtual_point, virtual_sweep

PLAIN = EngineConfig(
    prefill_ns_per_token=20_000,
    prefill_base_ns=2_000_000,
    decode_base_ns=4_800_000,
    decode_ns_per_sequence=200_000,
    max_batch=256,
    kv_capacity_tokens=10_000_000,
    prefill_budget_tokens=8192,
)
HEAVY = replace(PLAIN, prefill_ns_per_token=400_000)
SPECULATING = replace(PLAIN, speculation=SpeculationConfig(4, 0.7, 450_000, 220_000))
TOKENS = 32
LEVELS = [1, 8, 32, 128]


class Wrapped(VirtualTransport):
    """`together`: tells nothing of the first request's progress, so all start at its end. `late`: the number of a
    request that takes 30 s longer."""

    def __init__(self, config: EngineConfig, *, together: bool = False, late: int | None = None) -> None:
        super().__init__(config)
        self._together, self._late, self._calls = together, late, 0

    async def send(self, call: Call, exchange: Exchange, on_progress: Progress | None = None) -> None:
        self._calls += 1
        if self._calls == self._late:
            await asyncio.sleep(30)
        await super().send(call, exchange, None if self._together else on_progress)


def measure(lab: SimpleNamespace, transport: VirtualTransport, concurrency: int, **load: Any) -> Measured:
    sweep = lab.sweep({"concurrency": [concurrency], **load})
    measured, warmup = split(load_prompts(sweep.workload))
    (planned,) = plan_sweep(sweep, measured)
    return virtual_point(sweep, planned, Prompts(measured, warmup), transport)


def prompt_tokens(point: dict[str, Any]) -> int:
    mean: float = point["input_tokens"]["mean"]
    return round(mean)


@pytest.mark.parametrize("load", [{"requests": 256}, {"seconds": 20.0}], ids=["requests", "seconds"])
@pytest.mark.parametrize("config", [PLAIN, HEAVY, SPECULATING], ids=["plain", "heavy", "speculating"])
def test_throughput_is_the_closed_form_within_2_percent(
    lab: SimpleNamespace, config: EngineConfig, load: dict[str, Any]
) -> None:
    points = virtual_sweep(lab.sweep({"concurrency": LEVELS, **load}), {"a": config})
    for point in points:
        c = point["concurrency"]
        expected = theory.mixed(config, c, prompt_tokens(point), TOKENS)
        assert point["system_tps"] == pytest.approx(expected.system_tps, rel=0.02), c
        assert point["e2e_latency_ms"]["mean"] == pytest.approx(expected.e2e_ns / 1e6, rel=0.05), c
        assert point["tpot_ms"]["mean"] == pytest.approx(expected.tpot_ns / 1e6, rel=0.05), c
        assert point["in_flight"]["mean"] == pytest.approx(c, rel=0.001)
        assert point["in_flight"]["max"] == c
        assert point["valid"]


@pytest.mark.parametrize("load", [{"requests": 100}, {"seconds": 5.0}], ids=["requests", "seconds"])
@pytest.mark.parametrize("concurrency", [8, 32])
def test_lockstep_is_exact_but_for_unequal_prompts(
    lab: SimpleNamespace, concurrency: int, load: dict[str, Any]
) -> None:
    point = measure(lab, Wrapped(PLAIN, together=True), concurrency, **load).point
    expected = theory.lockstep(PLAIN, concurrency, prompt_tokens(point), TOKENS)
    assert point["system_tps"] == pytest.approx(expected.system_tps, rel=0.02)
    assert point["tpot_ms"]["p50"] == pytest.approx(expected.tpot_ns / 1e6, rel=0.02)
    assert "lockstep" in [v["code"] for v in point["verdicts"]]


@pytest.mark.parametrize("load", [{"requests": 400}, {"seconds": 10.0}], ids=["requests", "seconds"])
@pytest.mark.parametrize("late", [100, 200])
def test_a_straggler_of_30_s_does_not_drag_the_window(lab: SimpleNamespace, load: dict[str, Any], late: int) -> None:
    point = measure(lab, Wrapped(PLAIN, late=late), 32, **load).point
    expected = theory.mixed(PLAIN, 32, prompt_tokens(point), TOKENS)
    assert point["system_tps"] == pytest.approx(expected.system_tps, rel=0.02)
    assert point["window"]["seconds"] < 15
    assert point["duration_s"] > 30
    assert point["counts"]["completed"] == point["counts"]["issued"]


def test_exact_leaves_the_emptying_server_out_of_the_latencies(lab: SimpleNamespace) -> None:
    for both in ({}, {"seconds": 1.0}):
        point = measure(lab, VirtualTransport(PLAIN), 32, requests=100, exact=True, **both).point
        counted = point["counts"]["issued"]
        assert point["ttft_ms"]["n"] == counted - 32
        assert point["counts_all"]["by_phase"]["filler"] == 0
    few = measure(lab, VirtualTransport(PLAIN), 32, requests=32, exact=True).point
    assert few["tps_per_user"] is None
    assert not few["valid"]
    assert [v["code"] for v in few["verdicts"] if v["severity"] == "invalid"] == ["too_few"]


def test_the_same_sweep_twice_is_the_same_and_another_seed_is_not(lab: SimpleNamespace) -> None:
    def run(seed: int) -> str:
        arms = {name: {"url": "http://127.0.0.1:1", "model": "m"} for name in ("off", "on")}
        sweep = lab.sweep({"concurrency": [1, 8], "requests": 40}, arms=arms, seed=seed)
        points = virtual_sweep(sweep, {"off": PLAIN, "on": SPECULATING})
        assert [p["arm"] for p in points] == ["off", "on", "on", "off"]
        return json.dumps([{k: v for k, v in p.items() if k not in ("started_at", "origin_unix_ns")} for p in points])

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_intervals_hold_the_long_run_value_in_most_points(lab: SimpleNamespace) -> None:
    """A 95 % interval should hold it in 95 of 100; asserted is only that it is neither decoration nor chance."""
    long_run = measure(lab, VirtualTransport(SPECULATING), 8, requests=4000).point
    names = ("system_tps", "tps_per_user")
    held: dict[str, list[bool]] = {name: [] for name in names}
    for seed in range(1, 31):
        sweep = lab.sweep({"concurrency": [8], "seconds": 8.0}, seed=seed)
        (point,) = virtual_sweep(sweep, {"a": SPECULATING})
        for name in names:
            interval = point["intervals"][name]
            assert interval["low"] < point[name] < interval["high"]
            held[name].append(interval["low"] <= long_run[name] <= interval["high"])
    for name in names:
        assert np.mean(held[name]) >= 0.75, name


@pytest.mark.parametrize(("k", "p"), [(1, 0.9), (4, 0.7), (7, 0.5)])
def test_acceptance_by_the_engines_counters(lab: SimpleNamespace, k: int, p: float) -> None:
    config = replace(PLAIN, speculation=SpeculationConfig(k, p, 450_000, 220_000))
    arms = {"on": {"url": "http://127.0.0.1:1", "model": "m", "speculation": {"method": "eagle3", "draft_tokens": k}}}
    sweep = lab.sweep({"concurrency": [8], "requests": 600}, arms=arms)
    (point,) = virtual_sweep(sweep, {"on": config})
    told = point["speculation"]
    assert told["source"] == "counters"
    assert told["acceptance_length"] == pytest.approx(theory.acceptance_length(config.speculation), rel=0.02)
    assert len(told["per_position"]) == k and sum(told["per_position"]) == told["accepted_tokens"]
    assert told["server_tokens"] >= told["received_tokens"]
    assert {v["code"] for v in point["verdicts"]}.isdisjoint({"foreign_traffic", "counters_broken", "not_speculating"})
