"""Same answers? What the check found, in the words and rows of the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.formats import MISSING, clean
from reports.points import get
from sweeps.equality import DIFFERENT, EMPTY, MEANINGLESS, SAME, because_synthetic

HEADINGS = {
    "arm": "Arm",
    "compared": "Compared",
    "equal": "Same",
    "cut": "Cut elsewhere",
    "other_end": "Other finish reason",
    "diverged": "Different",
    "share": "Share the same",
    "p": "p",
    "first": "First differs at",
}


def synthetic(arms: Mapping[str, Mapping[str, Any]], points: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Arms that accept drafts without asking the model, with the reason: as declared, as found, or as a point says."""
    sources = [(name, get(arm, "speculation", "synthetic")) for name, arm in arms.items()]
    sources += [(name, get(arm, "server", "synthetic")) for name, arm in arms.items()]
    sources += [(point["arm"], get(point, "speculation", "synthetic")) for point in points]
    return {name: because_synthetic(how) for name, how in sources if how}


def alarm(summary: Mapping[str, Any]) -> str | None:
    """What has to stand above everything else: an arm that says something else."""
    found = summary.get("equality")
    if not found or found["status"] != DIFFERENT:
        return None
    return " ".join(clean(row["text"]) for row in found["arms"].values() if row["status"] == DIFFERENT)


def fails(summary: Mapping[str, Any]) -> bool:
    """Whether the answer of a strict run is "no": answers differ, or too many are missing to say that they do not."""
    found = summary.get("equality")
    rows = found["arms"].values() if found else ()
    return any(row["status"] == DIFFERENT or row.get("incomplete") for row in rows)


def remarks(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(ok | warn, sentence): what else there is to say: other arms, the base's noise, what failed."""
    found = summary.get("equality")
    if not found:
        return []
    lines = [
        ("ok" if row["status"] in (SAME, MEANINGLESS) else "warn", clean(row["text"]))
        for row in found["arms"].values()
        if row["status"] != DIFFERENT
    ]
    lines += [] if found["floor"]["share_equal"] == 1.0 and found["arms"] else [("ok", clean(found["floor"]["text"]))]
    return lines + [("warn", _failed(row)) for row in found["failures"]]


def _failed(row: Mapping[str, Any]) -> str:
    example = f": {clean(row['example'], 200)}" if row["example"] else ""
    missing = "empty" if row["outcome"] == EMPTY else "missing"
    return (
        f"{clean(row['arm'], 60)}: {row['count']} of the answers to compare are {missing} ({row['outcome']}{example})."
    )


def rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row an arm, the base (against itself) first, as text; none where nothing was compared."""
    found = summary.get("equality")
    if not found:
        return []
    base = clean(found["base"], 60)
    named = [(f"{base}, again", found["floor"])]
    named += [(clean(arm, 60), row) for arm, row in found["arms"].items()]
    return [_row(name, row) for name, row in named]


def _row(name: str, row: Mapping[str, Any]) -> dict[str, str]:
    place = row["first_at_character"]
    token = f", token {row['first_at_token']}" if row["first_at_token"] is not None else ""
    share, p = row["share_equal"], row.get("p_value")
    low_high = f"{share:.0%} ({row['share_low']:.0%} to {row['share_high']:.0%})" if share is not None else MISSING
    return {
        "arm": name,
        **{key: str(row[key]) for key in ("compared", "equal", "cut", "other_end", "diverged")},
        "share": low_high,
        "p": f"{p:.2g}" if p is not None else MISSING,
        "first": (f"character {place}{token}" if place is not None else token.removeprefix(", ")) or MISSING,
    }


def examples(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """The first few differences: arm, prompt, place, and both texts around it."""
    found = summary.get("equality")
    if not found:
        return []
    named = [(f"{clean(found['base'], 60)}, again", found["floor"])]
    named += [(clean(arm, 60), row) for arm, row in found["arms"].items()]
    return [
        {
            "arm": name,
            "prompt": clean(e["prompt_id"], 80),
            "place": MISSING if e["at_character"] is None else str(e["at_character"]),
            "base": clean(e["base"], 160),
            "other": clean(e["arm"], 160),
        }
        for name, row in named
        for e in row["examples"][:3]
    ]
