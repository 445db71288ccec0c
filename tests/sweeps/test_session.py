"""A sweep from its preparation to its folder: run, stopped, gone on with, and kept to its limits."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from endpoints.attempts import ReusePolicy
from endpoints.dialects import RequestShape
from endpoints.outcomes import Outcome
from endpoints.transport import Call, Exchange, Progress
from profiles.errors import ProfileError
from profiles.loading import Sweep, load_sweep
from profiles.workloads import load_prompts, split
from sweeps.events import Event, PointFinished, PointKey, PointSkipped, SweepFinished, SweepStarted
from sweeps.measure import Prompts
from sweeps.plan import plan_sweep
from sweeps.records import StoreError, read_journal
from sweeps.runner import SweepOutcome, SweepRun
from sweeps.session import Prepared, new_run, open_store, prepare
from sweeps.store import RunStore

LOAD = {"concurrency": [1, 2], "requests": 10, "warmup": 2}


class Quick:
    """Replies of three tokens within a few milliseconds of real time, or never."""

    name = "quick"

    def __init__(self, hangs: bool = False) -> None:
        self._hangs = hangs

    async def send(self, call: Call, exchange: Exchange, on_progress: Progress | None = None) -> None:
        exchange.connected_ns = exchange.sent_ns = time.monotonic_ns()
        try:
            if self._hangs:
                await asyncio.Event().wait()
            for k in range(3):
                await asyncio.sleep(0.0005)
                exchange.chunk_ns.append(time.monotonic_ns())
                if on_progress is not None:
                    on_progress(k + 1)
            exchange.input_tokens, exchange.output_tokens, exchange.text_bytes = 20, 3, 12
            exchange.status, exchange.outcome, exchange.model = 200, Outcome.OK, "m"
        finally:
            exchange.ended_ns = time.monotonic_ns()

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class FakeTarget:
    shape: RequestShape
    hangs: bool = False
    metrics_url: tuple[str, ...] = ()
    synthetic: str | None = None

    def transport(self, policy: ReusePolicy | None = None) -> Quick:
        return Quick(self.hangs)


@dataclass
class Heard:
    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]


def prepared(sweep: Sweep, hangs: bool = False) -> Prepared:
    measured, warmup = split(load_prompts(sweep.workload))
    targets: Mapping[str, Any] = {
        arm.name: FakeTarget(RequestShape("chat", "m", sweep.workload.max_tokens, {}, {}), hangs) for arm in sweep.arms
    }
    return Prepared(sweep, dict(targets), Prompts(measured, warmup), plan_sweep(sweep, measured))


def run(
    ready: Prepared, store: RunStore, heard: Heard, stop_after: int | None = None, reason: str = "SIGINT"
) -> SweepOutcome:
    """`stop_after`: stop as the point after that many begins."""
    going: SweepRun

    def listen(event: Event) -> None:
        heard(event)
        if stop_after is not None and len(heard.of(PointFinished)) >= stop_after:
            going.stop(reason)

    going = new_run(ready, store, listen)
    try:
        return asyncio.run(going.run())
    finally:
        store.close()


def test_a_run_and_its_journal(lab: SimpleNamespace, tmp_path: Path) -> None:
    ready = prepared(lab.sweep(LOAD, workload={"use": "chat-short", "max_tokens": 3}))
    heard = Heard()
    outcome = run(ready, open_store(ready, {}, tmp_path / "run", resume=False), heard)
    assert outcome == SweepOutcome(finished=2, skipped=0, interrupted=False)
    assert [p.key for p in heard.of(PointFinished)] == [PointKey("a", 1, 1), PointKey("a", 2, 1)]
    assert heard.of(SweepFinished)[0].finished == 2
    events = [line["event"] for line in read_journal(tmp_path / "run")]
    assert events == [
        "run_started",
        "point_started",
        "point_finished",
        "point_started",
        "point_finished",
        "run_finished",
    ]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert set(manifest["fingerprints"]) == {"comparable", "plan"}
    point = json.loads((tmp_path / "run" / "points" / "a" / "c00002-t1" / "point.json").read_text())
    assert point["counts"]["completed"] == 10
    assert point["in_flight"]["max"] <= 2
    assert point["client"]["loop_lag_ms_p99"] is None or point["client"]["loop_lag_ms_p99"] >= 0


def test_resume_goes_on_and_may_extend_levels_and_trials(lab: SimpleNamespace, tmp_path: Path) -> None:
    out, workload = tmp_path / "run", {"use": "chat-short", "max_tokens": 3}
    first = prepared(lab.sweep(LOAD, workload=workload))
    outcome = run(first, open_store(first, {}, out, resume=False), Heard(), stop_after=1)
    assert outcome.interrupted
    assert outcome.finished == 1
    wider = prepared(
        lab.sweep(LOAD | {"concurrency": [1, 2, 3], "trials": 2}, workload=workload, limits={"minutes": 9})
    )
    heard = Heard()
    outcome = run(wider, open_store(wider, {}, out, resume=True), heard)
    assert heard.of(SweepStarted)[0].already_done == 1
    assert outcome == SweepOutcome(finished=6, skipped=0, interrupted=False)
    assert len(heard.of(PointFinished)) == 5
    texts = [line.get("text", "") for line in read_journal(out)]
    assert "resumed, levels added: [3]" in texts
    assert json.loads((out / "manifest.json").read_text())["load"]["levels"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 5}, "seed: was 0, is now 5"),
        ({"workload": {"use": "chat-short", "max_tokens": 9}}, "workload.max_tokens: was 32, is now 9"),
        ({"load": LOAD | {"requests": 11}}, "load.requests: was 10, is now 11"),
        ({"load": LOAD | {"exact": True}}, "load.exact: was false, is now true"),
        ({"arms": {"a": {"url": "http://127.0.0.1:2", "model": "m"}}}, "arms.a.url"),
        ({"arms": {"b": {"url": "http://127.0.0.1:1", "model": "m"}}}, "arms: was"),
    ],
)
def test_resume_refuses_what_is_not_comparable(
    lab: SimpleNamespace, tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    before = prepared(lab.sweep(LOAD))
    open_store(before, {}, tmp_path / "run", resume=False).close()
    manifest = (tmp_path / "run" / "manifest.json").read_bytes()
    after = prepared(lab.sweep(**({"load": LOAD} | change)))
    with pytest.raises(StoreError, match="would not be comparable") as refused:
        open_store(after, {}, tmp_path / "run", resume=True)
    assert named in str(refused.value)
    assert (tmp_path / "run" / "manifest.json").read_bytes() == manifest


def serving(env: dict[str, str], /, **launch: Any) -> Prepared:
    asked = {"command": ["true", "{port}", "${MORE}"], "env": {"HF_TOKEN": "${HF_TOKEN}", "GPUS": "0"}} | launch
    arms = {"a": {"launch": asked, "extra_body": {"user": "me", "api_key": "${HF_TOKEN}"}}}
    document = {"arms": arms, "workload": {"use": "chat-short", "max_tokens": 3}, "load": LOAD}
    return prepare(load_sweep(None, document, env), env)


def test_a_key_that_was_renewed_is_no_hindrance_and_nowhere_in_the_manifest(tmp_path: Path) -> None:
    out = tmp_path / "run"
    texts = []
    for key in ("the-first-key-0123", "another-key-456789"):
        ready = serving({"HF_TOKEN": key, "MORE": f"--seed={key}"})  # seen by its value alone
        open_store(ready, {}, out, resume=out.exists()).close()
        manifest = json.loads((out / "manifest.json").read_text())
        texts.append({name: manifest[name] for name in ("arms", "comparable", "fingerprints")})
        assert key not in json.dumps(manifest)
    assert texts[0] == texts[1]


def test_a_secret_that_its_value_alone_gives_away_comes_into_no_options_file() -> None:
    launch = {"engine": "trtllm", "model": "M", "program": ["true"], "options": {"a": {"b": "${MORE}"}}}
    env = {"HF_TOKEN": "the-first-key-0123", "MORE": "see the-first-key-0123"}
    with pytest.raises(ProfileError, match=r"arm a: launch\.options: they are written into a file") as refused:
        prepare(load_sweep(None, {"arms": {"a": {"launch": launch}}}, env), env)
    assert "first" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"env": {"HF_TOKEN": "${OTHER}", "GPUS": "0"}},
            'arms.a.launch.env.HF_TOKEN: was "${HF_TOKEN}", is now "${OTHER}"',
        ),
        ({"env": {"HF_TOKEN": "${HF_TOKEN}", "GPUS": 1}}, 'arms.a.launch.env.GPUS: was "0", is now "1"'),
        ({"env": {"HF_TOKEN": "${HF_TOKEN}"}}, 'arms.a.launch.env.GPUS: was "0", is now nothing'),
        ({"command": ["true", "{port}"]}, "arms.a.launch: was"),
    ],
)
def test_what_differs_in_a_launch_is_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    env = {"HF_TOKEN": "the-first-key-0123", "OTHER": "the-other-key-0123", "MORE": "-v"}
    open_store(serving(env), {}, tmp_path / "run", resume=False).close()
    with pytest.raises(StoreError, match="would not be comparable") as refused:
        open_store(serving(env, **change), {}, tmp_path / "run", resume=True)
    assert named in str(refused.value)


def test_a_run_is_never_written_over(lab: SimpleNamespace, tmp_path: Path) -> None:
    ready = prepared(lab.sweep(LOAD))
    open_store(ready, {}, tmp_path / "run", resume=False).close()
    with pytest.raises(StoreError, match="is not empty"):
        open_store(ready, {}, tmp_path / "run", resume=False)
    with pytest.raises(StoreError, match=r"it has no manifest\.json"):
        open_store(ready, {}, tmp_path / "other", resume=True)


def test_points_that_do_not_fit_are_skipped_with_the_reason(lab: SimpleNamespace, tmp_path: Path) -> None:
    workload = {"use": "chat-short", "max_tokens": 3}
    load = {"concurrency": [1, 2], "requests": 10, "warmup": 2}
    free = prepared(lab.sweep(load, workload=workload))
    first = free.points[0].input_tokens + free.points[0].output_tokens
    ready = prepared(lab.sweep(load, workload=workload, limits={"tokens": first}))
    heard = Heard()
    outcome = run(ready, open_store(ready, {}, tmp_path / "run", resume=False), heard)
    assert (outcome.finished, outcome.skipped) == (1, 1)
    (skipped,) = heard.of(PointSkipped)
    assert skipped.key == PointKey("a", 2, 1)
    assert "tokens" in skipped.reason
    lines = [line for line in read_journal(tmp_path / "run") if line["event"] == "point_skipped"]
    assert lines[0]["reason"] == skipped.reason


@pytest.mark.parametrize("hangs", [False, True])
def test_a_limit_of_minutes_is_a_ceiling_for_a_point_too(lab: SimpleNamespace, tmp_path: Path, hangs: bool) -> None:
    load = {"concurrency": [2], "seconds": 600.0, "warmup": 2}
    limits = {"minutes": 0.3 / 60}
    ready = prepared(lab.sweep(load, workload={"use": "chat-short", "max_tokens": 3}, limits=limits), hangs)
    heard = Heard()
    outcome = run(ready, open_store(ready, {}, tmp_path / "run", resume=False), heard)
    assert outcome.finished == 0
    (ended,) = heard.of(PointFinished)
    assert ended.point["status"] == "interrupted"
    assert not ended.point["valid"]
    assert ended.point["duration_s"] < 30


def test_a_price_limit_needs_prices(lab: SimpleNamespace) -> None:
    with pytest.raises(ProfileError, match="arm a has no prices"):
        prepare(lab.sweep(LOAD, limits={"usd": 1.0}), {})


def test_a_plan_alone_reads_no_keys(lab: SimpleNamespace) -> None:
    arms = {"a": {"url": "http://127.0.0.1:1", "model": "m", "auth": {"env": "NO_SUCH_KEY"}}}
    ready = prepare(lab.sweep(LOAD, arms=arms), {}, keys=False)
    assert ready.targets == {}
    assert len(ready.points) == 2
    with pytest.raises(ProfileError, match="NO_SUCH_KEY"):
        prepare(lab.sweep(LOAD, arms=arms), {})
