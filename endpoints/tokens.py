"""Counting tokens ourselves, with a tokenizer that the profile gives: of an answer, and of each of its fragments."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from profiles.errors import ProfileError


class TokenCounter:
    """A tokenizer of Hugging Face's `tokenizers` library, from its `tokenizer.json`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def count(self, fragments: Sequence[str]) -> list[int]:
        """Tokens of each fragment of one answer, tokenised whole: a token belongs to the fragment that completes it.

        No special tokens are added. A fragment may have none, where it is only part of a token.
        """
        ends = list(accumulate(len(text) for text in fragments))
        encoding = self._tokenizer.encode("".join(fragments), add_special_tokens=False)
        counts = [0] * len(fragments)
        for _, end in encoding.offsets:
            counts[bisect_right(ends, max(end - 1, 0))] += 1  # by the token's last character
        return counts


@lru_cache(8)
def counter_of(path: str) -> TokenCounter:
    """The tokenizer in a file. Raises ProfileError where it cannot be read, or the library for it is not there."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        problem = "counting tokens needs the library tokenizers, which is not installed"
        raise ProfileError(path, "tokenizer", problem, "install endsweep[tokenizer], or leave tokenizer out") from None
    if not Path(path).is_file():
        raise ProfileError(path, "tokenizer", "there is no such file", "name a tokenizer.json")
    try:
        return TokenCounter(Tokenizer.from_file(path))
    except Exception as exc:  # the library raises bare Exceptions
        said = " ".join(str(exc).split())[:200]
        raise ProfileError(path, "tokenizer", f"this is no tokenizer ({said})", "name a tokenizer.json") from None
