"""The distributions, held to scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betainc, betaincinv, stdtrit
from scipy.stats import binom

from sweeps.distributions import beta_cdf, beta_quantile, binomial_cdf, student_t


@pytest.mark.parametrize("n", [1, 36, 1000, 1_000_000])
@pytest.mark.parametrize("q", [0.1, 0.5, 0.9, 0.99])
def test_binomial(n: int, q: float) -> None:
    assert np.allclose(binomial_cdf(n, q), binom(n, q).cdf(np.arange(n + 1)), rtol=0, atol=1e-9)


@given(freedom=st.integers(1, 10**6), p=st.sampled_from([0.75, 0.95, 0.975, 0.995]))
def test_student(freedom: int, p: float) -> None:
    assert student_t(freedom, p) == pytest.approx(float(stdtrit(freedom, p)), rel=1e-8)


@given(a=st.integers(1, 3000), b=st.integers(1, 3000), p=st.sampled_from([0.005, 0.025, 0.5, 0.975, 0.995]))
def test_beta(a: int, b: int, p: float) -> None:
    x = float(betaincinv(a, b, p))
    assert beta_quantile(a, b, p) == pytest.approx(x, rel=1e-7)
    assert beta_cdf(x, a, b) == pytest.approx(float(betainc(a, b, x)), abs=1e-10)


def test_the_ends() -> None:
    assert (beta_cdf(0.0, 2, 3), beta_cdf(1.0, 2, 3)) == (0.0, 1.0)
    assert binomial_cdf(0, 0.5).tolist() == [1.0]
