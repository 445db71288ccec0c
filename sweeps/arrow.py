"""numpy to Arrow and back, by their buffers.

pyarrow's own conversions first import pandas, where it is installed, to ask whether they were given one of its objects;
that costs more than all the rest of a point's analysis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own keep what was freed, thread by thread

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def ints(values: Ints, valid: Bools | None = None) -> pa.Array:
    """int64, null where not `valid`."""
    return pa.Array.from_buffers(pa.int64(), len(values), [_bits(valid), pa.py_buffer(np.ascontiguousarray(values))])


def floats(values: npt.NDArray[np.float64]) -> pa.Array:
    """float64."""
    return pa.Array.from_buffers(pa.float64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def flags(values: Bools) -> pa.Array:
    """bool."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def texts(values: Sequence[str | None]) -> pa.Array:
    """Strings, null where None; what UTF-8 cannot hold (a lone surrogate) becomes a question mark."""
    raw = [b"" if text is None else text.encode("utf-8", "replace") for text in values]
    valid = np.fromiter((text is not None for text in values), bool, len(raw))
    ends = _ends(np.fromiter(map(len, raw), np.int64, len(raw)))
    return pa.Array.from_buffers(pa.string(), len(raw), [_bits(valid), pa.py_buffer(ends), pa.py_buffer(b"".join(raw))])


def lists(sizes: Ints, values: Ints, valid: Bools | None = None) -> pa.Array:
    """Lists of int64: `values` cut into `sizes`; a list that is not `valid` is null (its size must be 0)."""
    kind = pa.list_(pa.int64())
    return pa.Array.from_buffers(kind, len(sizes), [_bits(valid), pa.py_buffer(_ends(sizes))], children=[ints(values)])


def of_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Python values, None where there is none, as a column of int64, bool (null: false), lists of int64, or text."""
    if kind == pa.string():
        return texts(values)
    if kind == pa.bool_():
        return flags(np.array([bool(v) for v in values], bool))
    valid = np.array([v is not None for v in values], bool)
    if kind == pa.int64():
        return ints(np.array([v or 0 for v in values], np.int64), valid)
    sizes = np.array([len(v or ()) for v in values], np.int64)
    return lists(sizes, np.array([x for v in values for x in v or ()], np.int64), valid)


def to_ints(column: pa.Array | pa.ChunkedArray, null: int = -1) -> Ints:
    """int64 values of an int64 column, `null` where null."""
    array = _joined(column)
    raw = array.buffers()[1]
    if raw is None:
        return np.full(len(array), null, np.int64)
    values = np.frombuffer(raw, np.int64)[array.offset : array.offset + len(array)]
    return values if array.null_count == 0 else np.where(to_valid(array), values, null)


def to_flags(column: pa.Array | pa.ChunkedArray) -> Bools:
    """Values of a bool column without nulls."""
    array = _joined(column)
    return _from_bits(array.buffers()[1], array.offset, len(array))


def to_valid(column: pa.Array | pa.ChunkedArray) -> Bools:
    """Where a column is not null."""
    array = _joined(column)
    bits = array.buffers()[0]
    return np.ones(len(array), bool) if bits is None else _from_bits(bits, array.offset, len(array))


def to_codes(column: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """A text column as (codes, the distinct texts they stand for); -1 where null."""
    encoded = _joined(column).dictionary_encode()
    array = encoded.indices
    raw = array.buffers()[1]
    codes = np.zeros(len(array), np.int32) if raw is None else np.frombuffer(raw, np.int32)[: len(array)]
    return np.where(to_valid(array), codes, np.int32(-1)).astype(np.int32), encoded.dictionary


def _joined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array; of a table's column that is one already, no copy."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _bits(mask: Bools | None) -> pa.Buffer | None:
    return None if mask is None else pa.py_buffer(np.packbits(mask, bitorder="little"))


def _from_bits(bits: pa.Buffer, offset: int, n: int) -> Bools:
    return np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little", count=offset + n)[offset:].astype(bool)


def _ends(sizes: Ints) -> npt.NDArray[np.int32]:
    """Where each of consecutive pieces begins, and where the last ends."""
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    return ends
