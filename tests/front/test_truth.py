"""The client against the embedded endpoint's own record, over a real socket: same requests, same clock.

Bounds are wide, since machines are shared; `make bench` prints how close it really is.
"""

from __future__ import annotations

import json
import statistics
import urllib.request
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from endpoints.simulator.options import SimulatorOptions
from endpoints.simulator.process import SimulatorProcess
from tests.front.conftest import Cli


@pytest.mark.parametrize("speculation", ["off", "k=4,p=0.7"])
def test_client_against_truth(cli: Cli, tmp_path: Path, speculation: str) -> None:
    levels = (1, 8, 32)
    with SimulatorProcess(SimulatorOptions(speculation=speculation)) as server:
        sweep = ["--concurrency", ",".join(map(str, levels)), "--requests", "40", "--max-tokens", "64"]
        cli("run", server.url, *sweep, "--out", "r", code=None)
        for level in levels:
            folder = tmp_path / "r" / "points" / "default" / f"c{level:05d}-t1"
            point = json.loads((folder / "point.json").read_text())
            origin, window = point["origin_monotonic_ns"], point["window"]
            t0, t1 = origin + window["t0_ns"], origin + window["t1_ns"]
            with urllib.request.urlopen(f"{server.root}/truth?from_ns={t0}&to_ns={t1}") as reply:
                span = json.load(reply)
            with urllib.request.urlopen(f"{server.root}/truth") as reply:
                true = {r["id"]: r for r in json.load(reply)["requests"]}

            rows = [r for r in pq.read_table(folder / "requests.parquet").to_pylist() if r["counted"]]
            pairs = [(row, true[int(row["request_id"].rpartition("-")[2], 16)]) for row in rows]
            assert len(pairs) == 40
            assert all(row["output_tokens"] == t["tokens"] == 64 for row, t in pairs)
            ttft = statistics.median(row["first_token_ns"] - row["sent_ns"] for row, _ in pairs) / 1e6
            true_ttft = statistics.median(t["first_token_ns"] - t["received_ns"] for _, t in pairs) / 1e6
            assert ttft == pytest.approx(true_ttft, rel=0.03, abs=8.0)
            tpot = statistics.median(row["last_token_ns"] - row["first_token_ns"] for row, _ in pairs)
            true_tpot = statistics.median(t["last_token_ns"] - t["first_token_ns"] for _, t in pairs)
            assert tpot == pytest.approx(true_tpot, rel=0.05)
            step = level * (5 if speculation != "off" else 1)  # tokens that one step may put on either side of an edge
            tokens = point["system_tps"] * window["seconds"]
            assert tokens == pytest.approx(span["tokens_in_span"], rel=0.02, abs=2 * step)
            assert span["in_flight_mean_in_span"] >= 0.9 * level
            assert point["in_flight"]["max"] <= level


def test_the_server_never_has_more_than_asked(cli: Cli) -> None:
    with SimulatorProcess(SimulatorOptions(decode_base_ms=1.0, decode_ms_per_sequence=0.02)) as server:
        cli("run", server.url, "--concurrency", "7", "--requests", "60", "--max-tokens", "8", code=None)
        with urllib.request.urlopen(f"{server.root}/truth") as reply:
            truth = json.load(reply)
    assert truth["in_flight"] == {"now": 0, "max": 7}
    assert truth["counts"]["failed"] == 0
