"""Sweeps through the command line, and what their folders hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def sweep(folder: Path, spec: str) -> Path:
    """Run a sweep file's text; the run's folder. It may end with 1: on a busy machine no point may be valid."""
    done, run = command(folder, spec)
    assert done.returncode in (0, 1), done.stderr
    return run


def command(folder: Path, spec: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sweep.yaml").write_text(spec)
    run = folder / "run"
    words = [sys.executable, "-m", "endsweep", "run", str(folder / "sweep.yaml"), "--out", str(run), "--json"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done, run


def points(run: Path, arm: str = "*") -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(run.glob(f"points/{arm}/*/point.json"))]


def rows(run: Path, arm: str = "*", load: str = "*") -> list[dict[str, Any]]:
    """Every request of every point, warmup and filler too."""
    paths = sorted(run.glob(f"points/{arm}/{load}/requests.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def verdicts(point: dict[str, Any]) -> dict[str, str]:
    """Severity by code."""
    return {v["code"]: v["severity"] for v in point["verdicts"]}


def faults(point: dict[str, Any]) -> dict[str, str]:
    """The verdicts without those that only say that this machine is busy: a client that is late sees bursts too."""
    found = verdicts(point)
    if found.pop("client_bound", None) == "invalid":
        found.pop("buffered", None)
    return found


def assert_sound(point: dict[str, Any], requests: int, but: frozenset[str] = frozenset()) -> None:
    """It ran to its end, nothing failed, nothing makes it invalid (`but`: verdicts this engine may earn)."""
    where = (point["arm"], point["concurrency"], point["verdicts"], point["errors"])
    assert "invalid" not in {code: how for code, how in faults(point).items() if code not in but}.values(), where
    assert point["status"] == "finished", where
    assert point["counts"] == point["counts"] | {"issued": requests, "completed": requests, "failed": 0}, where
    assert point["counts_all"]["failed"] == 0, where
    assert point["in_flight"]["max"] <= point["concurrency"], where
