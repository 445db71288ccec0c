"""Exact statistics in bounded memory."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.counts import Counts
from sweeps.recent import RecentMedian

NUMBERS = st.lists(st.integers(0, 40) | st.integers(0, 10**12), max_size=40)


@given(batches=st.lists(NUMBERS, max_size=5), dense=st.integers(1, 50))
def test_counts_are_the_sample_itself(batches: list[list[int]], dense: int) -> None:
    counts = Counts(dense)
    for batch in batches:
        counts.add(np.array(batch, np.int64))
    sample = np.array([x for batch in batches for x in batch], np.int64)
    values, times = counts.pairs()
    assert np.repeat(values, times).tolist() == sorted(sample.tolist())
    assert counts.n == len(sample)
    marks = (0, 50, 90, 95, 99, 100)
    if len(sample) == 0:
        assert counts.mean() is None
        assert counts.percentiles(marks) is None
        return
    assert counts.mean() == pytest.approx(sample.mean())
    found = counts.percentiles(marks)
    assert found is not None
    assert found.tolist() == np.percentile(sample, marks, method="lower").tolist()


@given(numbers=st.lists(st.integers(0, 9), max_size=30), most=st.integers(1, 8))
def test_the_median_of_the_last_ones(numbers: list[int], most: int) -> None:
    recent = RecentMedian(most)
    assert recent.median() == 0
    for i, number in enumerate(numbers, 1):
        recent.add(number)
        last = numbers[max(0, i - most) : i]
        assert recent.median() == int(statistics.median(last))
        assert len(recent) == len(last)
