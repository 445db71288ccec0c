"""Same answers? as the reports tell it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reports.build import build
from reports.equality import fails
from reports.markdown import render
from reports.summary import ReportError, assemble, merge, summarise
from reports.terminal import plain
from sweeps.answers import Answer
from sweeps.equality import compare

N = 12
HOSTILE = "</script><img src=x onerror=alert(1)>"


def found(differing: int, floor: int = 0, ended: dict[str, str] | None = None) -> dict[str, Any]:
    def answers(differ: int, repeat: int = 1) -> list[Answer]:
        texts = ["what off says", f"what {HOSTILE} says"]
        return [Answer(f"p{i}", repeat, "ok", texts[i < differ], "stop") for i in range(N)]

    mine = {"off": answers(0) + answers(floor, 2), "on": answers(differing)}
    return {"schema_version": 1, "wanted": N} | compare(mine, [f"p{i}" for i in range(N)], ended)


def asked(make: SimpleNamespace, arm: str, requests: int) -> dict[str, Any]:
    spent = {"requests": requests, "input_tokens": 10 * requests, "output_tokens": requests, "usd": None}
    line: dict[str, Any] = make.event("equality_asked", arm=arm, reason=None, spent=spent)
    return line


def test_answers_that_differ_stand_above_everything(make: SimpleNamespace, tmp_path: Path) -> None:
    run = make.run(tmp_path / "run", make.points(levels=(1, 8)))
    (run / "equality.json").write_text(json.dumps(found(8)))
    summary = build(run)
    said = "on does not answer as off does: 8 of 12 greedy answers differ"
    assert summary["equality"]["status"] == "different"
    assert plain(summary).startswith(said)
    assert (run / "report.md").read_text().splitlines()[2].startswith(f"**{said}")
    page = (run / "report.html").read_text()
    head = page[page.index("<body>") : page.index('class="finding"')]
    assert said in head
    assert "<h2>Same answers?</h2>" in page
    assert HOSTILE not in page
    assert "&lt;/script&gt;" in page


def test_equal_answers_are_a_line(make: SimpleNamespace, tmp_path: Path) -> None:
    summary = assemble(make.manifest(), make.points(), [], found(0))
    text = plain(summary)
    assert text.startswith("Users")
    assert "  on gives the same greedy answers as off to all 12 prompts" in text
    assert "on gives the same greedy answers" in render(summary)


def test_what_is_missing_is_told(make: SimpleNamespace, tmp_path: Path) -> None:
    equality = found(0)
    equality["failures"] = [{"arm": "on", "outcome": "http_5xx", "count": 3, "example": "HTTP 500: \x1b[31mx"}]
    text = plain(assemble(make.manifest(), make.points(), [], equality))
    assert "on: 3 of the answers to compare are missing (http_5xx: HTTP 500: " in text
    assert "\x1b" not in text


def test_a_strict_run_wants_answers_that_are_there(make: SimpleNamespace) -> None:
    prompts = [f"p{i}" for i in range(N)]
    told = {"off": [Answer(p, repeat, "ok", "a", "stop") for p in prompts for repeat in (1, 2)]}
    some = compare(told | {"on": [Answer(p, 1, "ok" if p == "p0" else "empty", "a", "stop") for p in prompts]}, prompts)
    none = compare(told | {"on": []}, prompts, {"on": "its server did not come up"})
    few = compare(told | {"on": told["off"][:8:2]}, prompts)
    for equality, status, fail in [
        (found(0), "equal", False), (found(8), "different", True), (found(2), "cannot_tell", False),
        (few, "cannot_tell", True), (none, "unknown", True), (some, "different", True),
    ]:  # fmt: skip
        summary = assemble(make.manifest(), make.points(), [], equality)
        assert (summary["equality"]["status"], fails(summary)) == (status, fail)
    assert "on: 11 of the answers to compare are empty" in plain(assemble(make.manifest(), make.points(), [], some))
    assert not fails(assemble(make.manifest(), make.points(), []))
    points = make.points()
    for point in points:
        point["speculation"]["synthetic"] = True
    assert not fails(assemble(make.manifest(), points, [], none))


@pytest.mark.parametrize("evidence", [True, "synth_len: 2.5"])
def test_synthetic_acceptance_makes_it_meaningless(make: SimpleNamespace, tmp_path: Path, evidence: Any) -> None:
    points = make.points()
    for point in points:
        if point["arm"] == "on":
            point["speculation"]["synthetic"] = evidence
    summary = assemble(make.manifest(), points, [], found(12))
    assert summary["equality"]["status"] == summary["equality"]["arms"]["on"]["status"] == "meaningless"
    text = plain(summary)
    assert text.startswith("Users")
    assert "cannot be told: the server accepts drafts by a rule, not by its model" in text
    if isinstance(evidence, str):
        assert evidence in text


def test_a_declaration_of_it_is_enough(make: SimpleNamespace) -> None:
    manifest = make.manifest()
    manifest["arms"]["on"]["speculation"]["synthetic"] = True
    assert assemble(manifest, make.points(), [], found(12))["equality"]["status"] == "meaningless"


def test_what_asking_took_is_in_the_totals(make: SimpleNamespace) -> None:
    points = make.points()
    journal = [asked(make, "off", 24), asked(make, "on", 12)]
    without = assemble(make.manifest(), points, [])["totals"]
    totals = assemble(make.manifest(), points, journal, found(0))["totals"]
    assert totals["requests"] == without["requests"] + 36
    assert totals["input_tokens"] == without["input_tokens"] + 360


def test_several_runs_keep_their_warning(make: SimpleNamespace) -> None:
    summaries = [("first", assemble(make.manifest(), make.points(), [], found(8))),
                 ("second", assemble(make.manifest(), make.points(), [asked(make, "on", 5)], found(0)))]  # fmt: skip
    merged = merge(summaries)
    assert merged["equality"] is None
    assert any(c.startswith("In first, on does not answer as off does") for c in merged["caveats"])
    assert merged["totals"]["requests"] == sum(s["totals"]["requests"] for _, s in summaries)


def test_a_corrupt_comparison_is_named(make: SimpleNamespace, tmp_path: Path) -> None:
    run = make.run(tmp_path / "run", make.points(levels=(1,)))
    (run / "equality.json").write_text('{"schema_version": 1}')
    with pytest.raises(ReportError, match=r"equality\.json is corrupt"):
        summarise(run)
