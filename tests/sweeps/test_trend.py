"""The trend test, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from sweeps.trend import trend


def two_sided(z: float) -> float:
    return float(2 * norm.sf(abs(z)))


def test_by_hand_without_ties() -> None:
    # 3 1 4 2 5: pairs up +: (3,4)(3,5)(1,4)(1,2)(1,5)(4,5)(2,5) = 7; down: (3,1)(3,2)(4,2) = 3; S = 4.
    # Variance 5 * 4 * 15 / 18 = 16.667. Rank autocorrelations, of 0 -2 1 -1 2 over 10: lag 1: (0 - 2 - 1 - 2) / 10 =
    # -0.5, lag 2: (0 + 2 + 2) / 10 = 0.4, lag 3: (0 - 4) / 10 = -0.4, lag 4: 0; none above 1.96 / sqrt(5) = 0.88.
    found = trend(np.array([3.0, 1, 4, 2, 5]))
    assert found is not None
    assert found.p == pytest.approx(two_sided(3 / math.sqrt(50 / 3)))
    # Slope: sum of (i - 2)(y - 3) over 10 = (0 + 2 + 0 - 1 + 4) / 10 = 0.5; 0.5 * 4 / 3.
    assert found.drift == pytest.approx(2 / 3)
    assert not found.significant


def test_by_hand_with_ties() -> None:
    # 1 2 2 3: S = 5 (one pair is equal). Variance (4 * 3 * 13 - 2 * 1 * 9) / 18 = 138 / 18. Ranks 1, 2.5, 2.5, 4, no
    # autocorrelation above 0.98.
    found = trend(np.array([1.0, 2, 2, 3]))
    assert found is not None
    assert found.p == pytest.approx(two_sided(4 / math.sqrt(138 / 18)))


def test_autocorrelation_widens_the_variance() -> None:
    # 1..10: S = 45, variance 10 * 9 * 25 / 18 = 125. Ranks around their mean: -4.5 … 4.5, squares 82.5 in all; lag 1
    # has 2 * (15.75 + 8.75 + 3.75 + 0.75) - 0.25 = 57.75, so r = 0.7 > 1.96 / sqrt(10) = 0.62; the other lags stay
    # within 0.43. The factor is 1 + 2 / 720 * 9 * 8 * 7 * 0.7 = 1.98.
    found = trend(np.arange(1.0, 11))
    assert found is not None
    assert found.p == pytest.approx(two_sided(44 / math.sqrt(125 * 1.98)))
    assert found.significant
    assert found.drift == pytest.approx(9 / 5.5)


def test_a_constant_does_not_drift() -> None:
    found = trend(np.full(8, 3.0))
    assert found is not None
    assert found.p == 1
    assert found.drift == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("series", [[], [1.0, 2, 3], [-1.0, -1, 1, 1]])
def test_too_short_or_without_a_scale(series: list[float]) -> None:
    assert trend(np.array(series)) is None


def test_noise_seldom_drifts_and_a_ramp_does() -> None:
    rng = np.random.default_rng(3)
    noise = [trend(rng.normal(100, 5, 20)) for _ in range(300)]
    assert np.mean([t is not None and t.significant for t in noise]) < 0.12
    ramp = [trend(rng.normal(100, 1, 20) + np.linspace(0, 10, 20)) for _ in range(50)]
    assert all(t is not None and t.significant and t.drift > 0.05 for t in ramp)
