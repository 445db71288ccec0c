"""Memory while a point is stored and analysed: it does not grow with the fragments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_A_REQUEST = 1000  # bytes of memory that its row may take, all columns and what is computed of them


def injected(chunks: int) -> Any:
    """Records as of 1,024 streams, from where the load hands them over to `point.json`, in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.analysis", f"--chunks={chunks}", "--streams=1024", "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=110)
    return json.loads(done.stdout)


def test_four_times_the_fragments_take_no_more_memory() -> None:
    few, many = injected(1_500_000), injected(6_000_000)
    assert many["chunks"] > 3.9 * few["chunks"]
    rows = (many["requests"] - few["requests"]) * _A_REQUEST
    grown = many["peak_bytes"] - few["peak_bytes"] - rows
    # Kept as tightly as can be, the further fragments would take 8 bytes each: 36 MB.
    assert grown < 16e6, (few, many)
    assert many["file_bytes"] < 4 * many["chunks"]
