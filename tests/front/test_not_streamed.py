"""An endpoint declared not to stream is measured for what can be known, and nothing is invented."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from endpoints.simulator.process import SimulatorProcess
from tests.front.conftest import Cli

SPEC = """\
name: whole replies
endpoint: {{url: "{url}", api: {api}, stream: false}}
workload: {{use: chat-short, max_tokens: 8}}
load: {{concurrency: [1, 2], requests: 40}}
"""


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_not_streamed(cli: Cli, simulator: SimulatorProcess, tmp_path: Path, api: str) -> None:
    (tmp_path / "s.yaml").write_text(SPEC.format(url=simulator.url, api=api))
    summary = json.loads(cli("run", "s.yaml", "--out", "r", "--json").stdout)
    for point in summary["points"]:
        # A machine that others keep busy makes the client late.
        assert {v["code"] for v in point["verdicts"] if v["severity"] == "invalid"} <= {"client_bound"}
        assert point["counts"]["completed"] == 40
        assert point["output_tokens"]["total"] == 320
        assert point["token_source"] == "usage"
        assert point["ttft_ms"]["n"] == point["tpot_ms"]["n"] == point["ttft_visible_ms"]["n"] == 0
        assert point["tps_per_user"] is None
        assert point["system_tps"] > 0
        assert point["e2e_latency_ms"]["n"] == 40
        assert "not_streamed" in {v["code"] for v in point["verdicts"]}
        assert not {v["code"] for v in point["verdicts"]} & {"buffered", "too_few"}
    assert summary["frontier"]["all"] == []
    rows = pq.read_table(tmp_path / "r" / "points" / "default" / "c00001-t1" / "requests.parquet").to_pylist()
    assert all(row["first_token_ns"] is None and row["chunks"] == 1 for row in rows if row["outcome"] == "ok")
    assert (tmp_path / "r" / "report.html").exists()
