"""The points as rows of text, for the page and the markdown: what is shown of a point, in which order, under which
heading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.formats import MISSING, clean, integer, number, percent_change, span, usd
from reports.points import interval, load_label, load_order, num, usd_per_million_output, verdicts
from sweeps.frontier import is_valid

HEADINGS = {
    "load": "Users",
    "arm": "Arm",
    "trial": "Trial",
    "system_tps": "Tokens/s",
    "system_interval": "95 % interval",
    "tps_per_user": "Tokens/s/user",
    "user_interval": "95 % interval",
    "ttft": "TTFT p50 / p90 (ms)",
    "tpot": "TPOT p50 / p90 (ms)",
    "e2e": "E2E p90 (ms)",
    "requests": "Requests ok / failed",
    "acceptance": "Acceptance length",
    "usd": "USD / million output tokens",
    "verdict": "Verdict",
}
SAME = "≈"  # cannot be told apart
TEXT_COLUMNS = ("arm", "verdict")


def point_rows(summary: Mapping[str, Any]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """(headings, rows), by load and then arm; columns without a single value are left out (cost, acceptance, trial)."""
    order = list(summary["arms"])
    points = sorted(summary["points"], key=lambda p: (load_order(p), order.index(p["arm"]), p.get("trial") or 1))
    rows = [_row(point) for point in points]
    headings = dict(HEADINGS)
    for column in ("usd", "acceptance", "system_interval", "user_interval"):
        if all(row[column] == MISSING for row in rows):
            del headings[column]
    if all(row["trial"] == "1" for row in rows):
        del headings["trial"]
    return headings, rows


def _row(point: Mapping[str, Any]) -> dict[str, str]:
    codes = ", ".join(dict.fromkeys(clean(v.get("code"), 60) for v in verdicts(point)))
    state = "valid" if is_valid(point) else "invalid"
    if point.get("status") != "finished":
        codes = ", ".join(x for x in (clean(point.get("status") or "no status", 40), codes) if x)
    return {
        "load": load_label(point),
        "arm": clean(point["arm"], 60),
        "trial": str(point.get("trial") or 1),
        "system_tps": number(num(point, "system_tps")),
        "system_interval": span(*(interval(point, "system_tps") or (None, None))),
        "tps_per_user": number(num(point, "tps_per_user")),
        "user_interval": span(*(interval(point, "tps_per_user") or (None, None))),
        "ttft": _pair(point, "ttft_ms"),
        "tpot": _pair(point, "tpot_ms"),
        "e2e": number(num(point, "e2e_latency_ms", "p90")),
        "requests": " / ".join(integer(num(point, "counts", c) or 0) for c in ("completed", "failed")),
        "acceptance": number(num(point, "speculation", "acceptance_length")),
        "usd": usd(usd_per_million_output(point)),
        "verdict": codes if codes and state == "valid" else f"{state}: {codes}" if codes else state,
        "state": state if state == "invalid" or not codes else "warn",
    }


def _pair(point: Mapping[str, Any], metric: str) -> str:
    p50, p90 = num(point, metric, "p50"), num(point, metric, "p90")
    return MISSING if p50 is None and p90 is None else f"{number(p50)} / {number(p90)}"


def ratio_cell(ratio: Mapping[str, Any] | None) -> str:
    """'+23 % (+15 to +31)'; a sign marks what cannot be told apart."""
    if ratio is None:
        return MISSING
    text = percent_change(ratio["ratio"])
    if ratio["interval"]:
        low, high = (percent_change(ratio["interval"][end]).removesuffix(" %") for end in ("low", "high"))
        text += f" ({low} to {high})"
    return f"{text} {SAME}" if ratio["apart"] is False else text


RATIO_HEADINGS = {
    "system_tps": "Total throughput",
    "tps_per_user": "Speed per user",
    "ttft_paired": "TTFT by prompt",
    "ttft_ms_p50": "TTFT p50",
    "ttft_ms_p90": "TTFT p90",
}

FORMULAS = {
    "Users (concurrency)": "requests in flight at once: each user sends the next request when the last one has ended.",
    "Total throughput (system_tps)": "output tokens of successful requests that arrived in the measured window, "
    "divided by its length.",
    "Speed per user (tps_per_user)": "1000 / TPOT p90 in ms; never total throughput divided by users.",
    "TTFT": "from just before the request's first byte is written until the first non-empty fragment of text, "
    "reasoning or tool call.",
    "TPOT": "(last fragment − first fragment) / output tokens after the first chunk, per request.",
    "E2E latency": "from just before the request's first byte is written until the last fragment.",
    "Percentiles": "exact order statistics (the lower one) over successful, counted requests.",
    "Intervals": "95 %: throughput by resampling blocks of time within the point, p90s by order statistics; "
    "none where there is too little data.",
    "Frontier": "the points no other point of the arm beats in both speed per user and total throughput; "
    "the step line is the highest throughput among points at least that fast.",
    "Ratios": "the other arm divided by the base, with a 95 % interval on the log scale: from three trials on paired "
    "trial by trial, else of both points' intervals. By prompt and by category: the geometric mean over requests with "
    "the same prompt in both arms, by blocks of neighbouring pairs.",
    "Where the curves cross": "the root of log(ratio) on a straight line over log(users); its interval holds what the "
    "noise of each level and the bend between levels may move it by.",
    "At equal speed": "interpolated between neighbouring frontier points, both axes logarithmic; "
    "nothing outside the measured range.",
}
