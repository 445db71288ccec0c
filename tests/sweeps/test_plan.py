"""What a sweep will do, before it does it, and when its ceilings stop it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from endpoints.outcomes import Outcome
from profiles.models import Limits
from profiles.workloads import load_prompts, split
from sweeps.budget import Budget
from sweeps.events import PointKey
from sweeps.plan import PlannedPoint, curve_regions, plan_checks, plan_json, plan_sweep, totals_of

ARMS = {name: {"url": "http://127.0.0.1:1", "model": "m"} for name in ("A", "B")}


def planned(lab: SimpleNamespace, load: dict[str, Any], **sections: Any) -> tuple[PlannedPoint, ...]:
    sweep = lab.sweep(load, **sections)
    return plan_sweep(sweep, split(load_prompts(sweep.workload))[0])


@pytest.mark.parametrize(("synthetic", "asked"), [("", ["A", "B"]), ("B", ["A"]), ("A", [])])
def test_made_up_answers_are_not_asked_for(lab: SimpleNamespace, synthetic: str, asked: list[str]) -> None:
    declared = {"speculation": {"method": "ngram", "synthetic": True}}
    arms = {name: arm | (declared if name == synthetic else {}) for name, arm in ARMS.items()}
    sweep = lab.sweep({"concurrency": 1, "requests": 10}, arms=arms, check_equal=3)
    checks = plan_checks(sweep, split(load_prompts(sweep.workload))[0])
    assert [check.arm for check in checks] == asked


def test_neither_arm_always_comes_first(lab: SimpleNamespace) -> None:
    points = planned(lab, {"concurrency": [2, 1], "requests": 10, "trials": 2}, arms=ARMS)
    assert [(p.key.concurrency, p.key.trial, p.key.arm) for p in points] == [
        (1, 1, "A"),
        (1, 1, "B"),
        (1, 2, "B"),
        (1, 2, "A"),
        (2, 1, "B"),
        (2, 1, "A"),
        (2, 2, "A"),
        (2, 2, "B"),
    ]


def turns(points: tuple[PlannedPoint, ...]) -> list[tuple[int | None, str, int, int, str]]:
    return [(p.block, p.key.arm, p.key.concurrency, p.key.trial, p.key.kind) for p in points]


def blocks_of(points: tuple[PlannedPoint, ...]) -> list[tuple[str, int, str]]:
    """(arm, trial, kind) of each run of points that belong together."""
    return list(dict.fromkeys((p.key.arm, p.key.trial, p.key.kind) for p in points))


def test_servers_that_we_start_run_in_blocks_and_an_anchor_comes_last(lab: SimpleNamespace) -> None:
    arms = {name: {"launch": [name, "{port}"], "model": "m"} for name in "AB"}
    load = {"concurrency": [4, 1, 2], "requests": 10}
    assert turns(planned(lab, load, arms=arms)) == [
        *((1, "A", c, 1, "measure") for c in (1, 2, 4)),
        *((2, "B", c, 1, "measure") for c in (1, 2, 4)),
        (3, "A", 2, 1, "anchor"),
    ]
    twice = planned(lab, load | {"trials": 2}, arms=arms)
    assert blocks_of(twice) == [
        ("A", 1, "measure"),
        ("B", 1, "measure"),
        ("B", 2, "measure"),
        ("A", 2, "measure"),
        ("A", 1, "anchor"),
    ]
    assert [p.block for p in twice][-2:] == [4, 4]  # the server of the last block is up
    assert not any(p.key.kind == "anchor" for p in planned(lab, load | {"anchor": False}, arms=arms))
    assert not any(p.key.kind == "anchor" for p in planned(lab, load, arms={"A": arms["A"]}))


def test_each_of_three_arms_stands_at_the_same_place_on_average(lab: SimpleNamespace) -> None:
    arms = {name: {"launch": [name, "{port}"], "model": "m"} for name in "ABC"}
    points = planned(lab, {"concurrency": [1], "requests": 10, "trials": 4, "anchor": False}, arms=arms)
    places = {name: [n for n, p in enumerate(points) if p.key.arm == name] for name in "ABC"}
    assert {sum(at) for at in places.values()} == {22}


def test_one_launched_arm_is_enough_for_blocks(lab: SimpleNamespace) -> None:
    arms = {"A": {"launch": ["x", "{port}"], "model": "m"}, "B": ARMS["B"]}
    points = planned(lab, {"concurrency": [1, 2], "requests": 10}, arms=arms)
    assert [p.key.arm for p in points] == ["A", "A", "B", "B", "A"]


def test_arms_by_url_have_an_anchor_when_it_is_asked_for(lab: SimpleNamespace) -> None:
    load = {"concurrency": [1, 2], "requests": 10}
    assert all(p.block is None and p.key.kind == "measure" for p in planned(lab, load, arms=ARMS))
    points = planned(lab, load | {"anchor": True}, arms=ARMS)
    assert turns(points)[-1] == (None, "A", 1, 1, "anchor")
    assert len(points) == 5


def test_an_anchor_asks_the_same_prompts_in_other_words(lab: SimpleNamespace) -> None:
    key, anchor = PointKey("A", 8, 1), PointKey("A", 8, 1, "anchor")
    assert (key.folder, anchor.folder) == ("c00008-t1", "anchor-c00008-t1")
    first, again = (lab.feed(arm="A", load=k.load) for k in (key, anchor))
    pairs = [(first.next("measure"), again.next("measure")) for _ in range(9)]
    assert all(a.prompt_id == b.prompt_id for a, b in pairs)
    assert not {a.salt for a, _ in pairs} & {b.salt for _, b in pairs}


@pytest.mark.parametrize(
    ("load", "requests"),
    [
        ({"requests": 40}, 40 + 16 + 8),  # warmup of 2 C, filler of C
        ({"requests": 40, "exact": True}, 40 + 16),
        ({"requests": 40, "warmup": 0}, 40 + 8),
        ({"requests": 40, "warmup": 20}, 40 + 20 + 8),
        # 32 tokens at 50 a second, and 0.5 s to the first: 1.14 s a request; 60 s of 8 users are 421.1 of them.
        ({"seconds": 60.0}, 422 + 16 + 8),
        ({"seconds": 60.0, "requests": 40}, 422 + 16 + 8),
        ({"seconds": 60.0, "requests": 500}, 500 + 16 + 8),
    ],
)
def test_warmup_and_filler_are_shown(lab: SimpleNamespace, load: dict[str, Any], requests: int) -> None:
    (point,) = planned(lab, {"concurrency": [8], **load})
    assert point.requests == requests
    assert point.output_tokens == requests * 32
    assert point.seconds >= load.get("seconds", 0)
    assert point.usd is None


def test_totals_are_sums_and_priced_where_there_are_prices(lab: SimpleNamespace) -> None:
    arms = {"A": ARMS["A"] | {"prices": {"input": 1.0, "output": 3.0}}, "B": ARMS["B"]}
    points = planned(lab, {"concurrency": [1, 4], "requests": 10}, arms=arms)
    totals = totals_of(points)
    assert totals["requests"] == sum(p.requests for p in points)
    assert totals["tokens"] == sum(p.input_tokens + p.output_tokens for p in points)
    assert totals["seconds"] == sum(p.seconds for p in points)
    first = next(p for p in points if p.key.arm == "A")
    assert first.usd == pytest.approx((first.input_tokens + 3 * first.output_tokens) / 1e6)
    assert totals["usd"] == pytest.approx(sum(p.usd for p in points if p.usd is not None))
    assert totals_of([p for p in points if p.key.arm == "B"])["usd"] is None


def test_plan_json(lab: SimpleNamespace) -> None:
    points = planned(lab, {"concurrency": [1, 8, 32, 256], "requests": 100})
    plan = plan_json(points)
    assert set(plan) >= {"points", "regions", "totals"}
    wanted = {"arm", "concurrency", "region", "seconds", "requests", "passes", "reason"}
    assert all(set(p) >= wanted for p in plan["points"])
    assert [p["region"] for p in plan["points"]] == [
        "low_latency",
        "med_concurrency",
        "med_concurrency",
        "high_concurrency",
    ]
    assert plan["regions"] == {
        "low_latency": [1, 1],
        "low_concurrency": [2, 7],
        "med_concurrency": [8, 41],
        "high_concurrency": [42, 256],
        "margin": [257, 282],
    }
    assert set(plan["totals"]) == {"seconds", "requests", "tokens", "usd"}
    assert plan["points"][0]["passes"] == pytest.approx(100 / len(split(load_prompts(_workload(lab)))[0]))


def _workload(lab: SimpleNamespace) -> Any:
    return lab.sweep({"requests": 2}).workload


def test_small_curves_have_no_regions() -> None:
    assert curve_regions([1, 32]) == {}
    assert curve_regions([64])["low_latency"] == (1, 32)


def test_a_points_deadline(lab: SimpleNamespace) -> None:
    assert planned(lab, {"concurrency": [1], "seconds": 10.0})[0].load.deadline_s == 1800
    assert planned(lab, {"concurrency": [1], "seconds": 600.0})[0].load.deadline_s == 12_000
    assert planned(lab, {"concurrency": [1], "requests": 9}, limits={"point_seconds": 60.0})[0].load.deadline_s == 60


def test_a_budget_counts_what_left_this_machine_and_was_not_refused(lab: SimpleNamespace) -> None:
    budget = Budget(Limits(tokens=1000))
    prices = (1.0, 2.0)
    budget.spend(lab.sent(output=5, input_tokens=10), prices)
    assert (budget.tokens, budget.usd) == (15, 20)
    refused = lab.sent(output=None, outcome=Outcome.RATE_LIMITED, status=429)
    budget.spend(refused, prices)
    never = lab.sent(output=None, outcome=Outcome.REFUSED)
    never.exchange.sent_ns = None
    budget.spend(never, prices)
    assert budget.tokens == 15
    # What a broken stream cost is not known: it counts as it was asked, 40 bytes (10 tokens) and 7 tokens.
    budget.spend(lab.sent(output=None, input_tokens=None, outcome=Outcome.RESET, requested=7), None)
    assert (budget.tokens, budget.usd) == (15 + 17, 20)
    budget.spent_before({"input_tokens": 100, "output_tokens": 50, "usd": None})
    assert budget.tokens == 182


def test_ceilings_stop(lab: SimpleNamespace) -> None:
    now = [0.0]
    budget = Budget(Limits(minutes=2.0, tokens=100, usd=1.0), now=lambda: now[0])
    assert budget.used_up() is None
    assert budget.seconds_left() == 120
    now[0] = 130.0
    assert budget.used_up() == "the limit of 2 minutes is used up"
    assert budget.seconds_left() == 0
    now[0] = 0.0
    budget.tokens = 100
    assert budget.used_up() == "the limit of 100 tokens is used up"
    budget.tokens, budget.usd = 0, 1.0
    assert budget.used_up() == "the limit of 1.00 USD is used up"
    assert Budget(Limits()).used_up() is None
    assert math.isinf(Budget(Limits()).seconds_left())


def test_a_point_that_does_not_fit_is_not_begun(lab: SimpleNamespace) -> None:
    arms = {"A": ARMS["A"] | {"prices": {"input": 1000.0, "output": 1000.0}}}
    (point,) = planned(lab, {"concurrency": [4], "requests": 10}, arms=arms)
    tokens = point.input_tokens + point.output_tokens
    assert Budget(Limits(tokens=tokens)).cannot_afford(point) is None
    assert "tokens" in (Budget(Limits(tokens=tokens - 1)).cannot_afford(point) or "")
    assert "USD" in (Budget(Limits(usd=tokens / 1000 - 0.01)).cannot_afford(point) or "")
    assert Budget(Limits(usd=tokens / 1000 + 0.01)).cannot_afford(point) is None
