"""A run's folder: whole files or none, one writer, and a journal that survives a kill."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from sweeps.columns import table_of, write_parquet
from sweeps.events import PointKey
from sweeps.files import write_atomically, write_json, write_text
from sweeps.records import StoreError, read_journal, read_manifest
from sweeps.series import series_of
from sweeps.store import RunStore, differences, point_folder

MANIFEST: dict[str, Any] = {
    "schema_version": 1,
    "arms": {"off": {"slug": "off"}, "On!": {"slug": "on-1"}},
    "load": {"levels": [64]},
    "comparable": {},
    "created_at": "2026-11-30T11:20:30Z",
}
SPENT = {"requests": 1, "input_tokens": 2, "output_tokens": 3, "usd": None}
KEY = PointKey("On!", 64, 2)


def write(lab: SimpleNamespace, store: RunStore, key: PointKey, status: str = "finished") -> Path:
    slug = store.manifest["arms"][key.arm]["slug"]
    r = lab.requests(lab.sent())
    write_parquet(table_of([lab.sent()], 0), store.begin_point(slug, key))
    folder = store.write_point(slug, key, series_of(r, None, r.counted), {"status": status, "n": 1})
    if status == "finished":
        store.note("point_finished", key, spent=SPENT)
    return folder


def reopened(path: Path) -> set[PointKey]:
    store = RunStore.reopen(path)
    try:
        return store.finished()
    finally:
        store.close()


def test_a_points_files_are_where_programs_look(lab: SimpleNamespace, tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run", MANIFEST, "name: x\n")
    folder = write(lab, store, KEY)
    store.close()
    assert folder == tmp_path / "run" / "points" / "on-1" / "c00064-t2"
    assert sorted(p.name for p in folder.iterdir()) == ["point.json", "requests.parquet", "series.parquet"]
    assert pq.read_table(folder / "requests.parquet").num_rows == 1
    assert (tmp_path / "run" / "sweep.yaml").read_text() == "name: x\n"
    assert read_manifest(tmp_path / "run") == MANIFEST
    (line,) = read_journal(tmp_path / "run")
    assert (line["schema_version"], line["event"], line["arm"], line["concurrency"], line["trial"]) == (
        1,
        "point_finished",
        "On!",
        64,
        2,
    )
    assert reopened(tmp_path / "run") == {KEY}


def test_a_folder_that_holds_anything_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(StoreError, match="is not empty: choose another --out, or go on with it by --resume"):
        RunStore.create(tmp_path, MANIFEST, "")
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(StoreError, match="cannot write the run's folder"):
        RunStore.create(tmp_path / "mine.txt", MANIFEST, "")


def test_a_second_writer_is_locked_out(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run", MANIFEST, "")
    with pytest.raises(StoreError, match="another endsweep is writing"):
        RunStore.reopen(tmp_path / "run")
    store.close()
    RunStore.reopen(tmp_path / "run").close()


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_journal_line_cut_by_a_kill_is_passed_over(lab: SimpleNamespace, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "run"
    store = RunStore.create(path, MANIFEST, "")
    write(lab, store, KEY)
    store.note("point_started", PointKey("off", 1, 1))
    store.close()
    journal = path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-cut])
    store = RunStore.reopen(path)
    assert store.finished() == {KEY}
    store.note("decision", text="ünïcode")
    store.close()
    lines = read_journal(path)
    assert lines[-1]["text"] == "ünïcode"
    assert len(lines) == (3 if cut == 1 else 2)  # cut by one byte, the line only lacks its end


def test_points_without_their_files_are_not_finished(lab: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "run"
    store = RunStore.create(path, MANIFEST, "")
    keys = [PointKey("off", c, 1) for c in (1, 2, 3, 4, 5)]
    for key in keys:
        write(lab, store, key)
    folders = [point_folder(path, "off", key) for key in keys]
    (folders[0] / "point.json").unlink()
    (folders[1] / "point.json").write_text('{"status": "fini')
    (folders[2] / "requests.parquet").unlink()
    write(lab, store, keys[3], status="interrupted")
    store.note("point_finished", PointKey("gone", 1, 1), spent=SPENT)  # an arm this run does not have
    assert store.finished() == {keys[4]}
    store.clear("off", keys[3])
    store.clear("off", keys[3])
    assert not folders[3].exists()
    store.close()


def test_what_a_kill_left_of_a_point_is_removed(lab: SimpleNamespace, tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run", MANIFEST, "")
    left = store.begin_point("off", PointKey("off", 1, 1))
    left.write_bytes(b"half a row group")
    assert [p.name for p in left.parent.iterdir()] == ["requests.parquet.tmp"]
    assert store.finished() == set()
    assert store.begin_point("off", PointKey("off", 1, 1)) == left
    assert not left.exists()
    store.close()


def test_a_point_on_disk_without_its_journal_line_is_measured_again(lab: SimpleNamespace, tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run", MANIFEST, "")
    r = lab.requests(lab.sent())
    write_parquet(table_of([], 0), store.begin_point("off", PointKey("off", 1, 1)))
    store.write_point("off", PointKey("off", 1, 1), series_of(r, None, r.counted), {"status": "finished"})
    assert store.finished() == set()
    store.close()


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
    write_text(path, "ü")
    assert path.read_bytes() == "ü".encode()


def test_a_journal_line_is_strict_json(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run", MANIFEST, "")
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.note("decision", value=float("inf"))
    store.close()


@pytest.mark.parametrize("content", [None, "{", "[]", '{"schema_version": 99}'])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(StoreError):
        RunStore.reopen(tmp_path)
    assert not (tmp_path / "journal.jsonl").exists()


def test_differences_are_named() -> None:
    assert differences({"a": 1, "b": [1], "d": 0}, {"a": 1, "b": [2], "c": "x", "d": 0}) == [
        "b: was [1], is now [2]",
        'c: was nothing, is now "x"',
    ]
