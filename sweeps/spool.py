"""Requests that have ended, on their way to `requests.parquet`: they leave memory in batches while the point runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sweeps.arrow import lists, to_ints, to_valid
from sweeps.columns import SCHEMA, RowBuffer
from sweeps.load import Sent
from sweeps.requests import Requests, StoredRows, Tables

Chunks = Literal["all", "sample", "none"]
SAMPLE = 16
"""`sample` keeps the fragments of the requests whose index is a multiple of this."""

_MOST_ROWS, _MOST_CHUNKS = 4096, 2**17  # of a batch, which is a row group of the file
_WRITING: dict[str, Any] = {
    "compression": "zstd",
    "write_statistics": False,  # of 44 columns for each batch
    "use_dictionary": [field.name for field in SCHEMA if field.type == pa.string()],
    # Neighbours are near each other: their differences take a few bits.
    "column_encoding": {
        field.name + (".list.element" if pa.types.is_list(field.type) else ""): "DELTA_BINARY_PACKED"
        for field in SCHEMA
        if field.type in (pa.int64(), pa.list_(pa.int64()))
    },
}


class Spool(Protocol):
    """Takes each request as it ends, and gives them all back when the point has ended."""

    def add(self, sent: Sent) -> None: ...

    def begin(self, origin_ns: int) -> None:
        """Stamps are stored from here on as ns since this moment of the sweep's clock."""
        ...

    def finish(self) -> Requests: ...


class MemorySpool:
    """For points in virtual time: what has ended is packed, and stays."""

    def __init__(self) -> None:
        self._rows, self._origin = RowBuffer(), 0
        self.add = self._rows.add

    def begin(self, origin_ns: int) -> None:
        self._origin = origin_ns

    def finish(self) -> Requests:
        return Requests(Tables([self._rows.table(self._origin)]))


class FileSpool:
    """Writes to `path`, a temporary name, a row group a batch, in a thread of its own.

    Rows are by index within a batch, and batches in the order in which requests end. One batch fills while another is
    written; should the disk be slower than that, `add` waits for it, so that memory stays bounded.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._origin = path, 0
        self._rows = RowBuffer()
        self._writer = pq.ParquetWriter(path, SCHEMA, **_WRITING)
        self._thread = ThreadPoolExecutor(1, "spool")
        self._writing: Future[None] | None = None

    def begin(self, origin_ns: int) -> None:
        self._origin = origin_ns

    def add(self, sent: Sent) -> None:
        """Raises OSError when an earlier batch could not be written."""
        self._rows.add(sent)
        if len(self._rows) >= _MOST_ROWS or self._rows.chunks >= _MOST_CHUNKS:
            self._hand_over()

    def finish(self) -> Requests:
        """Write what is left. Raises OSError."""
        if len(self._rows):
            self._hand_over()
        self._wait()
        self.close()
        return Requests(StoredRows(self.path))

    def close(self) -> None:
        """Let go of the file, whole or not."""
        self._thread.shutdown()
        self._writer.close()

    def _hand_over(self) -> None:
        self._wait()
        full, self._rows = self._rows, RowBuffer()
        self._writing = self._thread.submit(self._write, full)

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _write(self, rows: RowBuffer) -> None:
        self._writer.write_table(rows.table(self._origin))


def prune(path: Path, chunks: Chunks) -> None:
    """Leave out of a finished file the fragments that are not to be kept, row group by row group. Raises OSError."""
    if chunks == "all":
        return
    pruned = path.with_name(path.name + ".pruned")
    with pq.ParquetFile(path) as file, pq.ParquetWriter(pruned, SCHEMA, **_WRITING) as writer:
        for group in range(file.num_row_groups):
            writer.write_table(_pruned(file.read_row_group(group), chunks))
    pruned.replace(path)


def _pruned(table: pa.Table, chunks: Chunks) -> pa.Table:
    index = to_ints(table.column("index"))
    kept = (index % SAMPLE == 0) if chunks == "sample" else np.zeros(len(index), bool)
    sizes = to_ints(table.column("chunks"))
    owner = np.repeat(np.arange(len(index)), sizes)
    for name in ("chunk_offsets_us", "chunk_tokens"):
        column = table.column(name).combine_chunks()
        there = to_valid(column)
        values = to_ints(column.flatten())[kept[owner[there[owner]]]]
        still = kept & there
        at = table.schema.get_field_index(name)
        table = table.set_column(at, SCHEMA.field(name), lists(np.where(still, sizes, 0), values, still))
    return table
