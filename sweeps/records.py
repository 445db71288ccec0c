"""Reading what a run's folder says of itself, strictly: its manifest, its journal, and any other of its documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeps.point import SCHEMA_VERSION

_HEAD = b'{"schema_version"'  # how every line of a journal begins
_ENDED = ("point_finished", "point_failed")
_REMEDY = "put back what was written, or measure into a new folder (--out)"


class StoreError(Exception):
    """A run's folder cannot be made, read or gone on with; the text is one sentence with the remedy."""


def read_document(path: Path) -> dict[str, Any]:
    """A JSON object of this version of the format. Raises StoreError."""
    try:
        value = json.loads(path.read_bytes(), parse_constant=_no_constant)
    except OSError as exc:
        raise StoreError(f"{path} cannot be read: {exc.strerror or exc}") from None
    except ValueError:
        raise StoreError(f"{path} is corrupt: it is not strict JSON; {_REMEDY}") from None
    if not isinstance(value, dict):
        raise StoreError(f"{path} is corrupt: it is not a JSON object; {_REMEDY}")
    if value.get("schema_version") != SCHEMA_VERSION:
        version = repr(value.get("schema_version"))[:40]
        raise StoreError(f"{path} has schema version {version}; this endsweep reads version {SCHEMA_VERSION}")
    return value


def read_manifest(run: Path) -> dict[str, Any]:
    """A run's manifest, with what going on with it and reporting it rely on. Raises StoreError."""
    path = run / "manifest.json"
    if not path.is_file():
        raise StoreError(f"{run} is not a run's folder: it has no manifest.json")
    manifest = read_document(path)
    arms, load = manifest.get("arms"), manifest.get("load")
    sound = {
        "arms": isinstance(arms, dict) and all(_is_arm(arm) for arm in arms.values()),
        "load.levels": isinstance(load, dict) and isinstance(load.get("levels"), list),
        "comparable": isinstance(manifest.get("comparable"), dict),
        "created_at": isinstance(manifest.get("created_at"), str),
    }
    for name, there in sound.items():
        if not there:
            raise StoreError(f"{path} is corrupt: {name} is missing or of the wrong kind; {_REMEDY}")
    return manifest


def read_journal(run: Path) -> list[dict[str, Any]]:
    """The journal's lines, each an event with what its kind must say. Lines that a kill cut are passed over (the last,
    or one that a later run went on below). Raises StoreError."""
    path = run / "journal.jsonl"
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise StoreError(f"{path} cannot be read: {exc.strerror or exc}") from None
    lines = []
    for number, text in enumerate(raw.split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text, parse_constant=_no_constant)
        except ValueError:
            if text.startswith(_HEAD) or _HEAD.startswith(text):
                continue
            raise StoreError(f"{path} is corrupt: line {number} is not JSON; {_REMEDY}") from None
        if wrong := _fault(line):
            raise StoreError(f"{path} is corrupt: line {number} {wrong}; {_REMEDY}")
        lines.append(line)
    return lines


def _fault(line: Any) -> str | None:
    """What a journal's line lacks; None of a sound one."""
    if not isinstance(line, dict) or not isinstance(line.get("event"), str):
        return "is not an event"
    if line.get("schema_version") != SCHEMA_VERSION:
        return f"is not of schema version {SCHEMA_VERSION}"
    if line["event"].startswith("point_"):
        if not isinstance(line.get("arm"), str):
            return "names no arm"
        if not all(type(line.get(name)) is int for name in ("concurrency", "trial")):
            return "names no concurrency or no trial"
    if line["event"] == "equality_asked" and not (isinstance(line.get("arm"), str) and _is_account(line.get("spent"))):
        return "does not say which arm was asked, or what that has spent"
    if line["event"] in _ENDED and not _is_account(line.get("spent")):
        return "does not say what the point has spent"
    return None


def _is_arm(arm: Any) -> bool:
    return isinstance(arm, dict) and isinstance(arm.get("slug"), str)


def _is_account(spent: Any) -> bool:
    if not isinstance(spent, Mapping) or not all(type(spent.get(n)) is int for n in ("input_tokens", "output_tokens")):
        return False
    usd = spent.get("usd", "")
    return usd is None or type(usd) in (int, float)


def _no_constant(name: str) -> float:
    raise ValueError(name)
