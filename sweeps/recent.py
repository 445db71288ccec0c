"""The median of what was seen last, in bounded memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

_MOST = 4096


class RecentMedian:
    """Of the last 4096 numbers: exact, and as of today rather than of the whole past."""

    def __init__(self, most: int = _MOST) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        self._most = most

    def add(self, value: int) -> None:
        insort(self._sorted, value)
        self._recent.append(value)
        if len(self._recent) > self._most:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def __len__(self) -> int:
        return len(self._sorted)

    def median(self) -> int:
        """The middle one, or halfway between the two middle ones, rounded down; 0 of nothing."""
        n = len(self._sorted)
        return (self._sorted[(n - 1) // 2] + self._sorted[n // 2]) // 2 if n else 0
