"""A comparison as rows of text and as sentences, for the page, the markdown and the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.beside import LENGTH_BIAS
from reports.formats import MISSING, clean, listing, number, percent, plural
from reports.rows import RATIO_HEADINGS, ratio_cell

Pair = Mapping[str, Any]
_MOST_LEVELS = 4  # that the table of categories shows; summary.json has them all


def level_table(pair: Pair) -> tuple[list[str], list[list[str]]]:
    """(headings, rows): each level's ratios. TTFT is paired by prompt where the requests are there, else its p50."""
    by_prompt = any(_shown(level, "ttft_paired") for level in pair["levels"])
    metrics = [m for m in RATIO_HEADINGS if m != ("ttft_ms_p50" if by_prompt else "ttft_paired")]
    rows = [[str(level["concurrency"]), *(ratio_cell(_shown(level, m)) for m in metrics)] for level in pair["levels"]]
    return ["Users", *(RATIO_HEADINGS[m] for m in metrics)], rows


def category_table(pair: Pair, stated: Mapping[str, Any]) -> tuple[list[str], list[list[str]]] | None:
    """(headings, rows): the change in speed (1 / TPOT, paired by prompt) of each category of prompt at up to four
    levels, and how many of its drafts were accepted, or tokens a step, where replies say so. None with fewer than two
    categories."""
    levels = [level for level in pair["levels"] if level.get("paired")]
    names = list(dict.fromkeys(c for level in levels for c in level["paired"]["by_category"]))
    if len(levels) > _MOST_LEVELS:
        levels = [levels[round(i * (len(levels) - 1) / (_MOST_LEVELS - 1))] for i in range(_MOST_LEVELS)]
    accepted = (stated.get(pair["arm"]) or {}).get("by_category") or {}
    if len(names) < 2 and not accepted:
        return None
    told = {
        "Drafts accepted": {c: percent(a["acceptance_rate"]) for c, a in accepted.items() if a["acceptance_rate"]},
        "Tokens a step": {c: number(a["tokens_per_step"]) for c, a in accepted.items() if a["tokens_per_step"]},
    }
    heading, cells = next(((h, c) for h, c in told.items() if c), ("", {}))
    rows = []
    for name in names or list(cells):
        changes = [ratio_cell(_speed(level["paired"]["by_category"].get(name))) for level in levels]
        rows.append([clean(name, 40), *([cells.get(name, MISSING)] if cells else []), *changes])
    users = [plural(level["concurrency"], "user") for level in levels]
    return ["Category", *([heading] if cells else []), *users], rows


def speed_table(comparison: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """(headings, rows): the best arm for each band of demanded speed per user."""
    rows = []
    for band in comparison["best"]["by_speed"]:
        top = number(band["to"])
        if band["from"] is not None and number(band["from"]) == top:
            continue  # narrower than is shown
        demand = f"up to {top}" if band["from"] is None else f"{number(band['from'])} to {top}"
        rows.append([demand, _owner(band), ", ".join(str(c) for c in band["concurrency"])])
    return ["Demanded tokens/s/user", "Best arm", "At users"], rows


def note_lines(pair: Pair) -> list[str]:
    """What must be said beside a pair's ratios; a caveat begins with its code."""
    return [f"{n['code']}: {n['text']}" if n["code"] == LENGTH_BIAS else n["text"] for n in pair["notes"]]


def sentences(comparison: Mapping[str, Any]) -> list[str]:
    """What the terminal says below the headline: one comparison at equal speed, categories, acceptance, and the best
    arm by speed."""
    said = []
    for pair in comparison["pairs"]:
        if rows := pair["equal_speed"]:
            said.append(f"Interpolated: {rows[len(rows) // 2]['text']}.")
        if line := _categories(pair):
            said.append(line)
    said += acceptance_lines(comparison)
    _, bands = speed_table(comparison)
    if len(bands) > 1:
        owned = ", ".join(f"{owner} at {demand}" for demand, owner, _ in bands)
        said.append(f"Most throughput by demanded tokens/s/user: {owned}.")
    return said


def acceptance_lines(comparison: Mapping[str, Any]) -> list[str]:
    """'on: acceptance length 2.41 (2.38 to 2.44 over its points), …', a sentence an arm that states it."""
    return [f"{clean(arm, 60)}: {line}." for arm, a in comparison["acceptance"].items() if (line := _acceptance(a))]


def _acceptance(found: Mapping[str, Any]) -> str:
    parts = []
    if span := found["acceptance_length"]:
        low, high = number(span["low"]), number(span["high"])
        over = f" ({low} to {high} over its points)" if low != high else ""
        parts.append(f"acceptance length {number(span['mean'])}{over}")
    if span := found["acceptance_rate"]:
        parts.append(f"{percent(span['mean'])} of the drafted tokens accepted")
    source = f", by {clean(found['source'], 60)}" if found["source"] and parts else ""
    return ", ".join(parts) + source


def _categories(pair: Pair) -> str | None:
    """Of the level at which most categories have an interval, the lowest such."""
    best: tuple[int, Mapping[str, Any]] | None = None
    for level in pair["levels"]:
        found = (level.get("paired") or {}).get("by_category") or {}
        known = sum(c["tpot_ms"]["interval"] is not None for c in found.values())
        if len(found) > 1 and (best is None or known > best[0]):
            best = (known, level)
    if best is None:
        return None
    level = best[1]
    cells = [f"{clean(name, 40)} {ratio_cell(_speed(found))}" for name, found in level["paired"]["by_category"].items()]
    return (
        f"Speed by category of prompt at {plural(level['concurrency'], 'user')}, {clean(pair['arm'], 60)} against "
        + (f"{clean(pair['base'], 60)}: {', '.join(cells)}.")
    )


def _shown(level: Mapping[str, Any], metric: str) -> Mapping[str, Any] | None:
    if metric != "ttft_paired":
        return level["ratios"].get(metric)  # type: ignore[no-any-return]
    by_prompt = (level.get("paired") or {}).get("ttft_ms") or {}
    return by_prompt if by_prompt.get("ratio") else None


def _speed(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The ratio of speeds, of that of the times a token."""
    if found is None or found["tpot_ms"]["ratio"] is None:
        return None
    pace = found["tpot_ms"]
    span = pace["interval"]
    turned = {"low": 1 / span["high"], "high": 1 / span["low"]} if span else None
    return {"ratio": 1 / pace["ratio"], "interval": turned, "apart": pace["apart"]}


def _owner(band: Mapping[str, Any]) -> str:
    among: Sequence[str] = [clean(arm, 60) for arm in band["among"]]
    return among[0] if band["best"] else f"{listing(list(among))} (cannot be told apart)"
