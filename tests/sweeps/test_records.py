"""A run's manifest and journal: read strictly, refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sweeps.records import StoreError, read_journal, read_manifest

HEAD = {"schema_version": 1, "time": "2026-11-30T11:20:30Z"}
SPENT = {"requests": 1, "input_tokens": 2, "output_tokens": 3, "usd": 0.5}
POINT = {"arm": "off", "concurrency": 4, "trial": 1}
MANIFEST: dict[str, Any] = {
    "schema_version": 1,
    "arms": {"off": {"slug": "off"}},
    "load": {"levels": [1]},
    "comparable": {},
    "created_at": "2026-11-30T11:20:30Z",
}


def line(**fields: Any) -> str:
    return json.dumps({**HEAD, **fields})


def test_sound_lines_and_those_that_a_kill_cut(tmp_path: Path) -> None:
    sound = [
        line(event="run_started", points=1),
        line(event="point_finished", **POINT, spent=SPENT),
        line(event="point_failed", **POINT, spent=SPENT | {"usd": None}),
        line(event="decision", text="resumed"),
    ]
    (tmp_path / "journal.jsonl").write_text("\n".join([sound[0], sound[1][:30], *sound[1:], "", sound[1][:5]]))
    assert read_journal(tmp_path) == [json.loads(text) for text in sound]
    assert read_journal(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("garbage", "line 2 is not JSON"),
        ("[1]", "line 2 is not an event"),
        ("3", "line 2 is not an event"),
        (json.dumps(HEAD), "line 2 is not an event"),
        (line(event=7), "line 2 is not an event"),
        (json.dumps({"event": "run_started"}), "line 2 is not of schema version 1"),
        (line(event="point_started", concurrency=4, trial=1), "line 2 names no arm"),
        (line(event="point_started", arm="off", trial=1), "line 2 names no concurrency or no trial"),
        (line(event="point_started", **POINT | {"trial": True}), "line 2 names no concurrency or no trial"),
        (line(event="point_finished", **POINT), "line 2 does not say what the point has spent"),
        (line(event="equality_asked", arm="a", reason=None), "line 2 does not say which arm was asked"),
        (line(event="point_failed", **POINT, spent={}), "line 2 does not say what the point has spent"),
        (line(event="point_finished", **POINT, spent=SPENT | {"usd": "1"}), "line 2 does not say what the point has"),
    ],
)
def test_a_bad_line_is_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text(f"{line(event='run_started')}\n{text}\n")
    with pytest.raises(StoreError, match=words) as caught:
        read_journal(tmp_path)
    said = str(caught.value)
    assert "\n" not in said and str(tmp_path / "journal.jsonl") in said and "or measure into a new folder" in said


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"schema_version": 2}, "has schema version 2; this endsweep reads version 1"),
        ({"arms": []}, "arms is missing or of the wrong kind"),
        ({"arms": {"off": {}}}, "arms is missing or of the wrong kind"),
        ({"load": {}}, "load.levels is missing"),
        ({"comparable": None}, "comparable is missing"),
        ({"created_at": None}, "created_at is missing"),
    ],
)
def test_a_bad_manifest_is_one_sentence(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(MANIFEST))
    assert read_manifest(tmp_path) == MANIFEST
    path.write_text(json.dumps(MANIFEST | changed))
    with pytest.raises(StoreError, match=words):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not a run's folder: it has no manifest.json"),
        (b'{"schema_version": 1, "arms": ', "not strict JSON"),
        (b'{"schema_version": NaN}', "not strict JSON"),
        (b"\xff", "not strict JSON"),
        (b"[]", "not a JSON object"),
    ],
)
def test_what_is_no_manifest_is_refused(content: bytes | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(StoreError, match=words):
        read_manifest(tmp_path)
