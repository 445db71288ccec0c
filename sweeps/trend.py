"""Does a series drift? The rules' trend test: Mann-Kendall with the Hamed-Rao correction for autocorrelation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEAST = 4


@dataclass(frozen=True, slots=True)
class Trend:
    """`p`: two-sided; `drift`: least-squares slope times (n - 1), over the median, so +0.1 is 10 % up end to end."""

    p: float
    drift: float

    @property
    def significant(self) -> bool:
        return self.p < 0.05


def trend(series: npt.NDArray[np.float64]) -> Trend | None:
    """Mann-Kendall test (Mann 1945, Kendall 1975; ties corrected; normal with continuity correction), its variance
    multiplied by Hamed and Rao's factor (J. Hydrology 204, 1998) over the rank autocorrelations above 1.96/sqrt(n).

    None for fewer than 4 values or a median of 0.
    """
    n = len(series)
    middle = float(np.median(series)) if n else 0.0
    if n < LEAST or middle == 0:
        return None
    later = np.sign(series[None, :] - series[:, None])
    s = float(np.triu(later, 1).sum())
    _, ties = np.unique(series, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    variance *= _hamed_rao(series)
    z = 0.0 if s == 0 or variance <= 0 else (s - math.copysign(1, s)) / math.sqrt(variance)
    slope = float(np.polyfit(np.arange(n), series, 1)[0])
    return Trend(math.erfc(abs(z) / math.sqrt(2)), slope * (n - 1) / middle)


def _hamed_rao(series: npt.NDArray[np.float64]) -> float:
    n = len(series)
    _, inverse, counts = np.unique(series, return_inverse=True, return_counts=True)
    top = np.cumsum(counts)
    ranks = (top - (counts - 1) / 2)[inverse]  # tied values share their mean rank
    centred = ranks - ranks.mean()
    power = float(centred @ centred)
    if power == 0:
        return 1.0
    total = 0.0
    for lag in range(1, n):
        r = float(centred[:-lag] @ centred[lag:]) / power
        if abs(r) > 1.96 / math.sqrt(n):
            total += (n - lag) * (n - lag - 1) * (n - lag - 2) * r
    factor = 1 + 2 / (n * (n - 1) * (n - 2)) * total
    return factor if factor > 0 else 1.0
