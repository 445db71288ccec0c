"""A run's folder: what is written when, so that a killed run loses at most the point in flight."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import pyarrow as pa

from sweeps.columns import write_parquet
from sweeps.events import MEASURE, PointKey
from sweeps.files import name_finally, sync_folder, write_atomically, write_json, write_text
from sweeps.point import FINISHED, SCHEMA_VERSION
from sweeps.records import StoreError, read_journal, read_manifest


class RunStore:
    """One run's folder, held under a lock while it is open."""

    def __init__(self, path: Path, journal: TextIOWrapper, manifest: dict[str, Any]) -> None:
        self.path, self._journal, self.manifest = path, journal, manifest

    @classmethod
    def create(cls, path: Path, manifest: Mapping[str, Any], sweep_yaml: str) -> RunStore:
        """Make the folder and write what was asked. Raises StoreError when it exists with anything in it."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise StoreError(f"{path} is not empty: choose another --out, or go on with it by --resume")
            write_text(path / "sweep.yaml", sweep_yaml)
            write_json(path / "manifest.json", dict(manifest))
            return cls(path, _locked_journal(path), dict(manifest))
        except OSError as exc:
            raise StoreError(f"cannot write the run's folder {path}: {exc.strerror or exc}") from None

    @classmethod
    def reopen(cls, path: Path) -> RunStore:
        """Open an existing run to go on with it. Raises StoreError."""
        manifest, _ = read_manifest(path), read_journal(path)  # before anything is changed
        try:
            return cls(path, _locked_journal(path), manifest)
        except OSError as exc:
            raise StoreError(f"cannot open the run's folder {path}: {exc.strerror or exc}") from None

    def note(self, event: str, key: PointKey | None = None, **fields: Any) -> None:
        """Append one line to the journal, durable before the call returns."""
        where = {} if key is None else {"arm": key.arm, "concurrency": key.concurrency, "trial": key.trial}
        where |= {} if key is None or key.kind == MEASURE else {"kind": key.kind}
        line = {"schema_version": SCHEMA_VERSION, "time": utc_now(), "event": event, **where, **fields}
        self._journal.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())

    def finished(self) -> set[PointKey]:
        """Points that are whole: in the journal as finished, and readable on disk."""
        keys = {
            PointKey(line["arm"], line["concurrency"], line["trial"], line.get("kind", MEASURE))
            for line in read_journal(self.path)
            if line["event"] == "point_finished"
        }
        slugs = {name: arm["slug"] for name, arm in self.manifest["arms"].items()}
        return {
            key for key in keys if key.arm in slugs and self._is_whole(point_folder(self.path, slugs[key.arm], key))
        }

    def spent(self) -> list[dict[str, Any]]:
        """What every point so far has spent, those that were cut short included (`spent` of their point.json), and what
        the check for equal answers has."""
        ended = ("point_finished", "point_failed", "equality_asked")
        return [line["spent"] for line in read_journal(self.path) if line["event"] in ended]

    def ends(self) -> dict[str, dict[str, Any]]:
        """The decision that named the end of an arm's curve, of those that have one."""
        return {
            line["arm"]: line
            for line in read_journal(self.path)
            if line["event"] == "decision" and line.get("reason") == "curve_end" and "arm" in line
        }

    def clear(self, slug: str, key: PointKey) -> None:
        """Remove what a cut-short measurement of this point left."""
        folder = point_folder(self.path, slug, key)
        if folder.exists():
            shutil.rmtree(folder)

    def begin_point(self, slug: str, key: PointKey) -> Path:
        """Make the point's folder anew. Returns the name under which its requests are written until it has ended."""
        self.clear(slug, key)
        folder = point_folder(self.path, slug, key)
        folder.mkdir(parents=True)
        return folder / "requests.parquet.tmp"

    def write_point(
        self,
        slug: str,
        key: PointKey,
        series: pa.Table,
        point: Mapping[str, Any],
        telemetry: pa.Table | None = None,
    ) -> Path:
        """Give the point's requests their name and write its other files, `point.json` last: where it is, all are."""
        folder = point_folder(self.path, slug, key)
        name_finally(folder / "requests.parquet.tmp", folder / "requests.parquet")
        write_atomically(folder / "series.parquet", lambda path: write_parquet(series, path))
        if telemetry is not None:
            write_atomically(folder / "telemetry.parquet", lambda path: write_parquet(telemetry, path))
        write_json(folder / "point.json", dict(point))
        sync_folder(folder.parent)
        return folder

    def update(self, manifest: Mapping[str, Any], sweep_yaml: str) -> None:
        """Write anew what is asked, when a run is gone on with."""
        self.manifest = dict(manifest)
        write_json(self.path / "manifest.json", self.manifest)
        write_text(self.path / "sweep.yaml", sweep_yaml)

    def amend_arm(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write what became known of an arm, such as one whose server was started, into the manifest."""
        arms = self.manifest["arms"]
        self.manifest |= {"arms": arms | {name: {**arms.get(name, {}), **facts}}}
        write_json(self.path / "manifest.json", self.manifest)

    def close(self) -> None:
        self._journal.close()

    @staticmethod
    def _is_whole(folder: Path) -> bool:
        try:
            point = json.loads((folder / "point.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return bool(point.get("status") == FINISHED) and (folder / "requests.parquet").exists()


def point_folder(run: Path, slug: str, key: PointKey) -> Path:
    """`points/<arm slug>/c00064-t1` below the run."""
    return run / "points" / slug / key.folder


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What makes two sets of points incomparable, each as `key: was old, is now new`."""
    keys = sorted({*old, *new})
    return [f"{key}: was {_said(old, key)}, is now {_said(new, key)}" for key in keys if old.get(key) != new.get(key)]


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _said(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False)[:120] if key in values else "nothing"


def _locked_journal(run: Path) -> TextIOWrapper:
    path = run / "journal.jsonl"
    journal = path.open("a", encoding="utf-8")
    try:
        fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        journal.close()
        raise StoreError(f"another endsweep is writing to {run}: wait for it, or choose another --out") from None
    if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        journal.write("\n")  # a kill cut the last line: begin a new one
        journal.flush()
    return journal
