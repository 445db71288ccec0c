"""The crossover of swept arms against the engine's own: a few settings of `make bench-crossover`, and shorter."""

from __future__ import annotations

import math

from benchmarks.crossover import METRICS, held, settle


def test_swept_crossovers_hold_the_true_ones():
    outcomes = [settle(number, levels=(2, 4, 8, 16), seconds=24, requests=1500) for number in (6, 11, 26)]
    for outcome in outcomes:
        assert abs(outcome.acceptance_error) < 0.05
        for metric in METRICS:
            found, true = outcome.found[metric], outcome.true[metric]
            assert found["kind"] == "crosses" and true is not None
            assert abs(math.log(found["at"] / true)) < 0.15
            assert found["interval"]["low"] is not None
    judged = [held(outcome, metric) for outcome in outcomes for metric in METRICS]
    assert judged.count(True) >= len(judged) - 1
