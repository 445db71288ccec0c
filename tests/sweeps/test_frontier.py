"""What is on a curve, what is dominated, and the line through it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sweeps.frontier import combined, frontier, is_valid, step_line


def point(
    concurrency: int,
    user: float | None,
    system: float | None,
    *,
    arm: str = "a",
    trial: int = 1,
    half: float | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """`half`: half width of both intervals, in units of the value."""

    def interval(value: float | None) -> dict[str, Any]:
        if half is None or value is None:
            return {"low": None, "high": None}
        return {"low": value * (1 - half), "high": value * (1 + half)}

    return {
        "arm": arm,
        "kind": "measure",
        "concurrency": concurrency,
        "trial": trial,
        "status": "finished",
        "tps_per_user": user,
        "system_tps": system,
        "intervals": {"tps_per_user": interval(user), "system_tps": interval(system)},
        "verdicts": [],
    } | changes


def kept(points: list[dict[str, Any]]) -> list[int]:
    return [row["concurrency"] for row in frontier(points)["all"] if row["on_frontier"]]


def test_only_whole_valid_points_with_both_numbers_are_on_a_curve() -> None:
    assert is_valid(point(1, 10, 10))
    assert is_valid(point(1, 10, 10, verdicts=[{"severity": "warn"}]))
    assert not is_valid(point(1, 10, 10, verdicts=[{"severity": "invalid"}]))
    assert not is_valid(point(1, 10, 10, status="interrupted"))
    assert is_valid(point(1, None, 10)), "a point may be sound and yet have no place on the chart"
    assert combined([point(1, 10, 10, kind="anchor"), point(2, None, 1), point(2, 1, None)]) == []
    assert frontier([]) == {"arms": {}, "all": []}


def test_trials_are_combined_by_their_median_and_span() -> None:
    rows = combined(
        [point(4, user, system, trial=t) for t, user, system in ((1, 100, 420), (2, 90, 380), (3, 80, 400))]
    )
    assert rows == [
        {
            "arm": "a",
            "concurrency": 4,
            "trials": 3,
            "tps_per_user": 90,
            "tps_per_user_low": 80,
            "tps_per_user_high": 100,
            "system_tps": 400,
            "system_tps_low": 380,
            "system_tps_high": 420,
        }
    ]


def test_dominated_only_beyond_the_intervals() -> None:
    # 2 % less on both axes: within intervals of 3 %, beyond such of 0.5 %, and without intervals.
    assert kept([point(8, 100, 800, half=0.03), point(16, 98, 784, half=0.03)]) == [8, 16]
    assert kept([point(8, 100, 800, half=0.005), point(16, 98, 784, half=0.005)]) == [8]
    assert kept([point(8, 100, 800), point(16, 98, 784)]) == [8]
    # Beyond on one axis is not enough while the other is within.
    assert kept([point(8, 100, 800, half=0.05), point(16, 98, 700, half=0.05)]) == [8, 16]
    rows = frontier([point(8, 100, 800), point(16, 98, 784)])["all"]
    assert rows[1]["dominated_by"] == {"arm": "a", "concurrency": 8}


def test_a_trade_off_is_no_domination() -> None:
    assert kept([point(1, 200, 200), point(8, 150, 1000), point(64, 50, 3000)]) == [1, 8, 64]


def test_of_equal_points_the_lower_concurrency_stays() -> None:
    assert kept([point(16, 100, 800), point(8, 100, 800)]) == [8]
    assert kept([point(16, 100, 800, half=0.1), point(8, 100, 800, half=0.1)]) == [8]


def test_arms_have_curves_of_their_own_and_a_common_one() -> None:
    found = frontier([point(8, 100, 800, arm="off"), point(8, 120, 900, arm="on")])
    assert [row["on_frontier"] for rows in found["arms"].values() for row in rows] == [True, True]
    assert [row["on_frontier"] for row in found["all"]] == [False, True]
    assert found["all"][0]["dominated_by"] == {"arm": "on", "concurrency": 8}


numbers = st.integers(1, 12).map(float)
curves = st.lists(
    st.builds(point, st.integers(1, 5), numbers, numbers, arm=st.sampled_from(["a", "b"]), half=st.just(None)),
    max_size=10,
    unique_by=lambda p: (p["arm"], p["concurrency"]),
)


@given(curves)
def test_what_is_left_is_not_dominated_and_what_is_not_is(points: list[dict[str, Any]]) -> None:
    rows = frontier(points)["all"]
    front = [row for row in rows if row["on_frontier"]]
    assert bool(front) == bool(points)

    def beats(a: dict[str, Any], b: dict[str, Any]) -> bool:
        at_least = a["tps_per_user"] >= b["tps_per_user"] and a["system_tps"] >= b["system_tps"]
        return at_least and (a["tps_per_user"], a["system_tps"]) != (b["tps_per_user"], b["system_tps"])

    for row in front:
        assert not any(beats(other, row) for other in rows)
    for row in rows:
        if not row["on_frontier"]:
            assert any(beats(other, row) or other["concurrency"] < row["concurrency"] for other in front)


@given(curves)
def test_the_step_line_is_a_falling_staircase_over_the_points(points: list[dict[str, Any]]) -> None:
    rows = combined(points)
    line = step_line(rows)
    assert all(b[0] < a[0] and b[1] > a[1] for a, b in pairwise(line))
    for x in range(1, 13):
        best = max((row["system_tps"] for row in rows if row["tps_per_user"] >= x), default=None)
        drawn = max((y for at, y in line if at >= x), default=None)
        assert best == drawn  # y(x) is the highest throughput among the points at least that fast
