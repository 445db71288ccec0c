"""The command line over a real embedded endpoint in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from endpoints.simulator.options import SimulatorOptions
from endpoints.simulator.process import SimulatorProcess

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
# Quick, and deterministic enough for counts: nothing here asserts a speed.
FAST = {"decode_base_ms": 1.0, "decode_ms_per_sequence": 0.05, "prefill_base_ms": 1.0, "prefill_ms_per_token": 0.01}


@pytest.fixture(scope="session")
def simulator() -> Iterator[SimulatorProcess]:
    with SimulatorProcess(SimulatorOptions(**FAST)) as process:
        yield process


@pytest.fixture(scope="session")
def guarded() -> Iterator[SimulatorProcess]:
    """An endpoint that asks for the key in ENDSWEEP_TEST_SERVER_KEY."""
    os.environ["ENDSWEEP_TEST_SERVER_KEY"] = "sk-the-right-key-0123456789"
    with SimulatorProcess(SimulatorOptions(**FAST, api_key_env="ENDSWEEP_TEST_SERVER_KEY")) as process:
        yield process


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    def run(*words: str, env: dict[str, str] | None = None, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "endsweep", *words],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "120", "XDG_STATE_HOME": str(tmp_path / "state"), **(env or {})},
            stdin=subprocess.DEVNULL,
        )
        # On a machine that others keep busy the client is late, and says so: no fault of what is tested here.
        busy = code == 0 and done.returncode == 1 and "client_bound" in done.stdout + done.stderr
        if code is not None and not busy:
            assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    return run
