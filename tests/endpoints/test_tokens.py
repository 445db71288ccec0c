"""Counting by a tokenizer of our own: whole answers, fragments that cut tokens, and files that are none."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoints.dialects import CHAT, ROUTES, RequestShape
from endpoints.fast import FastTransport
from endpoints.http import HttpTransport
from endpoints.simulator.hostile.server import running
from endpoints.tokens import TokenCounter, counter_of
from endpoints.transport import Call, Exchange
from profiles.errors import ProfileError

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token is a word or a mark, whatever the word."""
    built = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[unk]": 0}, unk_token="[unk]"))
    built.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    built.save(str(path))
    return path


@pytest.mark.parametrize(
    ("fragments", "counts"),
    [
        (["one two", " three"], [2, 1]),
        (["o", "ne", " two"], [0, 1, 1]),  # a token belongs to the fragment that completes it
        (["a b c d"], [4]),
        (["one", " ", "two"], [1, 0, 1]),
        (["née ", "naïve"], [1, 1]),
        (["", "x"], [0, 1]),
    ],
)
def test_tokens_of_each_fragment(words: Path, fragments: list[str], counts: list[int]) -> None:
    assert counter_of(str(words)).count(fragments) == counts


@given(st.lists(st.text(max_size=12), min_size=1, max_size=8))
def test_the_fragments_tokens_sum_to_the_answers(fragments: list[str]) -> None:
    built = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[unk]": 0}, unk_token="[unk]"))
    built.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    counts = TokenCounter(built).count(fragments)
    assert len(counts) == len(fragments)
    assert sum(counts) == len(built.encode("".join(fragments)).ids)


@pytest.mark.parametrize("kind", ["missing", "nonsense", "binary", "folder"])
def test_files_that_are_no_tokenizer(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tokenizer.json"
    if kind == "nonsense":
        path.write_text('{"model": 5}')
    elif kind == "binary":
        path.write_bytes(b"\xff\x00\x01")
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(ProfileError, match=r"tokenizer\.json"):
        counter_of(str(path))


def test_without_the_library(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    counter_of.cache_clear()
    with pytest.raises(ProfileError, match=r"endsweep\[tokenizer\]"):
        counter_of(str(words))


@pytest.mark.parametrize("kind", [FastTransport, HttpTransport])
@pytest.mark.parametrize(("case", "stated"), [("usage-absent", False), ("good", True)])
async def test_what_the_server_does_not_tell_is_counted(
    words: Path, kind: type[FastTransport | HttpTransport], case: str, stated: bool
) -> None:
    async with running(case) as server:
        transport = kind(f"{server.url}{ROUTES[CHAT]}", {}, counter=counter_of(str(words)))
        exchange = Exchange(issued_ns=time.monotonic_ns())
        body = RequestShape(CHAT, "m", 8, {}, {}).body([{"role": "user", "content": "hi"}])
        await transport.send(Call(body, 8, 2, 0), exchange)
        await transport.close()
    assert (exchange.output_tokens is not None) == stated
    assert exchange.counted_tokens == sum(exchange.chunk_tokens or [])
    assert exchange.counted_tokens and len(exchange.chunk_tokens or []) == len(exchange.chunk_ns)
    assert exchange.text is None  # counted, not kept
