"""How numbers and foreign strings are written, the same in the page, the terminal and the tables."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

MISSING = "–"


def number(value: float | None) -> str:
    """Three to four significant digits, thousands with commas; a dash when there is no number."""
    if value is None or not math.isfinite(value):
        return MISSING
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 100:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(size)))
    return f"{value:.{min(digits, 6)}f}"


def integer(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"


def users(value: float) -> str:
    """An interpolated number of users: whole from ten on, for more digits would promise what interpolation cannot
    keep."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"


def percent_change(ratio: float | None) -> str:
    """A ratio as a change: 1.23 -> '+23 %'. One digit after the point below 10 %; a factor from 10 on."""
    if ratio is None or not math.isfinite(ratio):
        return MISSING
    if ratio >= 10:
        return f"× {number(ratio)}"
    change = (ratio - 1) * 100
    text = f"{change:+.0f}" if abs(change) >= 9.95 else f"{change:+.1f}"
    return "±0 %" if text in ("+0.0", "-0.0") else f"{text.replace('-', '−')} %"


def percent(share: float) -> str:
    """A share as whole percents."""
    return f"{share * 100:.0f} %"


def span(low: float | None, high: float | None) -> str:
    return MISSING if low is None or high is None else f"{number(low)}–{number(high)}"


def usd(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"${value:,.2f}" if value >= 0.1 or value == 0 else f"${value:.2g}"


def seconds(value: float | None) -> str:
    """A duration a person reads at a glance: '48 s', '3 min 20 s', '1 h 05 min'."""
    if value is None or not math.isfinite(value):
        return MISSING
    whole = round(value)
    if value < 10:
        return f"{value:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listing(words: list[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def clean(text: Any, limit: int = 500) -> str:
    """A foreign string on one line, without control, format or surrogate characters, cut at `limit` characters.

    Tabs and line ends become spaces. What is removed are the Unicode classes Cc, Cf, Cs and the line separators:
    terminal escapes, bidirectional overrides and lone surrogates, none of which can be shown safely or stored as
    UTF-8.
    """
    spaced = "".join(" " if c in "\t\r\n\u2028\u2029" else c for c in str(text)[: 4 * limit])
    kept = "".join(c for c in spaced if unicodedata.category(c) not in ("Cc", "Cf", "Cs"))
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"
