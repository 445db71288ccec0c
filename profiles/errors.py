"""The one error this room raises for bad input, and the form in which validators refuse a value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ProfileError(Exception):
    """Bad input, said in one sentence.

    `where` is the file or the command-line option, `key` the dotted path inside it (None when it is about the whole),
    `problem` what was seen and `remedy` what to do. None of them ever holds a secret.
    """

    def __init__(self, where: str, key: str | None, problem: str, remedy: str) -> None:
        super().__init__(where, key, problem, remedy)
        self.where = where
        self.key = key
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        place = self.where if self.key is None else f"{self.where}: {self.key}"
        return printable(f"{place}: {self.problem}; {self.remedy}")


class Refusal(ValueError):
    """A value refused by a validator, which does not know where the value came from; `key` is one inside the value."""

    def __init__(self, problem: str, remedy: str, key: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.key = key


def printable(text: str) -> str:
    """`text` on one line: characters that could steer a terminal are shown as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A remedy for a misspelt word: the nearest known one, or all of them."""
    names = sorted(known)
    folded = {name.lower(): name for name in names}
    near = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    return f'did you mean "{folded[near[0]]}"?' if near else f"use one of: {', '.join(names)}"
