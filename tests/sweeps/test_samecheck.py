"""The check for equal answers within a run's folder: asked arm by arm, at different times, and concluded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from endpoints.attempts import Timeouts
from endpoints.target import Target, target_of
from profiles.loading import Sweep
from profiles.workloads import load_prompts, split
from sweeps.budget import Budget
from sweeps.events import Event, Note
from sweeps.samecheck import SameCheck
from sweeps.store import RunStore
from tests.endpoints.fake_endpoint import FakeEndpoint

PRICES = {"input": 1.0, "output": 2.0, "per": 1000}


def check_of(
    lab: SimpleNamespace, folder: Path, root: str, n: int = 4, **sections: Any
) -> tuple[SameCheck, Sweep, dict[str, Target], list[Event]]:
    endpoint = {"url": f"{root}/v1", "model": "m", "prices": PRICES}
    sweep = lab.sweep(
        {"concurrency": 1, "requests": 10}, arms={"off": endpoint, "on": endpoint}, check_equal=n, **sections
    )
    targets = {arm.name: target_of(arm, 32, {}, Timeouts(5.0, 5.0, 5.0), {}) for arm in sweep.arms}
    arms_stored = {arm.name: {"slug": arm.slug} for arm in sweep.arms}
    manifest = {"schema_version": 1, "arms": arms_stored, "load": {"levels": [1]}, "comparable": {}, "created_at": ""}
    store = RunStore.reopen(folder) if folder.exists() else RunStore.create(folder, manifest, "")
    heard: list[Event] = []
    measured, _ = split(load_prompts(sweep.workload))
    return SameCheck(sweep, measured, store, Budget(sweep.limits), heard.append), sweep, targets, heard


async def test_arms_may_be_asked_at_different_times(lab: SimpleNamespace, tmp_path: Path) -> None:
    endpoint = FakeEndpoint()
    async with endpoint.running() as root:
        check, sweep, targets, _ = check_of(lab, tmp_path / "run", root)
        assert await check.ask(sweep.arms[0], targets["off"]) == 8
        assert check.conclude()["status"] == "unknown"
        assert check.budget.tokens == 8 * (11 + 9)
        assert check.store.spent() == [{"requests": 8, "input_tokens": 88, "output_tokens": 72, "usd": 0.232}]
        check.store.close()

        check, sweep, targets, heard = check_of(lab, tmp_path / "run", root)
        assert await check.ask(sweep.arms[0], targets["off"]) == 0
        assert await check.ask(sweep.arms[1], targets["on"]) == 4
        assert check.conclude()["status"] == "equal"
        check.store.close()
    stored = json.loads((tmp_path / "run" / "equality.json").read_text())
    assert (stored["wanted"], stored["asked"], stored["status"]) == (4, 4, "equal")
    assert isinstance(heard[-1], Note)
    assert "to all 4 prompts" in heard[-1].text


async def test_known_synthetic_acceptance_is_meaningless_at_once(lab: SimpleNamespace, tmp_path: Path) -> None:
    async with FakeEndpoint().running() as root:
        check, sweep, targets, _ = check_of(lab, tmp_path / "run", root)
        for arm, how in zip(sweep.arms, (None, "synth_len: 2.5"), strict=True):
            await check.ask(arm, replace(targets[arm.name], synthetic=how))
        check.conclude()
        check.store.close()
    stored = json.loads((tmp_path / "run" / "equality.json").read_text())
    assert stored["arms"]["on"]["status"] == "meaningless"
    assert "(synth_len: 2.5)" in stored["text"]


async def test_what_does_not_fit_is_not_begun(lab: SimpleNamespace, tmp_path: Path) -> None:
    endpoint = FakeEndpoint()
    async with endpoint.running() as root:
        check, sweep, targets, _ = check_of(lab, tmp_path / "run", root, limits={"usd": 0.01})
        assert await check.ask(sweep.arms[0], targets["off"]) == 0
        failures = check.conclude()["failures"]
        check.store.close()
    assert endpoint.asked == []
    assert [(row["arm"], row["outcome"], row["count"]) for row in failures] == [
        ("off", "not_asked", 8),
        ("on", "not_asked", 4),
    ]
    assert "it would cost about" in failures[0]["example"]
    assert failures[1]["example"] == "not asked so far"


async def test_a_wish_for_more_prompts_than_there_are(lab: SimpleNamespace, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "ask {i}"}}\n' for i in range(6)))
    async with FakeEndpoint().running() as root:
        check, sweep, targets, _ = check_of(
            lab, tmp_path / "run", root, 100, workload={"prompts": str(prompts), "max_tokens": 32}
        )
        assert await check.ask(sweep.arms[1], targets["on"]) == 5  # one is kept for warmup
        check.conclude()
        check.store.close()
    stored = json.loads((tmp_path / "run" / "equality.json").read_text())
    assert (stored["wanted"], stored["asked"]) == (100, 5)
