"""Answers compared: where two part, and what chance may do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from sweeps.answers import Answer, read_answers, write_answers
from sweeps.equality import Cuts, Difference, compare, difference, with_meaningless


def said(text: str = "a b c", prompt: str = "p0", repeat: int = 1, **fields: Any) -> Answer:
    return Answer(prompt, repeat, **{"outcome": "ok", "text": text, "finish_reason": "length", **fields})


def arms(base: list[str], again: list[str], **others: list[str]) -> dict[str, list[Answer]]:
    """Texts by prompt, in order; of the base twice."""

    def row(texts: list[str], repeat: int = 1) -> list[Answer]:
        return [said(text, f"p{i}", repeat, finish_reason="stop") for i, text in enumerate(texts)]

    return {"off": row(base) + row(again, 2)} | {name: row(texts) for name, texts in others.items()}


def compared(n: int, differing: int, floor: int = 0, shared: int = 0) -> dict[str, Any]:
    """n prompts: the arm differs in `differing`, the base from itself in `floor`, both in `shared` of them."""
    base = ["same"] * n
    again = ["other" if i < floor else "same" for i in range(n)]
    start = floor - shared
    on = ["third" if start <= i < start + differing else "same" for i in range(n)]
    return compare(arms(base, again, on=on), [f"p{i}" for i in range(n)])


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (said(), said(), Difference("equal")),
        (said("one two three"), said("one two four"), Difference("diverged", 8)),
        (said(""), said("a"), Difference("diverged", 0)),
        # A last step of several tokens, cut at max_tokens by one server and not by the other.
        (said("one two", output_tokens=2), said("one two three", output_tokens=3), Difference("cut")),
        (
            said("one two three", finish_reason="stop", output_tokens=3),
            said("one two", output_tokens=2),
            Difference("cut"),
        ),
        (said("caf\ufffd", output_tokens=2), said("café au lait", output_tokens=4), Difference("cut")),
        (said("caf\ufffd", output_tokens=2), said("café", output_tokens=3), Difference("cut")),
        (said("caf\ufffd\ufffd", output_tokens=3), said("caf\ufffd", output_tokens=2), Difference("cut")),
        (
            said("caf\ufffd", output_tokens=2),
            said("caf", output_tokens=2, finish_reason="stop"),
            Difference("cut"),
        ),
        (said("caf\ufffd", output_tokens=2), said("cafe", output_tokens=3), Difference("diverged", 3)),
        # What max_tokens cannot have cut: too short, of no known length, or nothing at all.
        (said("one", output_tokens=20), said("one two" * 20, output_tokens=64), Difference("diverged", 3)),
        (said("one two"), said("one two three"), Difference("diverged", 7)),
        (said("\ufffd" * 64, output_tokens=64), said("one two", output_tokens=64), Difference("diverged", 0)),
        (said("\ufffd", output_tokens=64), said("one two", output_tokens=64), Difference("diverged", 0)),
        (said("o" + "\ufffd" * 63, output_tokens=64), said("o" * 200, output_tokens=64), Difference("diverged", 1)),
        # As many tokens as were asked for, and most of their text is missing.
        (said("one", output_tokens=64), said("one" + " two" * 63, output_tokens=64), Difference("diverged", 3)),
        (said("one", output_tokens=64), said("one" + " two" * 63), Difference("diverged", 3)),
        # The shorter one ended by itself: the other went on where it should have ended.
        (said("one two", finish_reason="stop"), said("one two three"), Difference("diverged", 7)),
        (said("one", finish_reason=None), said("one two"), Difference("diverged", 3)),
        (said(finish_reason="stop"), said(), Difference("other_end")),
        (said(token_ids=[1, 2, 3]), said(token_ids=[1, 2, 3]), Difference("equal")),
        (said("abc", token_ids=[1, 2, 3]), said("abd", token_ids=[1, 2, 4]), Difference("diverged", 2, 2)),
        (said("abc", token_ids=[1, 2]), said("abc", token_ids=[1, 3]), Difference("diverged", None, 1)),
        (said("ab", token_ids=[1, 2]), said("abc", token_ids=[1, 2, 3]), Difference("cut")),
        (said("a", token_ids=[1]), said("a b", token_ids=[1, *range(60)]), Difference("diverged", 1, 1)),
        (said("abc", token_ids=[1, 2]), said("abd"), Difference("diverged", 2)),  # only one lists them
    ],
)
def test_where_two_answers_part(one: Answer, other: Answer, expected: Difference) -> None:
    cuts = Cuts(max_tokens=64, step=5)
    assert difference(one, other, cuts) == expected
    assert difference(other, one, cuts) == expected


def test_an_answer_cut_where_it_was_to_be_is_no_divergence() -> None:
    """The other server gives no heed to max_tokens, or states no tokens."""
    cut, whole = said("a " * 64, output_tokens=64), said("a " * 200, finish_reason="stop", output_tokens=200)
    assert difference(cut, whole, Cuts(64)).kind == "cut"
    assert difference(cut, whole, Cuts(256)).kind == "diverged"
    assert difference(cut, whole).kind == "diverged"
    assert difference(said("a " * 62, output_tokens=62), said("a " * 64), Cuts(64, 5)).kind == "cut"
    assert difference(said("a " * 50, output_tokens=50), said("a " * 64), Cuts(64, 5)).kind == "diverged"


def test_equal_answers_bound_what_may_differ() -> None:
    found = compared(20, 0)
    on = found["arms"]["on"]
    assert (found["status"], on["status"], on["compared"], on["diverged"]) == ("equal", "equal", 20, 0)
    assert on["share_equal"] == 1.0
    assert on["share_low"] == pytest.approx(0.025 ** (1 / 20))
    assert "to all 20 prompts" in on["text"]
    assert "fewer than 14 %" in on["text"]  # 1 - 0.05 ** (1 / 20)
    assert found["floor"]["share_equal"] == 1.0


@pytest.mark.parametrize(
    ("n", "differing", "floor", "status", "p"),
    [
        (20, 5, 0, "different", 2**-5),
        (20, 4, 0, "cannot_tell", 2**-4),
        (4, 4, 0, "cannot_tell", 2**-4),  # nothing can be proven with four
        (5, 5, 0, "different", 2**-5),
        (20, 3, 4, "noise", 0.5**7 * (35 + 35 + 21 + 7 + 1)),  # P(Bin(7, 1/2) >= 3)
        (20, 12, 2, "different", 0.5**14 * (91 + 14 + 1)),
        (1, 1, 0, "cannot_tell", 0.5),
    ],
)
def test_a_difference_must_be_beyond_the_floor(n: int, differing: int, floor: int, status: str, p: float) -> None:
    on = compared(n, differing, floor)["arms"]["on"]
    assert on["status"] == status
    assert on["p_value"] == pytest.approx(p)
    assert (on["only_arm"], on["only_base"], on["tested"]) == (differing, floor, n)
    assert ("nothing can be" in on["text"]) == (status == "cannot_tell" and n < 5)


def test_intervals_are_exact() -> None:
    for k, n in [(0, 10), (3, 10), (10, 10), (17, 40)]:
        row = compared(n, n - k)["arms"]["on"]
        exact = binomtest(k, n).proportion_ci(0.95, "exact")
        assert (row["share_low"], row["share_high"]) == pytest.approx((exact.low, exact.high))


def test_prompts_that_differ_both_times_prove_nothing() -> None:
    on = compared(20, 10, 10, shared=10)["arms"]["on"]
    assert (on["only_arm"], on["only_base"], on["status"]) == (0, 0, "noise")


def test_several_arms_share_the_level() -> None:
    n = 20
    texts = ["other"] * 5 + ["same"] * 15
    found = compare(arms(["same"] * n, ["same"] * n, a=texts, b=["same"] * n), [f"p{i}" for i in range(n)])
    assert found["arms"]["a"]["alpha"] == pytest.approx(0.025)
    assert found["arms"]["a"]["status"] == "cannot_tell"  # 2 ** -5 is above it
    assert found["status"] == "cannot_tell"
    assert found["text"].startswith("a differs")


def test_noise_alone_is_rarely_called_a_difference() -> None:
    """Arm and repeat drawn alike, each prompt as unstable as it is: at most one run in twenty may be accused."""
    rng = np.random.default_rng(7)
    accused = 0
    runs, n = 400, 40
    prompts = [f"p{i}" for i in range(n)]
    for _ in range(runs):
        unstable = rng.beta(0.4, 1.2, n)
        drawn = rng.random((3, n)) < unstable
        base, again, on = ([f"text {int(x)}" for x in row] for row in drawn)
        accused += compare(arms(base, again, on=on), prompts)["status"] == "different"
    assert accused / runs < 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5


def test_noise_of_each_start_is_rarely_called_a_difference() -> None:
    """A start answers one prompt in ten in another way than others do, and always in that: asked of one start, the base
    shows no noise at all."""
    rng = np.random.default_rng(11)
    runs, n = 400, 40
    prompts = [f"p{i}" for i in range(n)]
    accused = {True: 0, False: 0}
    for _ in range(runs):
        base, again, on = ([f"text {int(x)}" for x in row] for row in rng.random((3, n)) < 0.1)
        for restarted in accused:
            answers = arms(base, again if restarted else base, on=on)
            accused[restarted] += compare(answers, prompts)["status"] == "different"
    assert accused[True] / runs < 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5
    assert accused[False] / runs > 0.5  # what asking of another start is for


def test_cuts_are_told_apart_and_no_divergence() -> None:
    base = [said("a b c", f"p{i}", output_tokens=3) for i in range(6)]
    again = [said("a b c", f"p{i}", 2, output_tokens=3) for i in range(6)]
    on = [said("a b c d", f"p{i}", output_tokens=4) for i in range(6)]
    found = compare({"off": base + again, "on": on}, [f"p{i}" for i in range(6)])
    row = found["arms"]["on"]
    assert (row["status"], row["cut"], row["equal"], row["diverged"]) == ("equal", 6, 0, 0)
    assert "6 of them are alike as far as they go" in row["text"]


def test_failures_are_told_and_compare_nothing() -> None:
    mine = {
        "off": [said(prompt="p0"), said(prompt="p0", repeat=2), said("", "p1", outcome="empty", error="no text")],
        "on": [said(prompt="p1"), said(prompt="p0", outcome="http_5xx", error="HTTP 500: x")],
    }
    found = compare(mine, ["p0", "p1"], {"off": "the limit of 9 tokens is used up"})
    on = found["arms"]["on"]
    assert (found["status"], on["compared"], on["missing"], on["incomplete"]) == ("cannot_tell", 1, 2, True)
    assert on["p_value"] is None
    assert found["failures"] == [
        {"arm": "off", "outcome": "empty", "count": 1, "example": "no text"},
        {"arm": "off", "outcome": "not_asked", "count": 1, "example": "the limit of 9 tokens is used up"},
        {"arm": "on", "outcome": "http_5xx", "count": 1, "example": "HTTP 500: x"},
    ]
    json.dumps(found, allow_nan=False)


def lacking(outcome: str, of_on: int = 0, of_off: int = 0, again: int = 0, n: int = 40, **texts: str) -> dict[str, Any]:
    """n prompts, the first answers of each of which ended with `outcome` and no text."""

    def row(lost: int, repeat: int = 1, text: str = "same") -> list[Answer]:
        return [
            said("" if i < lost else text, f"p{i}", repeat, outcome=outcome if i < lost else "ok") for i in range(n)
        ]

    return compare(
        {"off": row(of_off) + row(again, 2), "on": row(of_on, text=texts.get("on", "same"))},
        [f"p{i}" for i in range(n)],
    )


def test_no_text_where_the_base_has_some_is_a_difference() -> None:
    for found in (lacking("empty", 27), lacking("empty", of_off=27, again=27)):
        on = found["arms"]["on"]
        assert (found["status"], on["diverged"], on["compared"], on["missing"]) == ("different", 27, 40, 0)
        assert (on["first_at_character"], on["incomplete"]) == (0, False)
    assert lacking("empty", 4)["status"] == "cannot_tell"
    assert lacking("empty", 4, again=5)["status"] == "noise"
    nothing = lacking("empty", 27, 27, 27)["arms"]["on"]
    assert (nothing["status"], nothing["compared"], nothing["empty"], nothing["equal"]) == ("cannot_tell", 13, 27, 13)
    assert lacking("empty", 40, 40, 40)["status"] == "unknown"


@pytest.mark.parametrize("lost", [{"of_on": 27}, {"of_off": 27}, {"of_on": 3}, {"of_off": 40}])
def test_missing_answers_are_never_called_equal(lost: dict[str, int]) -> None:
    found = lacking("http_5xx", **lost)
    on = found["arms"]["on"]
    assert (on["missing"], on["incomplete"]) == (max(lost.values()), True)
    assert found["status"] == ("unknown" if on["missing"] == 40 else "cannot_tell")
    if on["compared"]:
        assert f"of 40 prompts {40 - on['missing']} have an answer of both, and 0 of these differ" in found["text"]


def test_a_few_missing_answers_leave_the_verdict() -> None:
    found = lacking("http_5xx", 2)
    assert (found["status"], found["arms"]["on"]["incomplete"]) == ("equal", False)
    assert "to all 38 prompts that both answered, of 40" in found["text"]
    # Without second answers of the base nothing is known of a difference, and nothing is wanted for its absence.
    assert lacking("http_5xx", again=20)["status"] == "equal"
    on = lacking("http_5xx", again=37, on="other")["arms"]["on"]
    assert (on["status"], on["incomplete"], on["missing"]) == ("cannot_tell", True, 37)
    assert "40 have an answer of both (3 with a second one of off), and 40 of these differ" in on["text"]
    assert lacking("http_5xx", again=20, on="other")["status"] == "different"  # 20 are enough for that


def test_nothing_stored_is_no_crash() -> None:
    found = compare({"off": [], "on": []}, ["p0"])
    assert found["status"] == "unknown"
    assert "not known" in found["floor"]["text"]


def test_one_arm_alone_shows_its_noise() -> None:
    found = compare(arms(["a", "b"], ["a", "c"]), ["p0", "p1"])
    assert found["status"] is None
    assert found["text"] == "off gives the same greedy answer twice to 1 of 2 prompts."
    assert found["floor"]["examples"][0]["at_character"] == 0


def test_examples_show_where_it_begins() -> None:
    text = "x" * 100
    found = compare(arms([text + "left"], [text + "left"], on=[text + "right"]), ["p0"])
    (example,) = found["arms"]["on"]["examples"]
    assert example["at_character"] == 100
    assert example["base"] == "x" * 40 + "left"
    assert example["arm"] == "x" * 40 + "right"
    assert found["arms"]["on"]["first_at_character"] == found["arms"]["on"]["median_at_character"] == 100


def test_synthetic_acceptance_makes_it_meaningless() -> None:
    found = compared(20, 20)
    told = with_meaningless(found, {"on": "its server accepts drafts at random"})
    assert told["status"] == told["arms"]["on"]["status"] == "meaningless"
    assert told["arms"]["on"]["diverged"] == 20
    assert "at random" in told["text"]
    assert found["status"] == "different"
    assert with_meaningless(found, {}) == found


def test_what_is_missing_where_nothing_can_be_compared_is_no_failure() -> None:
    answers = {"off": [said()], "a": [], "b": []}
    found = compare(answers, ["p0"])
    assert [row["arm"] for row in found["failures"]] == ["off", "a", "b"]
    assert [row["arm"] for row in with_meaningless(found, {"a": "a rule"})["failures"]] == ["off", "b"]
    for reasons in ({"off": "a rule"}, {"a": "a rule", "b": "a rule"}):
        told = with_meaningless(found, reasons)
        assert told["failures"] == []
        assert not any(row["incomplete"] for row in told["arms"].values())


def test_answers_are_stored_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "points" / "off" / "equality" / "responses.parquet"
    assert read_answers(path) == []
    answers = [said("é\n", token_ids=[1, 2]), said("b", "p1", 2, seeded=False, status=200, model="m")]
    write_answers(path, answers)
    assert read_answers(path) == answers
    write_answers(path, [said("\ud800")])
    assert read_answers(path)[0].text == "?"
    path.write_bytes(b"PAR1 no more")
    assert read_answers(path) == []
