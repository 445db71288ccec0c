"""The requests of a point as columns: the schema of `requests.parquet`, and the same columns in memory.

Times are ns from the point's origin; absent moments and unknown counts are null in the file and -1 in memory.
Everything that is computed is computed from these columns, so that a stored point gives the same numbers again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from endpoints.outcomes import Outcome
from sweeps.load import Sent

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.object_]

USAGE, CHUNKS, NONE = "usage", "chunks", "none"

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


@dataclass(frozen=True, slots=True)
class Requests:
    """n requests as arrays of shape (n,); their m fragments as flat arrays of shape (m,).

    `chunk_ns[starts[i]:starts[i+1]]` are the arrivals of request i (ns from the origin, stored at 1 µs), and
    `chunk_tokens` the tokens in each (all -1 for a request whose fragments cannot be counted).
    """

    columns: dict[str, Any]
    starts: Ints
    chunk_ns: Ints
    chunk_tokens: Ints

    def __len__(self) -> int:
        return len(self.starts) - 1

    def ints(self, name: str) -> Ints:
        column: Ints = self.columns[name]
        return column

    def texts(self, name: str) -> Texts:
        column: Texts = self.columns[name]
        return column

    @property
    def ok(self) -> Bools:
        return self.columns["outcome"] == Outcome.OK.value  # type: ignore[no-any-return]

    @property
    def counted(self) -> Bools:
        column: Bools = self.columns["counted"]
        return column

    def owner(self) -> Ints:
        """Which request each fragment belongs to, shape (m,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


def table_of(sent: Sequence[Sent], origin_ns: int, worker: int = 0) -> pa.Table:
    """The stored form, a row per request in order of issue. `origin_ns` is subtracted from every stamp."""
    return pa.Table.from_pylist([_row(s, origin_ns, worker) for s in sent], schema=SCHEMA)


def _row(s: Sent, origin: int, worker: int) -> dict[str, Any]:
    e, p = s.exchange, s.planned

    def since(ns: int | None) -> int | None:
        return None if ns is None else ns - origin

    chunks = e.chunk_ns
    base = e.sent_ns if e.sent_ns is not None else e.issued_ns
    output, streamed, source = _tokens(s)
    after: int | None = None
    if streamed is not None and chunks:
        after = max(0, streamed - (e.chunk_tokens[0] if e.chunk_tokens else 1))
    return {
        "index": p.index,
        "prompt_id": p.prompt_id,
        "category": p.category,
        "salt": p.salt,
        "phase": s.phase,
        "counted": s.counted,
        "worker": worker,
        "slot": s.slot,
        "attempts": e.attempts,
        "reused": e.reused,
        "super_pass": p.super_pass,
        "due_ns": since(s.due_ns),
        "issued_ns": since(e.issued_ns),
        "connected_ns": since(e.connected_ns),
        "sent_ns": since(e.sent_ns),
        "headers_ns": since(e.headers_ns),
        "first_token_ns": since(chunks[0]) if chunks and e.streamed else None,
        "first_visible_ns": since(e.first_visible_ns) if e.streamed else None,
        "last_token_ns": since(chunks[-1]) if chunks else None,
        "ended_ns": since(e.ended_ns),
        "retry_lost_ns": e.retry_lost_ns,
        "prompt_bytes": p.call.prompt_bytes,
        "input_tokens": e.input_tokens,
        "output_tokens": output,
        "streamed_tokens": streamed,
        "output_tokens_after_first_chunk": after,
        "cached_tokens": e.cached_tokens,
        "reasoning_tokens": e.reasoning_tokens,
        "requested_tokens": p.call.requested_tokens,
        "token_source": source,
        "chunks": len(chunks),
        "chunk_offsets_us": [(t - base) // 1000 for t in chunks],
        "chunk_tokens": e.chunk_tokens,
        "text_bytes": e.text_bytes,
        "finish_reason": e.finish_reason,
        "outcome": (e.outcome or Outcome.CANCELLED).value,
        "status": e.status,
        "error": e.error,
        "pause_ms": None if e.pause_s is None else int(e.pause_s * 1e3),
        "dropped_events": e.dropped_events,
        "request_id": e.request_id,
        "model": e.model,
        "system_fingerprint": e.system_fingerprint,
        "text_hash": e.text_hash or None,
    }


def _tokens(s: Sent) -> tuple[int | None, int | None, str]:
    """(output tokens, those that were streamed, where the count is from).

    Reasoning that usage counts and no event carried was generated but never streamed, so it is no part of the pace at
    which text arrived. A requested length is never taken for an answer's length.
    """
    e = s.exchange
    if e.output_tokens is not None:
        hidden = e.reasoning_tokens if e.reasoning_tokens and not e.reasoned else 0
        return e.output_tokens, max(0, e.output_tokens - hidden), USAGE
    if e.chunk_ns:
        told = sum(e.chunk_tokens) if e.chunk_tokens else len(e.chunk_ns)
        return told, told, USAGE if e.chunk_tokens else CHUNKS
    return None, None, NONE


def requests_of(table: pa.Table) -> Requests:
    """Columns of numpy arrays from the stored form."""
    columns: dict[str, Any] = {}
    for field in SCHEMA:
        column = table.column(field.name)
        if field.type == _INT:
            columns[field.name] = column.fill_null(-1).to_numpy()
        elif field.type == _FLAG:
            columns[field.name] = column.to_numpy(zero_copy_only=False).astype(bool)
        elif field.type == _TEXT:
            columns[field.name] = column.to_numpy(zero_copy_only=False)
    offsets = table.column("chunk_offsets_us").combine_chunks()
    counts = columns["chunks"]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    base = np.where(columns["sent_ns"] >= 0, columns["sent_ns"], columns["issued_ns"])
    chunk_ns = offsets.flatten().to_numpy(zero_copy_only=False) * 1000 + np.repeat(base, counts)
    tokens = np.full(int(starts[-1]), -1, np.int64)
    told = table.column("chunk_tokens").combine_chunks()
    known = told.is_valid().to_numpy(zero_copy_only=False)
    if known.any():
        tokens[np.repeat(known, counts)] = told.flatten().to_numpy(zero_copy_only=False)
    return Requests(columns, starts, chunk_ns.astype(np.int64), tokens)


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write one Parquet file (zstd)."""
    pq.write_table(table, path, compression="zstd")


def read_parquet(path: Path) -> pa.Table:
    """Read one back. Raises OSError or pyarrow.ArrowInvalid."""
    return pq.read_table(path, schema=SCHEMA)
