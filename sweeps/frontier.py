"""The part of a curve that is not dominated: total throughput against speed per user, both the higher the better."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

AXES = ("tps_per_user", "system_tps")


def is_valid(point: Mapping[str, Any]) -> bool:
    """Finished, with no verdict of severity `invalid`."""
    return point.get("status") == "finished" and all(v["severity"] != "invalid" for v in point.get("verdicts", []))


def combined(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Valid trials of one (arm, load) that have both numbers, combined by the median.

    Their interval is the range of the trials, or that of the one trial. Sorted by arm (as first seen) and concurrency.
    """
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for point in points:
        whole = is_valid(point) and all(point.get(axis) is not None for axis in AXES)
        if whole and point.get("kind", "measure") == "measure":
            groups.setdefault((point["arm"], point["concurrency"]), []).append(point)
    arms = list(dict.fromkeys(arm for arm, _ in groups))
    rows = []
    for (arm, concurrency), trials in sorted(groups.items(), key=lambda g: (arms.index(g[0][0]), g[0][1])):
        row: dict[str, Any] = {"arm": arm, "concurrency": concurrency, "trials": len(trials)}
        for axis in AXES:
            values = [t[axis] for t in trials]
            row[axis] = statistics.median(values)
            row[f"{axis}_low"], row[f"{axis}_high"] = _range(trials, axis, values)
        rows.append(row)
    return rows


def frontier(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`{"arms": {arm: rows}, "all": rows}`: each row with `on_frontier` and, where dominated, `dominated_by`.

    A point is called dominated only when another is no worse on both axes, and better on one, beyond the intervals of
    both (a value without an interval stands for itself). Of two points equal on both axes, the one with the lower
    concurrency stays.
    """
    rows = combined(points)
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    return {
        "arms": {arm: _marked([row for row in rows if row["arm"] == arm]) for arm in arms},
        "all": _marked(rows),
    }


def step_line(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Corners of y(x) = the highest system_tps among the points with tps_per_user >= x, from fast to slow users.

    A pure staircase over the points' values: strictly falling x, strictly rising y.
    """
    corners: list[tuple[float, float]] = []
    for row in sorted(rows, key=lambda row: (-row["tps_per_user"], -row["system_tps"])):
        if not corners or row["system_tps"] > corners[-1][1]:
            corners.append((row["tps_per_user"], row["system_tps"]))
    return corners


def _marked(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    marked = []
    for row in rows:
        better = [other for other in rows if other is not row and _dominates(other, row)]
        best = max(better, key=lambda other: other["system_tps"], default=None)
        by = None if best is None else {"arm": best["arm"], "concurrency": best["concurrency"]}
        marked.append({**row, "on_frontier": best is None, "dominated_by": by})
    return marked


def _dominates(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if all(a[axis] == b[axis] for axis in AXES):
        return bool(a["concurrency"] < b["concurrency"])
    at_least = all(a[f"{axis}_low"] >= b[f"{axis}_high"] for axis in AXES)
    beyond = any(a[f"{axis}_low"] > b[f"{axis}_high"] for axis in AXES)
    return at_least and beyond


def _range(trials: Sequence[Mapping[str, Any]], axis: str, values: Sequence[float]) -> tuple[float, float]:
    if len(trials) > 1:
        return min(values), max(values)
    interval = trials[0].get("intervals", {}).get(axis, {})
    low, high = interval.get("low"), interval.get("high")
    value = values[0]
    return (value if low is None else min(low, value)), (value if high is None else max(high, value))
