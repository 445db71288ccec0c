"""What stands beside a comparison of two arms, so that it is not misread: lengths that differ, prompts a second, and
how often drafts were accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from reports.formats import clean, listing, number, percent
from reports.points import Point, get, is_measured, num
from sweeps.frontier import is_valid

LENGTH_BIAS = "length_bias"
_MOST = 0.05  # by how much mean output lengths, and shares of a finish reason, may differ


def shared_trials(points: Iterable[Point], base: str, arm: str) -> dict[int, list[tuple[Point, Point]]]:
    """(base's point, arm's point) by concurrency, trial with trial; where they share no trial, the first of each."""
    found: dict[str, dict[int, dict[int, Point]]] = {base: {}, arm: {}}
    for p in points:
        if p["arm"] in found and is_measured(p) and is_valid(p):
            found[p["arm"]].setdefault(p["concurrency"], {})[p.get("trial") or 1] = p
    pairs = {}
    for c in found[base].keys() & found[arm].keys():
        ours, theirs = found[base][c], found[arm][c]
        both = sorted(ours.keys() & theirs.keys())
        pairs[c] = [(ours[t], theirs[t]) for t in both] or [(ours[min(ours)], theirs[min(theirs)])]
    return pairs


def numbers(points: Iterable[Point], *path: str) -> list[float]:
    """The known numbers at a path of keys."""
    return [v for p in points if (v := num(p, *path)) is not None]


def length_bias(trials: Sequence[tuple[Point, Point]]) -> dict[str, Any] | None:
    """Where the arms' answers differ so much that speeds may: mean output tokens by more than 5 %, or the share of a
    finish reason by more than 5 points. As {code, output_tokens, finish_reasons, text}; None where they do not."""
    base, arm = zip(*trials, strict=True)
    lengths = [mean(v) if (v := numbers(side, "output_tokens", "mean")) else None for side in (base, arm)]
    reasons = [_shares(side) for side in (base, arm)]
    said = []
    if lengths[0] and lengths[1] and abs(lengths[1] / lengths[0] - 1) > _MOST:
        said.append(f"{number(lengths[1])} output tokens a request against {number(lengths[0])}")
    if all(reasons):
        for reason in sorted(reasons[0].keys() | reasons[1].keys()):
            b, a = (side.get(reason, 0.0) for side in reasons)
            if abs(a - b) > _MOST:
                said.append(f"{percent(a)} of the requests ended by {clean(reason, 40)!r} against {percent(b)}")
    if not said:
        return None
    return {
        "code": LENGTH_BIAS,
        "output_tokens": dict(zip(("base", "arm"), lengths, strict=True)),
        "finish_reasons": dict(zip(("base", "arm"), reasons, strict=True)),
        "text": ", ".join(said),
    }


def notes(base: str, arm: str, levels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What must be said beside a pair's ratios, as {code, levels, text}."""
    b, a = clean(base, 60), clean(arm, 60)
    found = []
    biased = [level for level in levels if level["bias"]]
    if biased:
        at = [str(level["concurrency"]) for level in biased]
        text = (
            f"The arms' answers differ at {listing(at)} users (at {at[0]}: {a} {biased[0]['bias']['text']}), which by "
            "itself changes throughput and latency: part of what is seen may be a difference of length, not of speed."
        )
        found.append({"code": LENGTH_BIAS, "levels": [level["concurrency"] for level in biased], "text": text})
    rates = [(level, r["base"], r["arm"]) for level in levels if (r := level["request_rate"])["base"] and r["arm"]]
    if rates:
        level, theirs, ours = max(rates, key=lambda r: max(r[1] / r[2], r[2] / r[1]))
        fast, slow = (a, b) if ours > theirs else (b, a)
        text = (
            "A faster arm also takes more prompts a second at the same number of users "
            f"(at {level['concurrency']}: {fast} {number(max(ours, theirs))}, {slow} {number(min(ours, theirs))}), "
            "and the work on more prompts delays first tokens: TTFT is not compared at an equal load of prompts."
        )
        found.append({"code": "prompt_rate", "levels": [level["concurrency"] for level, *_ in rates], "text": text})
    once = [level["concurrency"] for level in levels if min(level["trials"].values()) == 1]
    if once:
        text = (
            "Points were measured once, so the intervals hold for these runs: what differs from one start of a server "
            "to the next, or with the hour, is not in them (--trials 3 puts it there)."
        )
        found.append({"code": "one_trial", "levels": once, "text": text})
    return found


def acceptance(points: Iterable[Point], arms: Sequence[str]) -> dict[str, Any]:
    """What the points say of accepted drafts, by arm that says something: {acceptance_length {mean, low, high},
    acceptance_rate {…}, source, by_category {category: {drafted, accepted, n, acceptance_rate, tokens_per_step}}}; low
    and high are the least and the most over its points."""
    points = [p for p in points if is_measured(p) and is_valid(p)]
    found: dict[str, Any] = {}
    for name in arms:
        mine = [p for p in points if p["arm"] == name]
        spans = {}
        for key in ("acceptance_length", "acceptance_rate"):
            values = numbers(mine, "speculation", key)
            spans[key] = {"mean": mean(values), "low": min(values), "high": max(values)} if values else None
        categories = _by_category(mine)
        stated = any(c["acceptance_rate"] or (c["tokens_per_step"] or 1.0) > 1.0 for c in categories.values())
        if any(spans.values()) or stated:
            sources = sorted({str(s) for p in mine if (s := get(p, "speculation", "source")) and s != "none"})
            found[name] = spans | {"source": listing(sources) or None, "by_category": categories}
    return found


def _by_category(points: Sequence[Point]) -> dict[str, Any]:
    sums: dict[str, dict[str, float]] = {}
    steps: dict[str, list[tuple[float, float]]] = {}  # (requests, tokens a step)
    for p in points:
        stated = get(p, "speculation", "by_category")
        for category in stated if isinstance(stated, Mapping) else ():
            counts = sums.setdefault(str(category), {"drafted": 0, "accepted": 0, "n": 0})
            for key in counts:
                counts[key] += num(stated, category, key) or 0
            if (pace := num(stated, category, "tokens_per_step")) is not None:
                steps.setdefault(str(category), []).append((num(stated, category, "n") or 0, pace))
    found: dict[str, Any] = {}
    for c, s in sorted(sums.items()):
        weighed = [(n, pace) for n, pace in steps.get(c, []) if n]
        found[c] = s | {
            "acceptance_rate": s["accepted"] / s["drafted"] if s["drafted"] else None,
            "tokens_per_step": sum(n * p for n, p in weighed) / sum(n for n, _ in weighed) if weighed else None,
        }
    return found


def _shares(points: Iterable[Point]) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for p in points:
        stated = get(p, "finish_reasons")
        for reason in stated if isinstance(stated, Mapping) else ():
            counts[str(reason)] += int(num(stated, reason) or 0)
    total = sum(counts.values())
    return {reason: n / total for reason, n in counts.items()} if total else {}
