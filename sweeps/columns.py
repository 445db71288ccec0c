"""The requests of a point as columns: the schema of `requests.parquet`, and how a request becomes a row of it.

Times are ns from the point's origin; absent moments and unknown counts are null.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from endpoints.outcomes import Outcome
from sweeps.arrow import Ints, flags, ints, lists, texts
from sweeps.load import Sent

USAGE, TOKENIZER, CHUNKS, NONE = "usage", "tokenizer", "chunks", "none"

_INT, _TEXT, _FLAG = pa.int64(), pa.string(), pa.bool_()
SCHEMA = pa.schema(
    [
        ("index", _INT),
        ("prompt_id", _TEXT),
        ("category", _TEXT),
        ("salt", _TEXT),
        ("phase", _TEXT),
        ("counted", _FLAG),
        ("worker", _INT),
        ("slot", _INT),
        ("attempts", _INT),
        ("reused", _FLAG),
        ("super_pass", _INT),
        ("due_ns", _INT),
        ("issued_ns", _INT),
        ("connected_ns", _INT),
        ("sent_ns", _INT),
        ("headers_ns", _INT),
        ("first_token_ns", _INT),
        ("first_visible_ns", _INT),
        ("last_token_ns", _INT),
        ("ended_ns", _INT),
        ("retry_lost_ns", _INT),
        ("prompt_bytes", _INT),
        ("input_tokens", _INT),
        ("output_tokens", _INT),
        ("streamed_tokens", _INT),
        ("output_tokens_after_first_chunk", _INT),
        ("cached_tokens", _INT),
        ("reasoning_tokens", _INT),
        ("drafts", _INT),
        ("drafted_tokens", _INT),
        ("accepted_tokens", _INT),
        ("requested_tokens", _INT),
        ("token_source", _TEXT),
        ("chunks", _INT),
        ("chunk_offsets_us", pa.list_(_INT)),
        ("chunk_tokens", pa.list_(_INT)),
        ("text_bytes", _INT),
        ("finish_reason", _TEXT),
        ("outcome", _TEXT),
        ("status", _INT),
        ("error", _TEXT),
        ("pause_ms", _INT),
        ("dropped_events", _INT),
        ("request_id", _TEXT),
        ("model", _TEXT),
        ("system_fingerprint", _TEXT),
        ("text_hash", _TEXT),
    ]
)


_STAMPS = (
    "due_ns",
    "issued_ns",
    "connected_ns",
    "sent_ns",
    "headers_ns",
    "first_token_ns",
    "first_visible_ns",
    "last_token_ns",
    "ended_ns",
)
_NUMBERS = (
    *_STAMPS,
    "index",
    "slot",
    "attempts",
    "super_pass",
    "retry_lost_ns",
    "prompt_bytes",
    "input_tokens",
    "output_tokens",
    "streamed_tokens",
    "output_tokens_after_first_chunk",
    "cached_tokens",
    "reasoning_tokens",
    "drafts",
    "drafted_tokens",
    "accepted_tokens",
    "requested_tokens",
    "chunks",
    "text_bytes",
    "status",
    "pause_ms",
    "dropped_events",
    "worker",
)
_MARKS = ("counted", "reused", "told")  # told: the tokens of each fragment are known
_WORDS = (
    "prompt_id",
    "category",
    "salt",
    "phase",
    "token_source",
    "finish_reason",
    "outcome",
    "error",
    "request_id",
    "model",
    "system_fingerprint",
    "text_hash",
)
_WIDTH = len(_NUMBERS) + len(_MARKS)
_NULL = -(2**63)


class RowBuffer:
    """Requests that have ended, packed: 8 bytes a number, so that a million fragments are 8 MB and not 40.

    `add` is all that happens while the load runs; `table` makes columns of what was added, and may run in a thread.
    """

    def __init__(self) -> None:
        self._numbers = array("q")  # row by row, _NUMBERS then _MARKS
        self._words: list[tuple[str | None, ...]] = []
        self._arrivals = array("q")  # of all fragments, one request after another
        self._tokens = array("q")  # of the fragments of the requests that are `told`

    def __len__(self) -> int:
        return len(self._words)

    @property
    def chunks(self) -> int:
        return len(self._arrivals)

    def add(self, sent: Sent) -> None:
        """Take one request; its `Sent` is not looked at again."""
        e, p = sent.exchange, sent.planned
        chunks = e.chunk_ns
        n = len(chunks)
        told = e.chunk_tokens if e.chunk_tokens is not None and len(e.chunk_tokens) == n else None
        output, streamed, source = _tokens(sent)
        after = None if streamed is None or not n else max(0, streamed - (told[0] if told else 1))
        row = (
            sent.due_ns,
            e.issued_ns,
            e.connected_ns,
            e.sent_ns,
            e.headers_ns,
            chunks[0] if n and e.streamed else None,
            e.first_visible_ns if e.streamed else None,
            chunks[-1] if n else None,
            e.ended_ns,
            p.index,
            sent.slot,
            e.attempts,
            p.super_pass,
            e.retry_lost_ns,
            p.call.prompt_bytes,
            e.input_tokens,
            output,
            streamed,
            after,
            e.cached_tokens,
            e.reasoning_tokens,
            e.drafts,
            e.drafted_tokens,
            e.accepted_tokens,
            p.call.requested_tokens,
            n,
            e.text_bytes,
            e.status,
            None if e.pause_s is None else int(e.pause_s * 1e3),
            e.dropped_events,
            e.worker,
            sent.counted,
            e.reused,
            told is not None,
        )
        self._numbers.extend([_NULL if value is None else value for value in row])
        self._words.append(
            (
                p.prompt_id,
                p.category,
                p.salt,
                sent.phase,
                source,
                e.finish_reason,
                e.outcome or Outcome.CANCELLED,
                e.error,
                e.request_id,
                e.model,
                e.system_fingerprint,
                e.text_hash or None,
            )
        )
        self._arrivals.extend(chunks)
        if told is not None:
            self._tokens.extend(told)

    def table(self, origin_ns: int) -> pa.Table:
        """The stored form, a row per request by index. `origin_ns` is subtracted from every stamp."""
        n = len(self)
        rows = np.frombuffer(self._numbers, np.int64).reshape(n, _WIDTH)
        columns: dict[str, pa.Array] = {}
        for i, name in enumerate(_NUMBERS):
            values = rows[:, i]
            valid = values != _NULL
            columns[name] = ints(values - origin_ns * (name in _STAMPS), None if valid.all() else valid)
        counted, reused, told = (rows[:, len(_NUMBERS) + i] != 0 for i in range(len(_MARKS)))
        columns |= {"counted": flags(counted), "reused": flags(reused)}
        for name, words in zip(_WORDS, zip(*self._words, strict=True) if n else [()] * len(_WORDS), strict=True):
            columns[name] = texts(words)
            time.sleep(0)  # let the event loop have the interpreter: it should not wait for all columns
        sizes, sent, issued = (rows[:, _NUMBERS.index(name)] for name in ("chunks", "sent_ns", "issued_ns"))
        base = np.where(sent != _NULL, sent, issued)
        offsets = (np.frombuffer(self._arrivals, np.int64) - np.repeat(base, sizes)) // 1000
        columns["chunk_offsets_us"] = lists(sizes, offsets)
        columns["chunk_tokens"] = lists(np.where(told, sizes, 0), np.frombuffer(self._tokens, np.int64), told)
        table = pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)
        return by_index(table, rows[:, _NUMBERS.index("index")])


def by_index(table: pa.Table, index: Ints) -> pa.Table:
    """The rows in order of issue; they come in the order in which requests end."""
    if (index[1:] > index[:-1]).all():
        return table
    return table.take(ints(np.argsort(index, kind="stable")))


def table_of(sent: Iterable[Sent], origin_ns: int) -> pa.Table:
    """The stored form of some requests, a row each by index. `origin_ns` is subtracted from every stamp."""
    rows = RowBuffer()
    for one in sent:
        rows.add(one)
    return rows.table(origin_ns)


def _tokens(s: Sent) -> tuple[int | None, int | None, str]:
    """(output tokens, those that were streamed, where the count is from).

    Reasoning that usage counts and no event carried was generated but never streamed, so it is no part of the pace at
    which text arrived. A requested length is never taken for an answer's length.
    """
    e = s.exchange
    if e.output_tokens is not None:
        hidden = e.reasoning_tokens if e.reasoning_tokens and not e.reasoned else 0
        return e.output_tokens, max(0, e.output_tokens - hidden), USAGE
    if e.counted_tokens is not None:
        return e.counted_tokens, e.counted_tokens, TOKENIZER
    if e.chunk_ns:
        told = sum(e.chunk_tokens) if e.chunk_tokens else len(e.chunk_ns)
        return told, told, USAGE if e.chunk_tokens else CHUNKS
    return None, None, NONE


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write one Parquet file (zstd)."""
    pq.write_table(table, path, compression="zstd")
