"""Comparison and crossover against examples worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reports.comparison import best_by_concurrency, best_by_speed, compare, interpolate, round_values
from reports.crossover import LevelRatio, crossover, together
from reports.points import Estimate, combine
from reports.speedup import paired_trials, ratio
from sweeps.frontier import frontier


def levels(*ratios: tuple[int, float], apart: bool | None = True) -> list[LevelRatio]:
    return [LevelRatio(c, r, apart) for c, r in ratios]


def test_root_of_a_symmetric_crossing_is_the_geometric_mean():
    # log2(ratio) is +1 at 4 and -1 at 16: the line passes zero half way between log 4 and log 16, at 8.
    found = crossover("off", "on", "system_tps", levels((4, 2.0), (16, 0.5)))
    assert found["kind"] == "crosses"
    assert found["between"] == [4, 16]
    assert found["at"] == pytest.approx(8)
    assert (found["winner_below"], found["winner_above"]) == ("on", "off")
    assert "up to about 8" in found["text"]


def test_root_of_an_uneven_crossing():
    # log2(ratio) falls from +1 at C = 8 to -3 at C = 16: zero after a quarter of the way, 8 * 2**0.25.
    found = crossover("off", "on", "tps_per_user", levels((8, 2.0), (16, 0.125)))
    assert found["at"] == pytest.approx(8 * 2**0.25)


def test_level_that_cannot_be_told_apart_widens_the_bracket_but_not_the_root():
    rows = [LevelRatio(4, 2.0, True), LevelRatio(8, 1.01, False), LevelRatio(16, 0.5, True)]
    found = crossover("off", "on", "system_tps", rows)
    assert found["between"] == [4, 16]
    share = math.log(1.01) / (math.log(1.01) + math.log(2))
    assert found["at"] == pytest.approx(8 * 2**share)
    assert "cannot be told apart in total throughput at 8" in found["caveat"]


def test_exact_tie_is_the_root():
    assert crossover("off", "on", "system_tps", levels((4, 2.0), (8, 1.0), (16, 0.3)))["at"] == 8


@pytest.mark.parametrize(
    ("rows", "kind", "words"),
    [
        (levels((1, 1.2), (2, 1.3)), "never", "do not cross"),
        (levels((1, 0.5)), "never", "only level"),
        (levels((1, 1.2), (2, 0.9), (4, 1.3)), "several", "changes 2 times"),
        (levels((1, 1.2), (2, 0.9), apart=False), "cannot_tell", "cannot be told apart"),
        (levels(), "cannot_tell", "share no concurrency"),
    ],
)
def test_kinds(rows, kind, words):
    found = crossover("off", "on", "system_tps", rows)
    assert found["kind"] == kind
    assert words in found["text"]


def test_unknown_intervals_are_named():
    found = crossover("off", "on", "system_tps", levels((4, 2.0), (16, 0.5), apart=None))
    assert found["kind"] == "crosses"
    assert "No interval of total throughput is known at 4 and 16" in found["caveat"]


def known(rows, half: float) -> list[LevelRatio]:
    """Levels whose log(ratio) is known to within `half` on either side."""
    return [LevelRatio(c, math.exp(y), abs(y) > half, math.exp(y - half), math.exp(y + half)) for c, y in rows]


def test_the_root_is_as_sure_as_its_levels():
    # Two levels a factor e² apart, log(ratio) +1 and -1, each to within 0.2: the root moves by about half their sum.
    found = crossover("off", "on", "system_tps", known([(4, 1.0), (30, -1.0)], 0.2))
    low, high = (math.log(found["interval"][end] / found["at"]) for end in ("low", "high"))
    width = math.log(30 / 4) / 2 * 0.2 / math.sqrt(2)
    assert (low, high) == (pytest.approx(-width, rel=0.08), pytest.approx(width, rel=0.08))
    assert "95 % interval" in found["text"]


def test_the_bend_between_levels_is_in_the_interval():
    # log(ratio) = 1 - x² / 4 with x = log2 C is nought at C = 4; a line between 2 and 8 users has its root elsewhere.
    rows = [(2**x, 1 - x * x / 4) for x in (0, 1, 3, 4, 5)]
    found = crossover("off", "on", "system_tps", known(rows, 1e-9))
    assert found["at"] == pytest.approx(2 ** (1 + 2 * 0.75 / 2))
    assert found["interval"]["low"] <= found["at"] < 3.7
    assert found["interval"]["high"] == pytest.approx(4, rel=0.01)


def test_root_intervals_hold_the_true_root_of_a_bent_curve():
    # A ratio as engines have it: gain × (a + b C) / (a + (b + c) C), its logs measured to within 2 %.
    rng = np.random.default_rng(1)
    held = []
    for _ in range(150):
        root = 2 ** rng.uniform(0.7, 4.3)
        gain, a, b = rng.uniform(1.5, 3), 5.0, 0.2
        c = (gain - 1) * (a + b * root) / root
        rows = [
            (n, math.log(gain * (a + b * n) / (a + (b + c) * n)) + rng.normal(0, 0.01)) for n in (1, 2, 4, 8, 16, 32)
        ]
        found = crossover("off", "on", "system_tps", known(rows, 0.0196))
        assert found["kind"] == "crosses"
        held.append(found["interval"]["low"] <= root <= found["interval"]["high"])
    assert np.mean(held) >= 0.92


def test_no_interval_is_made_up_where_a_level_has_none():
    unknown = [LevelRatio(4, 1.5, None), *known([(8, -0.4)], 0.05)]
    found = crossover("off", "on", "system_tps", unknown)
    assert found["kind"] == "crosses"
    assert found["interval"]["low"] is None
    assert found["interval"]["reason"] == "no interval is known at 4 users"
    assert "interval" not in found["text"]


def test_an_outermost_level_that_cannot_be_told_leaves_open_whether_the_curves_cross():
    found = crossover("off", "on", "system_tps", known([(4, 0.5), (8, 0.2), (16, -0.01)], 0.05))
    assert found["kind"] == "cannot_tell"
    assert "whether the curves cross at 16 users cannot be told" in found["text"]
    inner = crossover("off", "on", "system_tps", known([(4, 0.5), (8, -0.01), (16, 0.5)], 0.05))
    assert inner["kind"] == "never"


def test_ratio_interval_adds_the_half_widths_in_squares():
    # On the log scale both are known to within log 1.1 on either side: together to within sqrt(2) of that.
    base = Estimate(100, 100 / 1.1, 110, 0.95, "within_run", None)
    found = ratio(base, Estimate(120, 120 / 1.1, 132, 0.95, "within_run", None))
    assert found["ratio"] == pytest.approx(1.2)
    assert found["interval"]["low"] == pytest.approx(1.2 / 1.1 ** math.sqrt(2))
    assert found["interval"]["high"] == pytest.approx(1.2 * 1.1 ** math.sqrt(2))
    assert found["interval"]["level"] == 0.95
    assert found["apart"] is True
    assert ratio(base, Estimate(110, 99, 121, 0.95, "within_run", None))["apart"] is False


def test_what_is_skew_about_an_interval_stays_skew():
    base = Estimate(100, 100, 100, 0.95, "within_run", None)
    found = ratio(base, Estimate(120, 118, 150, 0.95, "within_run", None))["interval"]
    assert (found["low"], found["high"]) == (pytest.approx(1.18), pytest.approx(1.5))


def test_three_trials_are_paired_trial_with_trial():
    # The trials differ by a factor of two, the arms in every trial by about 10 %: pairing sees only the latter.
    base = Estimate(200, 100, 400, 0.95, "hull_of_trials", None, {1: 100, 2: 200, 3: 400})
    arm = Estimate(220, 109, 444, 0.95, "hull_of_trials", None, {1: 109, 2: 220, 3: 444})
    found = ratio(base, arm)
    logs = [math.log(x) for x in (1.09, 1.10, 1.11)]
    mean, spread = sum(logs) / 3, math.sqrt(sum((x - sum(logs) / 3) ** 2 for x in logs) / 2 / 3)
    assert found["ratio"] == pytest.approx(math.exp(mean))
    assert found["interval"]["high"] == pytest.approx(math.exp(mean + 4.302653 * spread))
    assert (found["interval"]["method"], found["interval"]["scope"]) == ("paired_trials", "between_trials")
    assert found["apart"] is True


def test_paired_trials_hold_the_true_ratio_as_often_as_they_say():
    rng = np.random.default_rng(3)
    held = [low <= 0.2 <= high for _, low, high in (paired_trials(rng.normal(0.2, 0.1, 4)) for _ in range(1000))]
    assert 0.93 <= np.mean(held) <= 0.97


def test_ratio_without_an_interval_gives_the_reason():
    found = ratio(Estimate(1, None, None, None, None, "12 samples"), Estimate(2, 1, 3, 0.95, "within_run", None))
    assert found["interval"] is None
    assert found["apart"] is None
    assert found["reason"] == "12 samples"


def test_trials_are_combined_by_the_median_first(make):
    points = [make.point("off", 8, t, system_tps=v) for t, v in ((1, 100.0), (2, 900.0), (3, 110.0))]
    combined = combine(points)["off"][8]
    assert combined.trials == 3
    assert combined.estimates["system_tps"].value == 110
    assert combined.estimates["system_tps"].scope == "hull_of_trials"


def test_six_trials_give_an_interval_between_trials(make):
    points = [make.point("off", 8, t, width=None, system_tps=100.0 + t) for t in range(1, 7)]
    estimate = combine(points)["off"][8].estimates["system_tps"]
    assert (estimate.low, estimate.high, estimate.scope) == (101, 106, "between_trials")
    assert estimate.level == pytest.approx(1 - 2**-5)


def test_whole_comparison_of_crossing_arms(make):
    points = make.points()
    found = compare(points, ["off", "on"], frontier(points))
    assert found is not None
    (pair,) = found["pairs"]
    for metric in ("system_tps", "tps_per_user"):
        crossing = pair["crossover"][metric]
        assert crossing["between"] == [8, 16]
        assert crossing["at"] == pytest.approx(10.59, rel=0.01)  # the factory's curves are equal at 1.8 / 0.17
    assert [level["concurrency"] for level in pair["levels"]] == [1, 2, 4, 8, 16, 32]
    at_1 = pair["levels"][0]["ratios"]["system_tps"]
    assert at_1["ratio"] == pytest.approx(5.25 / 3.62)
    bands = found["best"]["by_concurrency"]["system_tps"]
    assert [(b["from"], b["to"], b["best"]) for b in bands] == [(1, 8, "on"), (16, 32, "off")]


def test_invalid_and_one_sided_levels_are_left_out(make):
    bad = [{"code": "errors", "severity": "invalid"}]
    points = [make.point("off", 1), make.point("off", 2), make.point("on", 1, verdicts=bad), make.point("on", 4)]
    (pair,) = compare(points, ["off", "on"], frontier(points))["pairs"]
    assert pair["levels"] == []
    assert {left["concurrency"]: left["reason"].split()[0] for left in pair["left_out"]} == {1: "on", 2: "on", 4: "off"}
    assert pair["crossover"]["system_tps"]["kind"] == "cannot_tell"


def test_one_arm_has_no_comparison(make):
    points = make.points(arms=("off",))
    assert compare(points, ["off"], frontier(points)) is None


def test_interpolation_is_log_log_and_null_outside():
    curve = [(10.0, 1000.0), (100.0, 10.0)]
    assert interpolate(curve, 10**1.5) == pytest.approx(100)
    assert interpolate(curve, 10.0) == pytest.approx(1000)
    assert interpolate(curve, 9.9) is None
    assert interpolate(curve, 101) is None
    assert interpolate([(5.0, 7.0)], 5.0) == 7


def test_equal_speed_stays_inside_the_common_range(make):
    points = make.points()
    (pair,) = compare(points, ["off", "on"], frontier(points))["pairs"]
    speeds = [row["tps_per_user"] for row in pair["equal_speed"]]
    assert speeds == [80, 100, 120, 140, 160, 180]
    at_160 = pair["equal_speed"][4]
    assert at_160["text"].startswith(
        "at 160 tokens/s/user, on gives +49 % (+33 to +72) system throughput compared with off"
    )
    assert at_160["interval"]["low"] < at_160["ratio"] < at_160["interval"]["high"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(76.9, 190, [80, 100, 120, 140, 160, 180]), (3, 90, [5, 10, 20, 50]), (1.01, 1.02, None), (5, 4, []), (0, 4, [])],
)
def test_round_values(low, high, expected):
    found = round_values(low, high)
    assert all(low <= v <= high for v in found)
    assert len(found) <= 6
    if expected is not None:
        assert found == pytest.approx(expected)


def test_best_arm_by_speed_follows_the_common_staircase(make):
    points = make.points()
    bands = best_by_speed(frontier(points))
    assert [b["best"] for b in bands] == ["off", "on"]
    assert bands[0]["to"] == bands[1]["from"] == pytest.approx(1000 / 9)  # off at 16 users


def test_a_point_of_another_arm_that_may_be_as_fast_and_gives_more_is_named_too(make):
    # off is a hair faster at 8 users, on gives more there: who serves that speed best is not known.
    speeds = {"off": (100.0, 500.0), "on": (99.9, 600.0)}
    points = [make.point(a, 8, tps_per_user=u, system_tps=s) for a, (u, s) in speeds.items()]
    for p in points:
        for metric in ("tps_per_user", "system_tps"):
            p["intervals"][metric] |= {"low": p[metric] * 0.97, "high": p[metric] * 1.03}
    bands = best_by_speed(frontier(points), combine(points))
    assert [(b["best"], b["among"]) for b in bands] == [("on", ["on"]), (None, ["off", "on"])]


def test_equal_speed_knows_no_interval_beside_a_point_that_has_none(make):
    points = [make.point(a, c, width=None if c == 32 else 0.03) for a in ("off", "on") for c in (1, 2, 4, 8, 16, 32)]
    (pair,) = compare(points, ["off", "on"], frontier(points))["pairs"]
    by_speed = {row["tps_per_user"]: row for row in pair["equal_speed"]}
    assert by_speed[80]["interval"] is None  # off is between 16 and 32 users there
    assert by_speed[80]["reason"]
    assert by_speed[160]["interval"] is not None


def test_leaders_that_overlap_are_named_together(make):
    points = [make.point("off", 4, width=0.2), make.point("on", 4, width=0.2)]
    (band,) = best_by_concurrency(combine(points), ["off", "on"], "system_tps")
    assert band["best"] is None
    assert band["among"] == ["off", "on"]


def test_a_leader_must_hold_for_all_levels_at_once() -> None:
    """Holm, by hand, of six levels: 0.05 / 6 = 0.0083 asks for 2.64 standard errors, the next for 2.58."""
    half = 1.96 * 0.01
    rows = [(1, 0.03), (2, 0.0), (4, 0.0), (8, 0.0), (16, 0.0), (32, 0.0255)]
    levels = known(rows, half)
    assert [r.apart for r in levels] == [True, False, False, False, False, True]
    assert [bool(r.sign) for r in together(levels)] == [True, False, False, False, False, False]
    found = crossover("off", "on", "system_tps", levels)
    assert "at 32 is one that 6 levels may show by chance" in found["caveat"]


def test_arms_that_are_the_same_seldom_have_a_leader() -> None:
    noise = np.random.default_rng(1).normal(0, 0.01, (2000, 6))
    users = (1, 2, 4, 8, 16, 32)
    drawn = [known(list(zip(users, row, strict=True)), 1.96 * 0.01) for row in noise]
    led = [any(r.sign for r in together(levels)) for levels in drawn]
    assert np.mean(led) < 0.07
