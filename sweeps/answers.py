"""Answers that were kept whole, to be compared: one arm's are one Parquet file, a row an answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from endpoints.outcomes import Outcome
from sweeps.arrow import of_values
from sweeps.files import write_atomically


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request brought. `repeat`: 1, or 2 where the same is asked again.

    `token_ids`: where the server lists them; `seeded`: the request carried a seed; `start`: which start of a server
    that the run starts has answered, counted from 1 over all of the run's folder.
    """

    prompt_id: str
    repeat: int
    outcome: str
    text: str = ""
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    status: int | None = None
    error: str | None = None
    seeded: bool = True
    model: str | None = None
    system_fingerprint: str | None = None
    asked_unix_ns: int = 0
    start: int | None = None

    @property
    def ok(self) -> bool:
        return self.outcome == Outcome.OK

    @property
    def empty(self) -> bool:
        """A whole reply without any text."""
        return self.outcome == Outcome.EMPTY

    @property
    def answered(self) -> bool:
        """There is something to compare, be it nothing at all; anything else failed, and may be asked again."""
        return self.ok or self.empty

    @property
    def key(self) -> tuple[str, int]:
        return self.prompt_id, self.repeat


_TYPES = {
    "repeat": pa.int64(),
    "token_ids": pa.list_(pa.int64()),
    "input_tokens": pa.int64(),
    "output_tokens": pa.int64(),
    "status": pa.int64(),
    "seeded": pa.bool_(),
    "asked_unix_ns": pa.int64(),
    "start": pa.int64(),
}
SCHEMA = pa.schema([(f.name, _TYPES.get(f.name, pa.string())) for f in fields(Answer)])


def answers_path(run: Path, slug: str) -> Path:
    """Where an arm's answers are kept below a run's folder."""
    return run / "points" / slug / "equality" / "responses.parquet"


def write_answers(path: Path, answers: Iterable[Answer]) -> None:
    """Write them whole or not at all, with the folder they go to. Raises OSError."""
    rows = [astuple(answer) for answer in answers]
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    arrays = [of_values(values, kind.type) for values, kind in zip(columns, SCHEMA, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def read_answers(path: Path) -> list[Answer]:
    """The stored answers; none where there is no file, or where what is there is no such table."""
    try:
        with pq.ParquetFile(path) as file:
            rows: list[Mapping[str, Any]] = file.read().to_pylist() if file.schema_arrow.equals(SCHEMA) else []
    except (OSError, pa.ArrowException):
        return []
    return [Answer(**row) for row in rows]
