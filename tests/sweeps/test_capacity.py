"""How many client processes a load needs, and when a run is warned."""

from __future__ import annotations

import pytest

from sweeps.capacity import Capacity, crew_for, warning_for

MEASURED = Capacity(20_000, measured=True)


@pytest.mark.parametrize(
    ("concurrency", "per_stream", "asked", "cores", "local", "workers"),
    [
        (1, None, None, 64, False, 1),
        (400, None, None, 64, False, 1),  # 400 x 50 = 20,000: one carries it exactly
        (401, None, None, 64, False, 2),
        (1024, None, None, 64, False, 3),
        (1024, None, None, 2, False, 2),  # no more than there are cores
        (1024, None, None, 2, True, 1),  # one of the two is the server's
        (1024, None, None, 1, True, 1),
        (1024, 10.0, None, 64, False, 1),  # slow streams
        (100, 1000.0, None, 64, False, 5),  # quick ones
        (8, None, 4, 2, True, 4),  # a number that is named is kept to
        (2, None, 4, 2, True, 2),  # but a worker without a stream is none
    ],
)
def test_crew(
    concurrency: int, per_stream: float | None, asked: int | None, cores: int, local: bool, workers: int
) -> None:
    assert crew_for(concurrency, per_stream, asked, MEASURED, cores=cores, local=local).workers == workers


def test_warnings() -> None:
    assert warning_for(256, None, None, cores=2, local=True) is None
    assert "endsweep selftest" in str(warning_for(257, None, None, cores=2, local=True))
    assert warning_for(400, None, MEASURED, cores=2, local=True) is None
    beyond = str(warning_for(1024, None, MEASURED, cores=2, local=True))
    assert "51,200 chunks/s" in beyond and "one process" in beyond and "20,000" in beyond
    assert "2 processes" in str(warning_for(1024, None, MEASURED, cores=2, local=False))
    assert warning_for(1024, None, MEASURED, cores=4, local=False) is None
    assert warning_for(1024, 3, MEASURED, cores=2, local=True) is None  # 3 are asked for, and taken at their word
