"""The finding in words: one or two plain sentences, a chart title, a verdict line. Shared by page, markdown and
terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.formats import clean, listing, number, plural
from reports.points import load_label, verdicts
from sweeps.frontier import is_valid

Summary = Mapping[str, Any]


def headline(summary: Summary) -> list[str]:
    """What was found, most important first; foreign names are cleaned but not escaped."""
    if not summary["totals"]["valid"]:
        why = listing(sorted({v["code"] for p in summary["points"] for v in verdicts(p)})) or "nothing was measured"
        return [f"No valid point was measured ({why}), so there is no curve to show."]
    comparison = summary["comparison"]
    sentences = []
    if comparison:
        for pair in comparison["pairs"]:
            total, speed = (pair["crossover"][metric] for metric in ("system_tps", "tps_per_user"))
            sentences.append(total["text"])
            # The curves of speed per user mostly tell the same; where they do not, that is a finding too.
            if (total["kind"], total["between"]) != (speed["kind"], speed["between"]):
                sentences.append(speed["text"])
            if total["caveat"]:
                sentences.append(total["caveat"])
    return [*dict.fromkeys(sentences), _extremes(summary), *(d["text"] for d in summary["drift"])]


def title(summary: Summary) -> str:
    """The finding in a chart title's length."""
    if not summary["totals"]["valid"]:
        return "No valid point was measured"
    comparison = summary["comparison"]
    if not comparison:
        return "Total throughput against speed per user"
    shorts = [pair["crossover"]["system_tps"]["short"] for pair in comparison["pairs"]]
    if len(shorts) == 1:
        return str(shorts[0])
    return _bands(comparison["best"]["by_concurrency"]["system_tps"])


def _bands(bands: Sequence[Mapping[str, Any]]) -> str:
    """Who gives the most, load by load, for more than two arms."""
    merged: list[dict[str, Any]] = []
    for band in bands:
        if merged and merged[-1]["best"] == band["best"]:
            merged[-1]["to"] = band["to"]
        else:
            merged.append({"best": band["best"], "from": band["from"], "to": band["to"]})
    if not merged:
        return "The arms share no level"
    words = [
        f"{clean(b['best'], 40) if b['best'] else 'no clear lead'} at "
        + (f"{b['from']}" if b["from"] == b["to"] else f"{b['from']} to {b['to']}")
        for b in merged
    ]
    return f"Most throughput: {', '.join(words)} users" if len(words) <= 4 else "The lead changes with the load"


def verdict_line(summary: Summary) -> str:
    """'12 points: all valid', or how many are not."""
    points = summary["points"]
    invalid = sum(not is_valid(p) for p in points)
    warned = sum(is_valid(p) and bool(verdicts(p)) for p in points)
    parts = [f"{warned} with warnings" if warned else "", f"{invalid} invalid" if invalid else ""]
    state = ", ".join(p for p in parts if p) or "all valid"
    skipped = f"; {len(summary['skipped'])} skipped" if summary["skipped"] else ""
    return (f"{plural(len(points), 'point')}: {state}" if points else "No points") + skipped


def severity(summary: Summary) -> str:
    """ok | warn | invalid: the worst of all points."""
    points = summary["points"]
    if not points or not all(is_valid(p) for p in points):
        return "invalid"
    return "warn" if summary["skipped"] or any(verdicts(p) for p in points) else "ok"


def grouped_verdicts(summary: Summary) -> list[dict[str, Any]]:
    """Verdicts with the same code, severity and remedy as one, invalid first: where they hold and the evidence of the
    first."""
    groups: dict[tuple[str, str, str], dict[str, Any]] = {}
    for point in summary["points"]:
        for v in verdicts(point):
            key = (str(v.get("code")), str(v.get("severity")), str(v.get("remedy")))
            group = groups.setdefault(
                key,
                {
                    "code": clean(v.get("code"), 60),
                    "severity": clean(v.get("severity"), 20),
                    "evidence": clean(v.get("evidence") or ""),
                    "threshold": clean(v.get("threshold") or ""),
                    "remedy": clean(v.get("remedy") or ""),
                    "at": [],
                },
            )
            if group["evidence"] != clean(v.get("evidence") or "") and not group["evidence"].startswith("for example "):
                group["evidence"] = f"for example {group['evidence']}"
            where = f"{clean(point['arm'], 60)} at {load_label(point)}"
            if where not in group["at"]:
                group["at"].append(where)
    return sorted(groups.values(), key=lambda g: g["severity"] != "invalid")


def grouped_skips(summary: Summary) -> list[tuple[str, str, str]]:
    """(arm, loads, reason) of the points that were not measured, those with the same reason together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for s in summary["skipped"]:
        group = groups.setdefault((clean(s["arm"], 60), clean(s["reason"])), [])
        label = load_label(s)
        if label not in group:
            group.append(label)
    return [(arm, ", ".join(loads), reason) for (arm, reason), loads in groups.items()]


def places(group: Mapping[str, Any], most: int = 4) -> str:
    at = group["at"]
    return ", ".join(at) if len(at) <= most else f"{', '.join(at[:most])} and {len(at) - most} more"


def _extremes(summary: Summary) -> str:
    parts = []
    for arm, fps in summary["frontier"]["arms"].items():
        if not fps:
            continue
        most = max(fps, key=lambda p: p["system_tps"])
        fast = max(fps, key=lambda p: p["tps_per_user"])
        parts.append(
            f"{clean(arm, 60)} reaches {number(most['system_tps'])} tokens/s in total (at {most['concurrency']} users) "
            f"and up to {number(fast['tps_per_user'])} tokens/s per user (at {fast['concurrency']})"
        )
    return "; ".join(parts) + "." if parts else "No point has both coordinates of the curve."
