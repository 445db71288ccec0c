"""Stored runs: whole, killed, corrupt, merged."""

from __future__ import annotations

import json

import pytest

from reports.summary import ReportError, assemble, end_of_curve, merge, summarise


def test_summary_of_a_whole_run(make, tmp_path):
    run = make.run(tmp_path / "run", make.points(), series=False)
    summary = summarise(run)
    assert summary["schema_version"] == 1
    assert list(summary["arms"]) == ["off", "on"]
    assert [(p["arm"], p["concurrency"]) for p in summary["points"]][:7] == [
        *(("off", c) for c in (1, 2, 4, 8, 16, 32)),
        ("on", 1),
    ]
    assert summary["totals"] == {
        "points": 12,
        "valid": 12,
        "warned": 0,
        "requests": 12 * 64,
        "input_tokens": 12 * 64 * 210,
        "output_tokens": 12 * 64 * 128,
        "usd": None,
        "seconds": pytest.approx(12 * 12.3),
    }
    assert summary["ends"]["off"] == {
        "reason": "highest level asked",
        "at": 32,
        "text": "32 was the highest level asked",
    }
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_killed_run_is_read(make, tmp_path):
    run = make.run(tmp_path / "run", make.points(levels=(1, 2)), series=False, journal=[make.event("run_started")])
    with (run / "journal.jsonl").open("a") as journal:
        journal.write('{"schema_version": 1, "event": "point_sta')
        journal.write("\n" + json.dumps(make.event("decision", text="resumed")))
        journal.write('\n{"sche')
    (run / "points" / "off" / "c00004-t1").mkdir()
    summary = summarise(run)
    assert summary["totals"]["points"] == 4
    assert summary["ends"]["off"]["reason"] == "interrupted"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("manifest.json", None, "is not a run"),
        ("manifest.json", b'{"schema_version": 1, "arms": ', "not strict JSON"),
        ("manifest.json", b'{"schema_version": 2, "arms": {}}', "schema version 2"),
        ("manifest.json", b'{"schema_version": 1}', "arms is missing"),
        ("points/off/c00001-t1/point.json", b'{"schema_version": 1, "system_tps": NaN}', "not strict JSON"),
        ("points/off/c00001-t1/point.json", b"\xff\xfe", "not strict JSON"),
        ("points/off/c00001-t1/point.json", b"[]", "not a JSON object"),
        ("points/off/c00001-t1/point.json", b'{"schema_version": 1}', "arm is missing"),
        (
            "points/off/c00001-t1/point.json",
            b'{"schema_version": 1, "arm": "off", "verdicts": [], "intervals": {}}',
            "concurrency is missing",
        ),
        (
            "points/off/c00001-t1/point.json",
            b'{"schema_version": 1, "arm": "off", "concurrency": 1, "verdicts": null, "intervals": {}}',
            "verdicts is missing",
        ),
        ("journal.jsonl", b'garbage\n{"event": "run_finished"}\n', "line 1 is not JSON"),
        ("journal.jsonl", b'{"text": "x"}\n', "line 1 is not an event"),
    ],
)
def test_corrupt_file_is_one_sentence(make, tmp_path, name, content, words):
    run = make.run(tmp_path / "run", make.points(levels=(1,)), series=False)
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
    with pytest.raises(ReportError, match=words) as caught:
        summarise(run)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert content is None or name.rsplit("/", 1)[-1] in message


def test_skipped_points_keep_the_last_reason_and_only_while_not_measured(make):
    journal = [
        make.event("point_skipped", arm="off", concurrency=8, trial=1, reason="budget"),
        make.event("point_skipped", arm="off", concurrency=16, trial=1, reason="budget"),
        make.event("point_failed", arm="off", concurrency=16, trial=1, reason="the server went away"),
        make.event("run_finished"),
    ]
    summary = assemble(make.manifest(), [make.point("off", 8)], journal)
    assert summary["skipped"] == [{"arm": "off", "concurrency": 16, "trial": 1, "reason": "the server went away"}]
    assert summary["ends"]["off"]["reason"] == "skipped"
    assert "the server went away" in summary["ends"]["off"]["text"]


def test_ends_of_curves(make):
    bad = [{"code": "errors", "severity": "invalid"}]
    finished = [make.event("run_finished")]
    load = {"levels": [1, 2, 4]}

    def end(points, journal=finished, load=load):
        return end_of_curve("off", points, [], journal, load)

    whole = [make.point("off", c) for c in (1, 2, 4)]
    assert end(whole)["reason"] == "highest level asked"
    assert end(whole, journal=[])["reason"] == "highest level asked"
    assert end(whole[:2], journal=[make.event("interrupted")])["reason"] == "interrupted"
    assert end(whole[:2])["reason"] == "not measured"
    cut = end([*whole[:2], make.point("off", 4, verdicts=bad)])
    assert (cut["reason"], cut["at"]) == ("points invalid above", 2)
    assert "errors" in cut["text"]
    told = [make.event("decision", arm="off", reason="curve_end", text="throughput no longer rises"), *finished]
    assert "no longer rises" in end(whole, journal=told, load={})["text"]
    assert end([])["reason"] == "nothing measured"


def test_merged_runs_rename_only_the_arms_they_share(make):
    first = assemble(make.manifest(), make.points(arms=("off", "on")), [])
    arm = make.manifest()["arms"]["off"]
    other = make.manifest(arms={"off": arm, "tuned": arm}, workload={"hash": "other"})
    second = assemble(other, [make.point("off", 4), make.point("tuned", 4)], [])
    merged = merge([("monday", first), ("tuesday", second)])
    assert list(merged["arms"]) == ["monday/off", "on", "tuesday/off", "tuned"]
    assert merged["totals"]["points"] == 14
    assert merged["comparison"]["base"] == "monday/off"
    assert [pair["arm"] for pair in merged["comparison"]["pairs"]] == ["on", "tuesday/off", "tuned"]
    assert any("workload" in caveat for caveat in merged["caveats"])
    assert first["points"][0]["arm"] == "off"  # the inputs stay as they were
