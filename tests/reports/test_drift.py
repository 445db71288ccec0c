"""A point measured again, and how arms took their turns."""

from __future__ import annotations

import math
from typing import Any

import pytest

from reports.drift import drifts, order_of
from reports.headline import headline
from reports.markdown import render
from reports.summary import assemble
from reports.terminal import best_marks, plain
from sweeps.frontier import frontier


def anchored(make: Any, factor: float = 1.0, **changes: Any) -> list[dict[str, Any]]:
    """A first point and its anchor, whose throughput is `factor` times as high."""
    first = make.point("off", 8) | {"started_at": "2026-11-30T12:00:00.000Z"}
    again = make.point("off", 8) | {"kind": "anchor", "started_at": "2026-11-30T12:10:00.000Z"}
    again["system_tps"] *= factor
    again["intervals"] = again["intervals"] | {
        "system_tps": {
            **again["intervals"]["system_tps"],
            "low": again["system_tps"] * 0.97,
            "high": again["system_tps"] * 1.03,
        }
    }
    return [first, again | changes]


def test_drift_is_the_later_over_the_earlier_with_an_interval(make: Any) -> None:
    (drift,) = drifts(anchored(make, 0.8))
    found = drift["metrics"]["system_tps"]
    assert found["ratio"] == pytest.approx(0.8)
    width = math.hypot(math.log(0.97), math.log(1.03))  # the log of a ratio adds up both distances by squares
    assert found["interval"]["low"] == pytest.approx(0.8 * math.exp(-width))
    assert found["interval"]["high"] == pytest.approx(0.8 * math.exp(width))
    assert found["apart"] is True
    assert drift["metrics"]["tps_per_user"]["ratio"] == 1
    assert drift["seconds"] == 600
    assert "off at 8, measured again at the end, 10 min 00 s later: total throughput −20 %" in drift["text"]
    assert "speed per user ±0 % (−" in drift["text"]
    assert "not to be told apart from none" in drift["text"]
    assert drift["text"].endswith("Differences between the arms of that size may be drift.")


def test_no_drift_is_said_to_be_none(make: Any) -> None:
    (drift,) = drifts(anchored(make, 1.01))
    assert "not to be told apart from none" in drift["text"]
    assert "may be drift" not in drift["text"]


def test_drift_is_not_known_of_an_invalid_anchor(make: Any) -> None:
    (drift,) = drifts(anchored(make, status="interrupted"))
    assert drift["metrics"] == {"system_tps": None, "tps_per_user": None}
    assert drift["text"].startswith("Drift is not known: off at 8")
    assert drifts(anchored(make)[1:])[0]["text"].startswith("Drift is not known")
    assert drifts(anchored(make)[:1]) == []


def test_an_anchor_is_shown_and_on_no_curve(make: Any) -> None:
    points = [*anchored(make, 2.0), make.point("on", 8), make.point("off", 4), make.point("on", 4)]
    summary = assemble(make.manifest(), points, [make.event("run_finished")])
    assert [p["concurrency"] for p in summary["frontier"]["arms"]["off"]] == [4, 8]
    assert summary["frontier"] == frontier([p for p in points if p.get("kind") != "anchor"])
    assert headline(summary)[-1] == summary["drift"][0]["text"]
    text = plain(summary)
    (row,) = [line for line in text.splitlines() if "(anchor)" in line]
    assert "*" not in row and "~" not in row
    assert best_marks(summary)
    assert "8 (anchor)" in render(summary)


def test_how_arms_took_their_turns(make: Any) -> None:
    launched = {"off": {"launch": {"command": ["x"]}}, "on": {"launch": None}}
    points = [*anchored(make), make.point("on", 8) | {"started_at": "2026-11-30T12:05:00.000Z"}]
    order = order_of(points, launched)
    assert order["blocks"] is True
    assert order["text"].endswith("off, on, off (anchor)")
    assert order_of(points, {"off": {}, "on": {}})["blocks"] is False


def test_points_skipped_for_one_reason_are_one_line(make: Any) -> None:
    journal = [
        make.event("point_skipped", arm="on", concurrency=c, trial=1, reason="the server is gone") for c in (1, 2)
    ]
    journal.append(
        make.event("point_skipped", arm="on", concurrency=2, trial=1, kind="anchor", reason="the server is gone")
    )
    summary = assemble(make.manifest(), [make.point("off", 1)], journal)
    assert [s.get("kind") for s in summary["skipped"]] == [None, None, "anchor"]
    assert "skipped: on at 1, 2, 2 (anchor): the server is gone" in plain(summary)
