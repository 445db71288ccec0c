"""What `point.json` says of the client, from its processes' vitals."""

from __future__ import annotations

from array import array

from endpoints.vitals import BEAT_NS, Vitals
from sweeps.health import client_health

MS = 1_000_000


def vitals(late_ms: list[float], *, cpu: float = 0.5, waited: float = 0.1, sockets: int | None = 3) -> Vitals:
    """A beat for each lateness, and marks every beat, with steady use of the CPU."""
    due = [(i + 1) * BEAT_NS for i in range(len(late_ms))]
    marks = [x for t in due for x in (t, int(cpu * t), int(waited * t) if waited >= 0 else -1)]
    return Vitals(array("q", due), array("q", [int(x * MS) for x in late_ms]), array("q", marks), 2 * MS, sockets)


def test_one_process() -> None:
    found = client_health(vitals([0.1] * 98 + [7.0, 9.0]), None)
    assert found["loop_lag_ms_p99"] == 7.0
    assert round(found["cpu_fraction"], 6) == 0.5
    assert round(found["cpu_wait_fraction"], 6) == 0.1
    assert (found["gc_pause_ms_max"], found["sockets"], found["workers"], found["parent"]) == (2.0, 3, 1, None)
    assert [row["worker"] for row in found["per_worker"]] == [0]


def test_only_the_window_counts() -> None:
    seen = vitals([50.0] * 10 + [0.2] * 10 + [60.0] * 10)
    found = client_health(seen, None, 11 * BEAT_NS, 21 * BEAT_NS)
    assert found["loop_lag_ms_p99"] == 0.2


def test_of_several_the_worst_counts_and_a_dead_one_says_nothing() -> None:
    found = client_health(vitals([0.1] * 9), [vitals([3.0] * 9, cpu=0.97, waited=0.0), None, vitals([0.2] * 9)])
    assert (found["loop_lag_ms_p99"], found["workers"], found["sockets"]) == (3.0, 3, 6)
    assert round(found["cpu_fraction"], 6) == 0.97
    assert round(found["cpu_wait_fraction"], 6) == 0.1
    assert found["per_worker"][1] == {
        "worker": 1,
        "loop_lag_ms_p99": None,
        "cpu_fraction": None,
        "cpu_wait_fraction": None,
        "gc_pause_ms_max": None,
        "sockets": None,
    }
    assert found["parent"]["loop_lag_ms_p99"] == 0.1


def test_what_the_system_does_not_tell_is_null() -> None:
    found = client_health(vitals([0.1] * 9, waited=-1, sockets=None), None)
    assert found["cpu_wait_fraction"] is None
    assert found["sockets"] == 0
    assert client_health(Vitals(array("q"), array("q"), array("q", [5, 5, 5]), 0, 1), None)["loop_lag_ms_p99"] is None
