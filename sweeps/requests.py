"""The requests of a point in memory: a column each, and their fragments block by block, never all at once.

Everything that is computed is computed from these, so that a stored point gives the same numbers again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from endpoints.outcomes import Outcome
from sweeps.arrow import Bools, Ints, to_codes, to_flags, to_ints, to_valid
from sweeps.columns import SCHEMA

Floats = npt.NDArray[np.float64]
Texts = npt.NDArray[np.object_]
Codes = npt.NDArray[np.int32]

_LISTS = ("chunk_offsets_us", "chunk_tokens")
_AT_ONCE = 2**16  # fragments; so few that what is computed of them stays in the processor's cache
_UNUSED = ("worker", "request_id", "text_hash")  # stored for others
_READ = tuple(field.name for field in SCHEMA if field.name not in (*_LISTS, *_UNUSED))


@dataclass(frozen=True, slots=True)
class Fragments:
    """The m fragments of k requests, one request after another.

    `rows` (k,): which requests, as positions in the columns; `sizes` (k,): fragments of each; `owner` (m,): which of
    the k each is of; `at_ns` (m,): arrivals from the origin, stored at 1 µs; `tokens` (m,): output tokens each stands
    for; `told` (m,): as the server told them, -1 for a request whose fragments cannot be counted.
    """

    rows: Ints
    sizes: Ints
    owner: Ints
    at_ns: Ints
    tokens: Floats
    told: Ints

    def gaps(self) -> tuple[Ints, Ints]:
        """(µs between consecutive fragments of one request, which of the k requests)."""
        within = self.owner[1:] == self.owner[:-1]
        return (np.diff(self.at_ns) // 1000)[within], self.owner[1:][within]


class Tally(Protocol):
    """Something that is counted over all fragments."""

    def add(self, fragments: Fragments) -> None: ...


class Source(Protocol):
    """Where the rows are: tables in memory, or the row groups of a file."""

    def columns(self, names: Sequence[str]) -> Iterator[tuple[str, pa.ChunkedArray]]: ...

    def blocks(self) -> Iterator[pa.Table]: ...


class Requests:
    """n requests by index. `ints` and `texts` give arrays of shape (n,); -1 and None stand for what is not known."""

    def __init__(self, source: Source, columns: Sequence[str] = _READ) -> None:
        self._source = source
        index = to_ints(next(source.columns(["index"]))[1])
        order = None if (index[1:] > index[:-1]).all() else np.argsort(index, kind="stable")
        self._row = np.arange(len(index)) if order is None else np.argsort(order)  # of each stored row

        def sorted_by_index(values: Any) -> Any:
            return values if order is None else values[order]

        self._ints: dict[str, Ints] = {}
        self._flags: dict[str, Bools] = {}
        self._codes: dict[str, tuple[Codes, pa.Array]] = {}
        for name, column in source.columns(columns):
            kind = SCHEMA.field(name).type
            if kind == pa.int64():
                self._ints[name] = sorted_by_index(to_ints(column))
            elif kind == pa.bool_():
                self._flags[name] = sorted_by_index(to_flags(column))
            else:
                codes, words = to_codes(column)
                self._codes[name] = sorted_by_index(codes), words
        self.ok: Bools = self.texts("outcome") == Outcome.OK.value

    def __len__(self) -> int:
        return len(self._row)

    def ints(self, name: str) -> Ints:
        return self._ints[name]

    def flags(self, name: str) -> Bools:
        return self._flags[name]

    def texts(self, name: str) -> Texts:
        codes, words = self._codes[name]
        return np.array([*words.to_pylist(), None], object)[codes]

    def codes(self, name: str) -> tuple[Codes, pa.Array]:
        """A text column as (codes, the distinct texts they stand for); -1 where there is none."""
        return self._codes[name]

    @property
    def counted(self) -> Bools:
        return self._flags["counted"]

    def tally(self, *tallies: Tally) -> None:
        """One pass over all fragments. Raises ValueError where they were not all kept."""
        at = 0
        for table in self._source.blocks():
            rows = self._row[at : at + table.num_rows]
            at += table.num_rows
            for begin, end in _pieces(self.ints("chunks")[rows]):
                fragments = self._fragments(rows[begin:end], table.slice(begin, end - begin))
                for one in tallies:
                    one.add(fragments)

    def _fragments(self, rows: Ints, table: pa.Table) -> Fragments:
        sizes = self.ints("chunks")[rows]
        offsets, told_lists = (table.column(name).combine_chunks() for name in _LISTS)
        if offsets.null_count:
            raise ValueError("the fragments of this point were not all kept (load.chunks)")
        owner = np.repeat(np.arange(len(rows)), sizes)
        sent = self.ints("sent_ns")[rows]
        base = np.where(sent >= 0, sent, self.ints("issued_ns")[rows])
        at_ns = to_ints(offsets.flatten()) * 1000 + base[owner]
        told = np.full(len(owner), -1, np.int64)
        known = to_valid(told_lists)
        if known.any():
            told[known[owner]] = to_ints(told_lists.flatten())
        output = np.maximum(self.ints("output_tokens")[rows], 0)
        return Fragments(rows, sizes, owner, at_ns, _tokens(sizes, owner, told, output), told)


def _pieces(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Where to cut rows of so many fragments each into pieces of not many more than `_AT_ONCE`, never empty ones."""
    ends, begin = np.cumsum(sizes), 0
    while begin < len(sizes):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + _AT_ONCE, side="right")))
        yield begin, end
        begin = end


def _tokens(sizes: Ints, owner: Ints, told: Ints, output: Ints) -> Floats:
    """Output tokens each fragment stands for: as told, else a request's tokens spread evenly.

    All output tokens are spread, also those that were not streamed, so that a request's fragments sum to its tokens.
    """
    known = np.bincount(owner, np.maximum(told, 0), minlength=len(sizes))
    # Tokens beyond those told (an end-of-text token, say) ride on all fragments in proportion.
    scale, share = output / np.maximum(known, 1), output / np.maximum(sizes, 1)
    spread: Floats = np.where(known[owner] > 0, told * scale[owner], share[owner])
    return spread


@dataclass(frozen=True, slots=True)
class Tables:
    """Rows in memory."""

    tables: Sequence[pa.Table]

    def columns(self, names: Sequence[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
        whole = pa.concat_tables([SCHEMA.empty_table(), *self.tables])
        return ((name, whole.column(name)) for name in names)

    def blocks(self) -> Iterator[pa.Table]:
        yield from self.tables


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows in a Parquet file, whose fragments are read a row group at a time."""

    path: Path

    def columns(self, names: Sequence[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """One at a time, so that no two are in memory in the file's form."""
        with pq.ParquetFile(self.path) as file:
            for name in names:
                if name not in file.schema_arrow.names:
                    raise KeyError(name)
                yield name, file.read(columns=[name], use_threads=False).column(0)
        pa.default_memory_pool().release_unused()  # pieces of columns that were put together

    def blocks(self) -> Iterator[pa.Table]:
        with pq.ParquetFile(self.path) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns=list(_LISTS), use_threads=False)


def requests_of(table: pa.Table) -> Requests:
    """From the stored form."""
    return Requests(Tables([table]))


def read_requests(path: Path, columns: Sequence[str] = _READ) -> Requests:
    """From a stored point's `requests.parquet`, or a few of its columns, `index`, `counted` and `outcome` among them.

    Raises OSError or pyarrow.ArrowInvalid; KeyError where the file has no such column.
    """
    return Requests(StoredRows(path), columns)
