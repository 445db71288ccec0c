"""A real llama.cpp server, speculation off and on, swept through the command line.

Counts are asserted, never speed: the machine is shared.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.real.engines.llamacpp import ACCEPTANCE_LENGTH, DRAFT_TOKENS, command, llamacpp_ngram
from tests.real.engines.servers import Engine
from tests.real.sweeping import assert_sound, points, rows, sweep

pytestmark = pytest.mark.timeout(900)
LEVELS, REQUESTS, TOKENS, ASKED = [1, 4, 8], 40, 32, 12
SPEC = """\
name: llama.cpp
endpoint: {{model: tiny}}
arms:
  off: {{url: "{off}"}}
  on:
    url: "{on}"
    speculation: {{method: {method}, draft_tokens: {draft_tokens}, synthetic: {synthetic}}}
workload: {{use: chat-short, max_tokens: {tokens}}}
load: {{concurrency: {levels}, requests: {requests}}}
check_equal: {asked}
"""


@pytest.fixture(scope="module")
def swept(llamacpp: tuple[Engine, Engine], tmp_path_factory: pytest.TempPathFactory) -> Path:
    off, on = llamacpp
    spec = SPEC.format(
        off=off.url,
        on=on.url,
        draft_tokens=DRAFT_TOKENS,
        tokens=TOKENS,
        levels=LEVELS,
        requests=REQUESTS,
        asked=ASKED,
        method="draft",
        synthetic="true",
    )
    return sweep(tmp_path_factory.mktemp("llamacpp"), spec)


def test_every_point_is_valid_and_no_request_failed(swept: Path) -> None:
    assert len(points(swept)) == 2 * len(LEVELS)
    for point in points(swept):
        assert_sound(point, REQUESTS)


def test_tokens_are_the_servers_own(swept: Path) -> None:
    for point in points(swept):
        assert point["token_source"] == "usage"
        assert point["output_tokens"] == {"mean": TOKENS, "total": TOKENS * REQUESTS}
        assert point["peak_tps"] >= point["system_tps"] > 0


def test_a_server_that_closes_unsaid_costs_no_request(swept: Path) -> None:
    again = [row for row in rows(swept) if row["attempts"] > 1]
    assert again, "llama.cpp closes after each stream: the first reuse must have died and been sent again"
    assert all(row["outcome"] == "ok" for row in again)
    journal = (swept / "journal.jsonl").read_text()
    assert "use a fresh one each" in journal


def test_the_on_arm_speculates_as_long_as_it_was_told(swept: Path, llamacpp: tuple[Engine, Engine]) -> None:
    off, on = llamacpp
    drafts = on.metric("llamacpp:spec_decode_num_drafts_total")
    accepted = on.metric("llamacpp:spec_decode_num_accepted_tokens_total")
    assert 1 + accepted / drafts == pytest.approx(ACCEPTANCE_LENGTH, rel=0.06)
    assert off.metric("llamacpp:spec_decode_num_drafts_total") == 0


def test_every_point_has_the_evidence(swept: Path) -> None:
    """llama.cpp with a draft model: every token is a request's first, a step's own, or an accepted one, and only a last
    step, when a single token is wanted, goes without a draft."""
    for point in points(swept, "on"):
        told = point["speculation"]
        assert told["source"] == "counters", told
        assert told["acceptance_length"] == pytest.approx(ACCEPTANCE_LENGTH, rel=0.15)
        requests = point["counts_all"]["issued"]
        undrafted = told["server_tokens"] - requests - told["drafts"] - told["accepted_tokens"]
        assert 0 <= undrafted <= requests or point["counts_all"]["cancelled"]
        assert sum(told["per_position"]) == told["accepted_tokens"]
        told_by_replies = told["by_category"].values()
        assert sum(of["accepted"] for of in told_by_replies) <= told["accepted_tokens"]
        if point["counts_all"]["cancelled"] == 0:
            assert sum(of["drafted"] for of in told_by_replies) == told["draft_tokens"]
        assert point["server"]["engine"] == "llamacpp"
        assert point["server"]["running"]["max"] is None or point["server"]["running"]["max"] <= point["concurrency"]
    for point in points(swept, "off"):
        assert (point["speculation"]["source"], point["speculation"]["draft_tokens"]) == ("counters", 0)
        assert point["speculation"]["tokens_per_step"] == 1
    assert not {"not_speculating", "unexpected_speculation", "counters_broken"} & {
        v["code"] for point in points(swept) for v in point["verdicts"]
    }


def test_synthetic_acceptance_is_not_asked(swept: Path) -> None:
    found = json.loads((swept / "summary.json").read_text())["equality"]
    assert found["floor"] == found["floor"] | {"compared": ASKED, "diverged": 0}, "one request at a time: no noise"
    on = found["arms"]["on"]
    assert on["compared"] == 0
    assert (found["status"], on["status"]) == ("meaningless", "meaningless")
    assert "declared in the profile" in on["text"]


def test_ngram_speculation_answers_alike(llamacpp: tuple[Engine, Engine], tmp_path: Path) -> None:
    off, _ = llamacpp
    with llamacpp_ngram() as ngram:
        spec = SPEC.format(
            off=off.url,
            on=ngram.url,
            draft_tokens=8,
            tokens=64,
            levels=[1],
            requests=10,
            asked=ASKED,
            method="ngram",
            synthetic="false",
        )
        run = sweep(tmp_path, spec)
        assert ngram.metric("llamacpp:spec_decode_num_drafts_total") > 0
    found = json.loads((run / "equality.json").read_text())
    assert found["floor"]["diverged"] == 0
    assert found["arms"]["on"]["compared"] == ASKED
    assert found["arms"]["on"]["status"] in ("equal", "cannot_tell")  # a batch of drafts may round another way
    assert found["failures"] == []


def test_the_folder_is_whole(swept: Path) -> None:
    for name in ("sweep.yaml", "manifest.json", "journal.jsonl", "summary.json", "report.html", "report.md"):
        assert (swept / name).stat().st_size > 0, name
    for name in ("points.csv", "frontier.png", "frontier.svg"):
        assert (swept / name).stat().st_size > 0, name
    summary = json.loads((swept / "summary.json").read_text())
    assert set(summary["frontier"]["arms"]) == {"off", "on"}
    assert summary["comparison"] is not None


# -- the same, started by the sweep -----------------------------------------------------------------------------------


def test_both_arms_are_started_in_blocks_and_gone_afterwards(tmp_path: Path) -> None:
    speculation = {"method": "draft", "draft_tokens": DRAFT_TOKENS}
    spec = {
        "name": "llama.cpp launched",
        "arms": {
            "off": {"launch": command("off", "{port}")},
            "on": {"launch": command("on", "{port}"), "speculation": speculation},
        },
        "workload": {"use": "chat-short", "max_tokens": TOKENS},
        "load": {"concurrency": [1, 4], "requests": REQUESTS},
    }
    run = sweep(tmp_path, json.dumps(spec))
    assert [(p["arm"], p["kind"], p["concurrency"]) for p in points(run)] == [
        ("off", "anchor", 1),
        ("off", "measure", 1),
        ("off", "measure", 4),
        ("on", "measure", 1),
        ("on", "measure", 4),
    ]
    for point in points(run):
        assert_sound(point, REQUESTS)
    for point in points(run, "on"):
        assert point["speculation"]["acceptance_length"] == pytest.approx(ACCEPTANCE_LENGTH, rel=0.15)
    manifest = json.loads((run / "manifest.json").read_text())
    for arm in ("off", "on"):
        seen = {f["what"]: f["seen"] for f in manifest["arms"][arm]["probe"]["findings"]}
        assert "llama.cpp" in seen["engine"]
        assert manifest["arms"][arm]["launch"]["command"][3] == "{port}"
        assert "listening" in (run / "servers" / f"{arm}.log").read_text()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["order"]["text"].endswith("off, on, off (anchor)")
    assert "off at 1" in summary["drift"][0]["text"]
    mark = f"ENDSWEEP_SERVER={run.resolve()}/".encode()
    environs = Path("/proc").glob("[0-9]*/environ")
    assert not [path for path in environs if mark in _environ(path)]


def _environ(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
