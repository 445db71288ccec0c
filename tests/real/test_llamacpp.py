"""A real llama.cpp server, speculation off and on, swept through the command line.

Counts are asserted, never speed: the machine is shared.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.real.engines import ACCEPTANCE_LENGTH, DRAFT_TOKENS, Engine

LEVELS, REQUESTS, TOKENS = [1, 4, 8], 40, 32
SPEC = """\
name: llama.cpp
endpoint: {{model: tiny}}
arms:
  off: {{url: "{off}"}}
  on:
    url: "{on}"
    speculation: {{method: draft, draft_tokens: {draft_tokens}}}
workload: {{use: chat-short, max_tokens: {tokens}}}
load: {{concurrency: {levels}, requests: {requests}}}
"""


@pytest.fixture(scope="module")
def swept(llamacpp: tuple[Engine, Engine], tmp_path_factory: pytest.TempPathFactory) -> Path:
    off, on = llamacpp
    folder = tmp_path_factory.mktemp("real")
    spec, run = folder / "sweep.yaml", folder / "run"
    spec.write_text(
        SPEC.format(off=off.url, on=on.url, draft_tokens=DRAFT_TOKENS, tokens=TOKENS, levels=LEVELS, requests=REQUESTS)
    )
    done = subprocess.run(
        [sys.executable, "-m", "endsweep", "run", str(spec), "--out", str(run), "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["totals"]["points"] == 2 * len(LEVELS)
    return run


def points(run: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(run.glob("points/*/*/point.json"))]


@pytest.mark.timeout(900)
def test_every_point_is_valid_and_no_request_failed(swept: Path) -> None:
    assert len(points(swept)) == 2 * len(LEVELS)
    for point in points(swept):
        serious = [v for v in point["verdicts"] if v["severity"] == "invalid" and v["code"] != "client_bound"]
        assert not serious, (point["arm"], point["concurrency"], serious)
        assert point["counts"] == point["counts"] | {"issued": REQUESTS, "completed": REQUESTS, "failed": 0}
        assert point["counts_all"]["failed"] == 0
        assert point["in_flight"]["max"] <= point["concurrency"]


@pytest.mark.timeout(900)
def test_tokens_are_the_servers_own(swept: Path) -> None:
    for point in points(swept):
        assert point["token_source"] == "usage"
        assert point["output_tokens"] == {"mean": TOKENS, "total": TOKENS * REQUESTS}
        assert point["peak_tps"] >= point["system_tps"] > 0


@pytest.mark.timeout(900)
def test_a_server_that_closes_unsaid_costs_no_request(swept: Path) -> None:
    tables = [pq.read_table(path).to_pylist() for path in sorted(swept.glob("points/*/*/requests.parquet"))]
    rows = [row for table in tables for row in table]
    again = [row for row in rows if row["attempts"] > 1]
    assert again, "llama.cpp closes after each stream: the first reuse must have died and been sent again"
    assert all(row["outcome"] == "ok" for row in again)
    journal = (swept / "journal.jsonl").read_text()
    assert "use a fresh one each" in journal


@pytest.mark.timeout(900)
def test_the_on_arm_speculates_as_long_as_it_was_told(swept: Path, llamacpp: tuple[Engine, Engine]) -> None:
    off, on = llamacpp
    drafts, accepted = on.metric("spec_decode_num_drafts_total"), on.metric("spec_decode_num_accepted_tokens_total")
    assert 1 + accepted / drafts == pytest.approx(ACCEPTANCE_LENGTH, rel=0.06)
    assert off.metric("spec_decode_num_drafts_total") == 0


@pytest.mark.timeout(900)
def test_the_folder_is_whole(swept: Path) -> None:
    for name in ("sweep.yaml", "manifest.json", "journal.jsonl", "summary.json", "report.html", "report.md"):
        assert (swept / name).stat().st_size > 0, name
    for name in ("points.csv", "frontier.png", "frontier.svg"):
        assert (swept / name).stat().st_size > 0, name
    summary = json.loads((swept / "summary.json").read_text())
    assert set(summary["frontier"]["arms"]) == {"off", "on"}
    assert summary["comparison"] is not None
