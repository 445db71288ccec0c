"""Intervals: what sample they need, which ranks they take, and what they say when there is none."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from sweeps.intervals import (
    LEAST_BLOCKS,
    block_edges,
    order_statistic,
    point_intervals,
    resampled_quantile,
)
from sweeps.metrics import Span

MS = 1_000_000


def test_a_p90_needs_36_samples() -> None:
    none = order_statistic(np.arange(35.0), 0.9)
    assert (none["low"], none["high"], none["method"], none["n"]) == (None, None, None, 35)
    assert none["reason"] == "a p90 needs 36 samples, this point has 35"
    some = order_statistic(np.arange(36.0), 0.9)
    assert some["high"] == 35  # the largest: 1 - 0.9**36 = 97.7 % of such samples reach beyond the quantile
    assert (some["method"], some["level"], some["scope"], some["n"]) == ("order_statistic", 0.95, "within_run", 36)


@given(n=st.integers(36, 600), q=st.sampled_from([0.5, 0.9]))
def test_ranks_leave_at_most_2_5_percent_on_each_side(n: int, q: float) -> None:
    interval = order_statistic(np.arange(1.0, n + 1), q)
    low, high = int(interval["low"]), int(interval["high"])  # values are their own ranks
    below = binom(n, q).cdf
    # P(the low-th smallest lies above the quantile) = P(fewer than `low` values at or below it).
    assert below(low - 1) <= 0.025 < below(low)
    # P(the high-th smallest lies below the quantile) = P(`high` values or more at or below it).
    assert 1 - below(high - 1) <= 0.025 < 1 - below(high - 2)


def test_order_statistics_hold_the_quantile_as_often_as_they_say() -> None:
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(400):
        interval = order_statistic(rng.exponential(size=60), 0.9)
        held += interval["low"] <= np.log(10) <= interval["high"]  # the p90 of an exponential
    assert held / 400 >= 0.93


def test_blocks_hold_the_quantile_of_requests_that_share_their_fate() -> None:
    # 60 blocks of 20 requests, all of a block alike: in truth 60 values, which order statistics take for 1200.
    rng = np.random.default_rng(3)
    which = np.repeat(np.arange(60), 20)
    by_blocks, by_order = [], []
    for _ in range(120):
        values = rng.exponential(size=60)[which] + 1e-6 * rng.random(1200)
        low, high = resampled_quantile(values, which, 60, 0.9, rng)
        by_blocks.append(low <= np.log(10) <= high)  # the p90 of an exponential
        order = order_statistic(values, 0.9)
        by_order.append(order["low"] <= np.log(10) <= order["high"])
    assert np.mean(by_blocks) >= 0.85
    assert np.mean(by_order) <= 0.6


@given(st.integers(0, 2**32), st.sampled_from([300, 5000]))
@settings(max_examples=10)
def test_a_large_sample_taken_together_to_cells_gives_bounds_as_wide_or_a_cell_wider(seed: int, n: int) -> None:
    values = np.random.default_rng(seed).permutation(n).astype(float)
    which = np.arange(n) * 25 // n
    low, high = resampled_quantile(values, which, 25, 0.9, np.random.default_rng(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sweeps.intervals._CELLS", 10**6)
        exact = resampled_quantile(values, which, 25, 0.9, np.random.default_rng(1))
    cell = np.ceil(n / 2048)
    assert exact[0] - cell <= low <= exact[0] and exact[1] <= high <= exact[1] + cell


def test_a_p90_is_of_blocks_where_there_are_enough(lab: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    sent = [lab.sent(i, (50 * i + 10 + 40 * rng.random(), 50 * i + 100), sent=50 * i) for i in range(100)]
    r = lab.requests(*sent)
    enough = point_intervals(r, Span(0, 5000 * MS), r.counted, 0)["ttft_ms_p90"]
    assert (enough["method"], enough["n"]) == ("block_bootstrap", 50)
    few = point_intervals(r, Span(0, 1900 * MS), r.counted, 0)["ttft_ms_p90"]
    assert (few["method"], few["n"]) == ("order_statistic", 100)
    assert enough["low"] <= few["low"] < few["high"] <= enough["high"]


def test_fewer_than_20_blocks_are_no_interval(lab: SimpleNamespace) -> None:
    # Requests of 100 ms: a window of 1.9 s holds 19 blocks, one of 2 s 20.
    sent = [lab.sent(i, (100 * i + 50, 100 * i + 100), sent=100 * i) for i in range(40)]
    r = lab.requests(*sent)
    short = point_intervals(r, Span(0, 1900 * MS), r.counted, 0)["system_tps"]
    assert short["low"] is None
    assert short["n"] == 19
    assert short["reason"] == "20 blocks of one request length are needed, this window holds 19"
    enough = point_intervals(r, Span(0, 2000 * MS), r.counted, 0)
    assert enough["system_tps"]["method"] == "block_bootstrap"
    assert enough["system_tps"]["n"] == LEAST_BLOCKS
    assert enough["system_tps"]["low"] == enough["system_tps"]["high"] == pytest.approx(20)  # every block alike
    assert enough["ttft_ms_mean"]["low"] == enough["ttft_ms_mean"]["high"] == 50
    assert point_intervals(r, None, r.counted, 0)["system_tps"]["reason"] == "the point has no window"


def test_blocks_are_as_long_as_nine_of_ten_requests(lab: SimpleNamespace) -> None:
    edges, blocks, reason = block_edges(Span(0, 10_000), np.array([100.0] * 8 + [200.0, 5000.0]))
    assert edges is not None and not reason
    assert blocks == 50
    assert np.allclose(np.diff(edges), 200)
    assert block_edges(Span(0, 10_000), np.empty(0)) == (None, 0, "no request succeeded")


def test_speed_is_the_reciprocal_of_its_pace(lab: SimpleNamespace) -> None:
    sent = [lab.sent(i, (100, 100 + i)) for i in range(1, 51)]
    r = lab.requests(*sent)
    intervals = point_intervals(r, Span(0, 1000 * MS), r.counted, 0)
    pace, speed = intervals["tpot_ms_p90"], intervals["tps_per_user"]
    assert speed["low"] == 1000 / pace["high"]
    assert speed["high"] == 1000 / pace["low"]


def test_the_seed_decides_the_resampling(lab: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    sent = [lab.sent(i, (50 * i + 10 + 40 * rng.random(), 50 * i + 100), sent=50 * i) for i in range(100)]
    r = lab.requests(*sent)

    def low(seed: int) -> float:
        value: float = point_intervals(r, Span(0, 5000 * MS), r.counted, seed)["ttft_ms_mean"]["low"]
        return value

    assert low(1) == low(1) != low(2)
