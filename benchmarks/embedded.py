"""How exact whole sweeps are against the embedded endpoint's own record, and how fast virtual time runs."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from endpoints.simulator.options import SimulatorOptions
from endpoints.simulator.process import SimulatorProcess
from profiles.loading import load_sweep
from sweeps.virtual import virtual_sweep

LEVELS = (1, 8, 32)
POINTS = 400


def sweeps(runs: int) -> None:
    """Whole sweeps, against what the embedded endpoint recorded of the same requests."""
    print("\nWhole sweeps of the embedded endpoint, error against its own record:")
    print(f"{'arm':>4} {'users':>5} {'ttft p50':>24} {'tpot p50':>24} {'tokens/s':>24} {'in flight / C':>14}")
    for arm, speculation in (("off", "off"), ("on", "k=4,p=0.7")):
        rows = [accuracy(speculation) for _ in range(runs)]
        for level in LEVELS:
            cells = [spread([row[level][i] for row in rows]) for i in range(3)]
            held = statistics.median(row[level][3] for row in rows)
            print(f"{arm:>4} {level:>5} {cells[0]:>24} {cells[1]:>24} {cells[2]:>24} {held:>14.4f}")


def virtual_time() -> None:
    """Many points in virtual time, and some of them again."""
    seconds, same = virtual(POINTS)
    print(f"\nVirtual time: {POINTS} points of 200 requests in {seconds:.1f} s; the same again: {same}")


def spread(values: list[float]) -> str:
    """Median and range of relative errors."""
    return f"{statistics.median(values):+.2%} [{min(values):+.2%} {max(values):+.2%}]"


def accuracy(speculation: str) -> dict[int, tuple[float, float, float, float]]:
    """One sweep against one embedded endpoint: per level the errors of ttft p50, tpot p50, system_tps; mean load."""
    with tempfile.TemporaryDirectory() as folder, SimulatorProcess(SimulatorOptions(speculation=speculation)) as server:
        run = Path(folder) / "run"
        levels = ",".join(map(str, LEVELS))
        command = [sys.executable, "-m", "endsweep", "run", server.url, "--concurrency", levels, "--requests", "60"]
        subprocess.run([*command, "--max-tokens", "64", "--out", str(run)], check=True, capture_output=True)
        return {level: compared(server, run / f"points/default/c{level:05d}-t1", level) for level in LEVELS}


def compared(server: SimulatorProcess, folder: Path, level: int) -> tuple[float, float, float, float]:
    point = json.loads((folder / "point.json").read_text())
    origin, window = point["origin_monotonic_ns"], point["window"]
    t0, t1 = origin + window["t0_ns"], origin + window["t1_ns"]
    with urllib.request.urlopen(f"{server.root}/truth?from_ns={t0}&to_ns={t1}") as reply:
        truth = json.load(reply)
    true = {r["id"]: r for r in truth["requests"] if r["outcome"] == "completed"}
    rows = pq.read_table(folder / "requests.parquet").to_pylist()
    numbered = [(row, int(row["request_id"].rpartition("-")[2], 16)) for row in rows if row["request_id"]]
    pairs = [(row, true[number]) for row, number in numbered if number in true]
    ttft = ratio(
        [row["first_token_ns"] - row["sent_ns"] for row, _ in pairs],
        [t["first_token_ns"] - t["received_ns"] for _, t in pairs],
    )
    tpot = ratio(
        [row["last_token_ns"] - row["first_token_ns"] for row, _ in pairs],
        [t["last_token_ns"] - t["first_token_ns"] for _, t in pairs],
    )
    tps = point["system_tps"] / (truth["tokens_in_span"] / window["seconds"]) - 1
    return ttft, tpot, tps, truth["in_flight_mean_in_span"] / level


def ratio(ours: list[int], theirs: list[int]) -> float:
    return float(np.median(ours) / np.median(theirs) - 1)


def virtual(points: int) -> tuple[float, bool]:
    """Seconds for a virtual sweep of so many points, and whether a tenth of it comes out the same again."""
    engine = SimulatorOptions().engine_config()

    def swept(trials: int) -> list[dict[str, Any]]:
        load = {"concurrency": [1, 4, 8, 16, 32], "requests": 200, "trials": trials}
        arms = {"a": {"url": "http://127.0.0.1:1", "model": "sim"}}
        document = {"arms": arms, "workload": {"use": "chat-short", "max_tokens": 64}, "load": load}
        return virtual_sweep(load_sweep(None, document, {}), {"a": engine})

    began = time.perf_counter()
    first = swept(points // 5)
    seconds = time.perf_counter() - began
    again = swept(max(1, points // 50))
    key = ("system_tps", "ttft_ms", "tpot_ms", "intervals", "verdicts", "window")
    by_name = {(p["concurrency"], p["trial"]): [p[k] for k in key] for p in first}
    return seconds, all(by_name[p["concurrency"], p["trial"]] == [p[k] for k in key] for p in again)
