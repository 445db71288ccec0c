"""What changed between two measurements of the same point, and in which order the arms took their turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from reports.formats import clean, percent_change, seconds
from reports.points import Point, estimate, get, is_anchor, is_measured
from reports.speedup import ratio
from sweeps.frontier import is_valid

_WORDS = {"system_tps": "total throughput", "tps_per_user": "speed per user"}


def drifts(points: Sequence[Point]) -> list[dict[str, Any]]:
    """For each anchor: {arm, concurrency, seconds (between the starts), metrics {name: ratio or None}, text}.

    A ratio is the anchor's value over that of the same point when it was first measured, with the interval of
    `speedup.ratio`; None where one of the two is not valid or has no such number.
    """
    found = []
    for again in points:
        if not is_anchor(again):
            continue
        same = (again["arm"], again["concurrency"], again.get("trial"))
        first = next(
            (p for p in points if is_measured(p) and (p["arm"], p["concurrency"], p.get("trial")) == same), None
        )
        found.append(_drift(first, again))
    return found


def _drift(first: Point | None, again: Point) -> dict[str, Any]:
    where = f"{clean(again['arm'], 60)} at {again['concurrency']}"
    both = first is not None and is_valid(first) and is_valid(again)
    metrics: dict[str, Any] = dict.fromkeys(_WORDS)
    if both and first is not None:
        for metric in _WORDS:
            before, after = estimate([first], metric), estimate([again], metric)
            metrics[metric] = ratio(before, after) if before and after else None
    between = _between(first, again)
    later = f", {seconds(between)} later" if between is not None else ""
    if any(metrics.values()):
        said = ", ".join(f"{_WORDS[name]} {_change(r)}" for name, r in metrics.items() if r)
        text = f"Drift: {where}, measured again at the end{later}: {said}."
        if any(r and r["apart"] for r in metrics.values()):
            text += " Differences between the arms of that size may be drift."
    else:
        text = f"Drift is not known: {where} was measured again at the end{later}, and the two are not both valid."
    return {
        "arm": again["arm"],
        "concurrency": again["concurrency"],
        "seconds": between,
        "metrics": metrics,
        "text": text,
    }


def _change(found: Mapping[str, Any]) -> str:
    text = percent_change(found["ratio"])
    if found["interval"]:
        low, high = (percent_change(found["interval"][end]).removesuffix(" %") for end in ("low", "high"))
        text += f" ({low} to {high})"
    return text if found["apart"] is not False else f"{text}, not to be told apart from none"


def order_of(points: Sequence[Point], arms: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """{"blocks": whether the arms ran in blocks, "text": how they took their turns}."""
    if not any(arm.get("launch") for arm in arms.values()):
        return {"blocks": False, "text": "at each level the arms are measured next to each other, in turning order"}
    timed = sorted((p for p in points if p.get("started_at")), key=lambda p: str(p["started_at"]))
    turns = [arm for arm, _ in groupby(clean(p["arm"], 60) + (" (anchor)" if is_anchor(p) else "") for p in timed)]
    text = "arms ran in blocks, since one machine serves them and only one launched server is up at a time"
    return {"blocks": True, "text": f"{text}: {', '.join(turns)}" if turns else text}


def _between(first: Point | None, again: Point) -> float | None:
    try:
        begun = [datetime.fromisoformat(str(get(p or {}, "started_at"))) for p in (first, again)]
    except ValueError:
        return None
    return (begun[1] - begun[0]).total_seconds()
