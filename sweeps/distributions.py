"""The distributions that intervals and tests go by: to load scipy for them takes longer than all the rest of a point's
analysis. (The tests hold them to scipy.)"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

_TINY = 1e-300


def binomial_cdf(n: int, q: float) -> npt.NDArray[np.float64]:
    """P(X <= k) of a binomial (n, q), 0 < q < 1, for k = 0..n, shape (n + 1,): outward from the likeliest k by the
    ratios of neighbours, P(k + 1) / P(k) = (n - k) / (k + 1) * q / (1 - q)."""
    k, top = np.arange(n), int(n * q)
    ratios = np.log((n - k) / (k + 1) * (q / (1 - q)))
    terms = np.exp(np.concatenate([-np.cumsum(ratios[:top][::-1])[::-1], [0.0], np.cumsum(ratios[top:])]))
    cdf: npt.NDArray[np.float64] = np.cumsum(terms) / terms.sum()
    return cdf


@lru_cache(4096)
def student_t(freedom: float, p: float) -> float:
    """The quantile p >= 1/2 of Student's t: P(T > t) is half the beta distribution's (freedom / 2, 1 / 2) below
    freedom / (freedom + t²) (Abramowitz and Stegun, 26.7.1)."""
    x = beta_quantile(freedom / 2, 0.5, 2 * (1 - p))
    return math.sqrt(freedom * (1 - x) / x)


def beta_quantile(a: float, b: float, p: float) -> float:
    """The quantile p of a beta distribution (a, b), by halving."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high and high - low > 1e-15 * high:
        if beta_cdf(middle, a, b) < p:
            low = middle
        else:
            high = middle
    return high


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function: its continued fraction (DLMF 8.17.22) by Lentz's method."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # there it is the other side's that converges quickly
        return 1 - beta_cdf(1 - x, b, a)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or _TINY)
    fraction = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            c, d = (1 + term / c) or _TINY, 1 / ((1 + term * d) or _TINY)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(logs) / a * fraction
