"""An exact sample of whole numbers in bounded memory: how often each was seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sweeps.arrow import Ints


class Counts:
    """A multiset of whole numbers >= 0. Those below `dense` are counted in an array, as long as the largest of them
    needs, the others as pairs of (number, how often). Of gaps in µs, a number beyond 2**20 has taken a second of some
    stream's time, so there are few."""

    def __init__(self, dense: int = 2**20) -> None:
        self._most, self._dense = dense, np.zeros(0, np.uint32)
        self._values, self._times = np.empty(0, np.int64), np.empty(0, np.int64)

    def add(self, values: Ints) -> None:
        """Count some numbers, shape (m,)."""
        most = int(values.max(initial=-1))
        if most >= self._most:
            big = values >= self._most
            both = np.concatenate([self._values, values[big]])
            weights = np.concatenate([self._times, np.ones(big.sum(), np.int64)])
            self._values, where = np.unique(both, return_inverse=True)
            self._times = np.bincount(where, weights).astype(np.int64)
            values = values[~big]
            most = int(values.max(initial=-1))
        if most >= len(self._dense):
            room = min(self._most, 2 * most + 1) - len(self._dense)
            self._dense = np.concatenate([self._dense, np.zeros(room, np.uint32)])
        np.add.at(self._dense, values, np.uint32(1))

    def pairs(self) -> tuple[Ints, Ints]:
        """(numbers ascending, how often each)."""
        small = np.flatnonzero(self._dense)
        return np.concatenate([small, self._values]), np.concatenate([self._dense[small].astype(np.int64), self._times])

    @property
    def n(self) -> int:
        return int(self._dense.sum(dtype=np.int64) + self._times.sum())

    def mean(self) -> float | None:
        values, times = self.pairs()
        return float((values * times.astype(float)).sum() / times.sum()) if len(times) else None

    def percentiles(self, marks: Sequence[float]) -> Ints | None:
        """By the "lower" method of `numpy.percentile`: numbers that were seen; None of an empty sample."""
        values, times = self.pairs()
        if len(values) == 0:
            return None
        ranks = np.floor((times.sum() - 1) * (np.asarray(marks) / 100)).astype(np.int64)
        found: Ints = values[np.searchsorted(np.cumsum(times), ranks, side="right")]
        return found
