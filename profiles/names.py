"""Names of sweeps and arms, and the folder names made of them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from profiles.errors import Refusal

LONGEST = 100  # characters; file systems stop at 255 bytes, and a time is added to a sweep's folder


def slug(name: str) -> str:
    """`name` as a folder name: lowercase, only [a-z0-9._-], never starting with a dot or a dash; may be empty."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode("ascii").lower()
    return re.sub(r"[^a-z0-9._-]+", "-", plain).lstrip(".-").rstrip("-")


def check_name(name: str) -> str:
    """`name` when it can serve as a name. Raises Refusal."""
    if len(name) > LONGEST:
        raise Refusal(f"the name has more than {LONGEST} characters", "shorten it")
    if not name.isprintable() or name != name.strip():
        raise Refusal("the name has control characters or blanks at an end", "use letters, digits, dots and dashes")
    if not slug(name):
        raise Refusal("the name has no letter a-z or digit to make a folder name of", "add one")
    return name


def clash(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two distinct names that would share a folder, if any do."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(slug(name), name)
        if other != name:
            return other, name
    return None
