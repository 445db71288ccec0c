"""Which prompt is sent when: the same order for every arm, and no two requests alike."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from types import SimpleNamespace

import pytest

from endpoints.dialects import RequestShape
from profiles.loading import load_sweep
from profiles.workloads import Message, Prompt, load_prompts, split
from sweeps.prompts import FILLER, MEASURE, SALT_BYTES, WARMUP, PromptFeed, salt_of


def test_every_arm_and_load_gets_the_same_order(lab: SimpleNamespace) -> None:
    def order(**changes: object) -> list[str]:
        feed = lab.feed(**changes)
        return [feed.next(MEASURE).prompt_id for _ in range(20)]

    assert order() == order(arm="b") == order(load="c64")
    assert order() != order(seed=1)
    assert order() != order(trial=2)


def test_arms_ask_the_same_of_a_virtual_server(lab: SimpleNamespace) -> None:
    a, b = lab.feed(), lab.feed(arm="b")
    for _ in range(10):
        one, other = a.next(MEASURE).call, b.next(MEASURE).call
        assert (one.seed, one.prompt_bytes) == (other.seed, other.prompt_bytes)


def test_super_pass_counts_whole_shuffled_passes(lab: SimpleNamespace) -> None:
    feed = lab.feed(measured=7)
    planned = [feed.next(MEASURE if i % 3 else FILLER) for i in range(21)]  # filler goes on where measured ones ended
    assert [p.super_pass for p in planned] == [0] * 7 + [1] * 7 + [2] * 7
    passes = [[p.prompt_id for p in planned[i : i + 7]] for i in (0, 7, 14)]
    assert all(Counter(one) == Counter(passes[0]) for one in passes)
    assert len({tuple(one) for one in passes}) == 3


def test_warmup_has_prompts_of_its_own_and_does_not_move_the_others(lab: SimpleNamespace) -> None:
    plain, warmed = lab.feed(), lab.feed()
    warm = [warmed.next(WARMUP) for _ in range(5)]
    assert {p.prompt_id for p in warm} == {"w0", "w1"}
    assert {p.super_pass for p in warm} == {-1}
    assert [p.index for p in warm] == [0, 1, 2, 3, 4]
    assert [plain.next(MEASURE).prompt_id for _ in range(9)] == [warmed.next(MEASURE).prompt_id for _ in range(9)]


def test_a_workload_is_split_into_disjoint_parts() -> None:
    sweep = load_sweep(None, {"arms": {"a": {"url": "http://127.0.0.1:1"}}}, {})
    measured, warmup = split(load_prompts(sweep.workload))
    assert warmup
    assert not {p.text for p in measured} & {p.text for p in warmup}


def test_salts_are_all_different_and_equally_long() -> None:
    keys = [f"{seed}/{arm}/{load}/{trial}" for seed, arm, load, trial in product((0, 1), "ab", ("c1", "c2"), (1, 2))]
    salts = [salt_of(key, index) for key in keys for index in range(50)]
    assert len(set(salts)) == len(salts) == 800
    assert {len(s.encode()) for s in salts} == {SALT_BYTES}


@pytest.mark.parametrize("change", [{"arm": "b"}, {"load": "c2"}, {"trial": 2}, {"seed": 1}])
def test_a_feeds_salts_depend_on_all_that_makes_a_point(lab: SimpleNamespace, change: dict[str, object]) -> None:
    one, other = lab.feed(), lab.feed(**change)
    assert not {one.next(MEASURE).salt for _ in range(20)} & {other.next(MEASURE).salt for _ in range(20)}


def test_the_system_prompt_stays_first_and_the_salt_opens_the_users_words(lab: SimpleNamespace) -> None:
    planned = lab.feed(system="Be brief.").next(MEASURE)
    system, user = json.loads(planned.call.body)["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    assert user["content"].startswith(planned.salt + "p number")
    assert planned.call.prompt_bytes == len("Be brief.") + len(user["content"])


def test_a_conversation_is_salted_in_its_first_user_message() -> None:
    talk = Prompt("t", "", (Message("user", "one"), Message("assistant", "two"), Message("user", "three")))
    shape = RequestShape("chat", "m", 8, {}, {})
    feed = PromptFeed([talk], [talk], shape, system=None, salted=True, seed=0, arm="a", load="c1", trial=1)
    planned = feed.next(MEASURE)
    contents = [m["content"] for m in json.loads(planned.call.body)["messages"]]
    assert contents == [planned.salt + "one", "two", "three"]


def test_without_salt_prompts_are_sent_as_they_are(lab: SimpleNamespace) -> None:
    planned = lab.feed(salted=False).next(MEASURE)
    assert planned.salt == ""
    assert json.loads(planned.call.body)["messages"][0]["content"].startswith("p number")
