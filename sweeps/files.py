"""Writing so that a file is there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary name beside `path`, make it durable, and give it its name. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        name_finally(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def name_finally(temporary: Path, path: Path) -> None:
    """Make a finished file durable and give it its name. Raises OSError."""
    with temporary.open("rb") as handle:
        os.fsync(handle.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def write_json(path: Path, document: Any) -> None:
    """Strict JSON (UTF-8; NaN and Infinity are a ValueError), whole or not at all."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    write_atomically(path, lambda temporary: _write_text(temporary, text))


def write_text(path: Path, text: str) -> None:
    """UTF-8 text, whole or not at all."""
    write_atomically(path, lambda temporary: _write_text(temporary, text))


def sync_folder(folder: Path) -> None:
    """Make a folder's entries durable (a rename is in the folder, not in the file)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
