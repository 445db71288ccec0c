"""What is counted over a point's fragments, all in one pass (`Requests.tally`), exactly and in fixed memory."""

from __future__ import annotations

import numpy as np

from sweeps.arrow import Bools, Ints
from sweeps.counts import Counts
from sweeps.requests import Floats, Fragments, Requests

_LEAST_FRAGMENTS = 8  # of a request that is looked at for bursts
_IN_A_BURST = 0.1  # a gap below this share of the request's mean gap


class TokenBins:
    """Output tokens of successful requests of any phase by their arrival, in bins (a, b] between `edges` (ns)."""

    def __init__(self, r: Requests, edges: Ints | Floats) -> None:
        self._ok, self.edges = r.ok, edges
        self.tokens = np.zeros(len(edges) - 1)

    def add(self, f: Fragments) -> None:
        bins = len(self.tokens)
        which = np.searchsorted(self.edges, f.at_ns) - 1
        inside = (which >= 0) & (which < bins) & self._ok[f.rows][f.owner]
        self.tokens += np.bincount(which[inside], f.tokens[inside], minlength=bins)


class GapCounts:
    """µs between consecutive fragments of the requests in `keep`, pooled."""

    def __init__(self, keep: Bools) -> None:
        self._keep = keep
        self.counts = Counts()

    def add(self, f: Fragments) -> None:
        gaps, owner = f.gaps()
        self.counts.add(gaps[self._keep[f.rows][owner]])


class ToldCounts:
    """Tokens in each fragment of the requests in `keep`, as the server told them; `complete` while it told them all."""

    def __init__(self, keep: Bools) -> None:
        self._keep = keep
        self.counts = Counts(2**12)
        self.complete = True

    def add(self, f: Fragments) -> None:
        told = f.told[self._keep[f.rows][f.owner]]
        untold = told < 0
        self.complete &= not untold.any()
        self.counts.add(told[~untold])


class Bursts:
    """How many bursts each request's fragments came in, shape (n,); 0 where they are too few to say."""

    def __init__(self, r: Requests) -> None:
        self.bursts = np.zeros(len(r), np.int64)

    def add(self, f: Fragments) -> None:
        gaps, owner = f.gaps()
        k = len(f.rows)
        mean = np.bincount(owner, gaps, minlength=k) / np.maximum(f.sizes - 1, 1)
        apart = (gaps >= _IN_A_BURST * mean[owner]) & (mean[owner] > 0)
        found = 1 + np.bincount(owner[apart], minlength=k)
        self.bursts[f.rows] = np.where(f.sizes >= _LEAST_FRAGMENTS, found, 0)
