"""How long a server asks its clients to wait: `Retry-After`, and the usual rate-limit headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST_S = 86_400.0  # beyond a day it is no pause but an end

_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|s|m|h|d)")
_UNIT_S = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_EPOCH_S = 1e9  # a reset later than this is a time, not a span
# (remaining, reset): OpenAI and its likes, Anthropic, the IETF draft (draft-ietf-httpapi-ratelimit-headers), GitHub.
_PAIRS = (
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ("ratelimit-remaining", "ratelimit-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
)


def pause_of(headers: Mapping[str, str], status: int, now_unix: float) -> float | None:
    """Seconds until the server wants the next request, or None when it does not say.

    A refusal (429, 503) says so by `retry-after-ms` or `Retry-After` (seconds or an HTTP date; RFC 9110, 10.2.3), else
    by the resets of whatever it names as used up. A success may say it too: nothing remaining, and a reset. Of several
    the longest holds. Nonsense (negative, not a number, an unknown unit) says nothing.
    """
    if status in (429, 503):
        asked = _milliseconds(headers.get("retry-after-ms")) or _retry_after(headers.get("retry-after"), now_unix)
        if asked is not None:
            return asked
    waits = [_span(headers.get(reset), now_unix) for left, reset in _PAIRS if headers.get(left, "").strip() == "0"]
    known = [wait for wait in waits if wait is not None]
    return max(known) if known else None


def _retry_after(value: str | None, now_unix: float) -> float | None:
    if value is None:
        return None
    return _span(value, now_unix) if value.strip()[:1].isdigit() else _date(value, now_unix)


def _milliseconds(value: str | None) -> float | None:
    try:
        return _bounded(float(value) / 1e3) if value is not None else None
    except ValueError:
        return None


def _span(value: str | None, now_unix: float) -> float | None:
    """`12`, `1.5s`, `6m0s`, `20ms`, seconds since 1970, or a date."""
    text = (value or "").strip()
    try:
        number = float(text)
        return _bounded(number - now_unix if number > _EPOCH_S else number)
    except ValueError:
        pass
    parts = _PARTS.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return _bounded(sum(float(number) * _UNIT_S[unit] for number, unit in parts))
    return _date(text, now_unix)


def _date(text: str, now_unix: float) -> float | None:
    """An HTTP date or an ISO one; a date that has passed means now."""
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0.0, min(LONGEST_S, at.timestamp() - now_unix))


def _bounded(seconds: float) -> float | None:
    return min(seconds, LONGEST_S) if 0 <= seconds < float("inf") else None
