"""Concurrency levels: the spellings a sweep file and the command line allow, as sorted whole numbers."""

from __future__ import annotations

import re

from profiles.errors import Refusal

HIGHEST = 65_536
AUTO = "1..64"
FORMS = "write a list such as 1,2,4, a range such as 1..64, {from: 1, to: 64, points: 7} or auto"

_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")
_LEVEL = re.compile(r"[0-9]{1,9}")


def parse_levels(value: object) -> tuple[int, ...]:
    """Distinct levels, ascending, from a number, a list, `1,2,4`, `a..b`, {from, to, points} or `auto`.

    `auto` is the same as 1..64. Raises Refusal on anything else, and on levels outside 1..65536.
    """
    if isinstance(value, dict):
        levels = _geometric(value)
    elif isinstance(value, str):
        levels = [level for item in (AUTO if value == "auto" else value).split(",") for level in _item(item.strip())]
    else:
        levels = [_level(item) for item in (value if isinstance(value, list | tuple) else [value])]
    if not levels:
        raise Refusal("there is no level", FORMS)
    return tuple(sorted(set(levels)))


def doubling(low: int, high: int) -> list[int]:
    """Both ends and the powers of two between them."""
    powers = (2**power for power in range(high.bit_length()))
    return sorted({low, high, *(level for level in powers if low < level < high)})


def _item(text: str) -> list[int]:
    if _LEVEL.fullmatch(text):
        return [_level(int(text))]
    ends = _RANGE.fullmatch(text.replace(" ", ""))
    if ends is None:
        raise Refusal("this is not a list of levels", FORMS)
    low, high = _ends(int(ends[1]), int(ends[2]))
    return doubling(low, high)


def _geometric(value: dict[object, object]) -> list[int]:
    points = value.get("points")
    if set(value) != {"from", "to", "points"}:
        raise Refusal("a spread of levels needs exactly the keys from, to and points", FORMS)
    low, high = _ends(value["from"], value["to"])
    if type(points) is not int or not (2 if low < high else 1) <= points <= HIGHEST:
        raise Refusal("points should be a whole number of 2 or more", FORMS)
    if low == high:
        return [low]
    return [round(low * (high / low) ** (step / (points - 1))) for step in range(points)]


def _ends(low: object, high: object) -> tuple[int, int]:
    first, last = _level(low), _level(high)
    if first > last:
        raise Refusal(f"the range begins at {first}, above its end {last}", "put the lower level first")
    return first, last


def _level(value: object) -> int:
    if type(value) is not int:
        raise Refusal("a level should be a whole number", FORMS)
    if not 1 <= value <= HIGHEST:
        raise Refusal(f"a level should be from 1 to {HIGHEST}, one is not", FORMS)
    return value
