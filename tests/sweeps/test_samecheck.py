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
from sweeps.answers import answers_path, read_answers
from sweeps.budget import Budget
from sweeps.events import Event, Note
from sweeps.samecheck import SameCheck
from sweeps.store import RunStore
from tests.endpoints.fake_endpoint import FakeEndpoint

PRICES = {"input": 1.0, "output": 2.0, "per": 1000}


def check_of(
    lab: SimpleNamespace, folder: Path, root: str, n: int = 4, launched: bool = False, on: str = "", **sections: Any
) -> tuple[SameCheck, Sweep, dict[str, Target], list[Event]]:
    where: dict[str, Any] = {"launch": ["server", "{port}"]} if launched else {"url": f"{root}/v1"}
    endpoint = {**where, "model": "m", "prices": PRICES}
    sweep = lab.sweep(
        {"concurrency": 1, "requests": 10},
        arms={"off": endpoint, "on": endpoint | ({"url": on} if on else {})},
        check_equal=n,
        **sections,
    )
    targets = {
        arm.name: replace(target_of(arm, 32, {}, Timeouts(5.0, 5.0, 5.0), {}), url=f"{root}/v1") for arm in sweep.arms
    }
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


class Restless(FakeEndpoint):
    """What it says depends on how often it was started."""

    def start(self, check: SameCheck, arm: str) -> None:
        self.natural += 1
        check.store.note("server_ready", arm=arm)


async def test_what_a_restart_changes_is_in_the_noise(lab: SimpleNamespace, tmp_path: Path) -> None:
    """Arms that are alike, each start of whose servers says something else: nothing to accuse the second one of."""
    endpoint = Restless()
    async with endpoint.running() as root:
        check, sweep, targets, _ = check_of(lab, tmp_path / "run", root, 8, launched=True)
        off, on = sweep.arms
        endpoint.start(check, "off")
        assert await check.ask(off, targets["off"]) == 8
        assert await check.ask(off, targets["off"]) == 0  # as often as it is up for another point
        assert (check.done, check.owes(off)) == (False, True)
        endpoint.start(check, "on")
        assert await check.ask(on, targets["on"]) == 8
        check.store.close()

        check, sweep, targets, _ = check_of(lab, tmp_path / "run", root, 8, launched=True)
        off, on = sweep.arms
        assert (check.owes(off), check.owes(on)) == (True, False)
        endpoint.start(check, "off")
        assert await check.ask(off, replace(targets["off"])) == 8
        assert check.owes(off) is False
        assert await check.ask(on, targets["on"]) == 0
        assert check.done
        found = check.conclude()
        check.store.close()
    assert (found["status"], found["floor"]["restarted"], found["floor"]["diverged"]) == ("noise", True, 8)
    assert found["floor"]["text"].startswith("off gives the same greedy answer before and after a restart to 0 of 8")
    starts = {(a.repeat, a.start) for a in read_answers(answers_path(tmp_path / "run", "off"))}
    assert starts == {(1, 1), (2, 2)}


async def test_no_server_is_started_again_for_a_few_answers(lab: SimpleNamespace, tmp_path: Path) -> None:
    class Failing(Restless):
        left = 1

        async def answer(self, request: Any, body: dict[str, Any], route: str) -> Any:
            if len(self.asked) == 3 and self.left:
                self.left = 0
                return self.error(500, {"message": "no"})
            return await super().answer(request, body, route)

    endpoint = Failing()
    async with endpoint.running() as root:
        check, sweep, targets, _ = check_of(lab, tmp_path / "run", root, 20, launched=True)
        for _ in range(2):
            assert check.owes(sweep.arms[0])
            endpoint.start(check, "off")
            assert await check.ask(sweep.arms[0], replace(targets["off"])) == 20
        assert not check.owes(sweep.arms[0])
        check.store.close()


async def test_a_restart_that_the_noise_does_not_know_is_named(lab: SimpleNamespace, tmp_path: Path) -> None:
    """Arms by URL: the base's server is the same both times. And where it is everybody's, there is nothing to name."""
    endpoint = Restless()
    async with endpoint.running() as root:
        for name, url, named in (("a", f"{root}/other/v1", True), ("b", "", False)):
            endpoint.natural = 9
            check, sweep, targets, _ = check_of(lab, tmp_path / name, root, 8, on=url)
            await check.ask(sweep.arms[0], targets["off"])
            endpoint.natural = 8
            await check.ask(sweep.arms[1], targets["on"])
            found = check.conclude()
            check.store.close()
            assert (found["status"], found["floor"]["restarted"]) == ("different", False)
            assert ("within one start of its server" in found["text"]) == named


async def test_known_synthetic_acceptance_is_not_asked(lab: SimpleNamespace, tmp_path: Path) -> None:
    endpoint = FakeEndpoint()
    async with endpoint.running() as root:
        check, sweep, targets, heard = check_of(lab, tmp_path / "run", root)
        sent = [await check.ask(arm, replace(targets[arm.name], synthetic=how))
                for arm, how in zip(sweep.arms, (None, "synth_len: 2.5"), strict=True)]  # fmt: skip
        assert check.done
        check.conclude()
        check.store.close()
    assert sent == [8, 0]
    assert len(endpoint.asked) == 8
    assert any(isinstance(e, Note) and e.text.startswith("on: not asked for answers to compare: the") for e in heard)
    stored = json.loads((tmp_path / "run" / "equality.json").read_text())
    assert stored["arms"]["on"]["status"] == "meaningless"
    assert stored["arms"]["on"]["incomplete"] is False
    assert "(synth_len: 2.5). No answers were compared." in stored["text"]
    assert stored["failures"] == []


async def test_of_a_synthetic_base_nobody_is_asked(lab: SimpleNamespace, tmp_path: Path) -> None:
    endpoint = FakeEndpoint()
    async with endpoint.running() as root:
        check, sweep, targets, _ = check_of(lab, tmp_path / "run", root)
        for arm in sweep.arms:
            assert (
                await check.ask(arm, replace(targets[arm.name], synthetic="a rule" * (arm.name == "off") or None)) == 0
            )
            assert not check.owes(arm)
        assert check.done
        assert check.conclude()["status"] == "meaningless"
        check.store.close()
    assert endpoint.asked == []


async def test_no_server_comes_up_to_be_compared_with_made_up_answers(lab: SimpleNamespace, tmp_path: Path) -> None:
    async with FakeEndpoint().running() as root:
        check, sweep, targets, _ = check_of(lab, tmp_path / "run", root, launched=True)
        off, on = sweep.arms
        assert await check.ask(off, targets["off"]) == 4
        assert check.owes(off)
        assert await check.ask(on, replace(targets["on"], synthetic="a rule")) == 0
        assert not check.owes(off)
        check.store.close()


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
