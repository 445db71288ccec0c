"""The endpoint as a process: ready line, clean stops, no life without its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import orjson
import pytest

from endpoints.simulator.process import ROOT, SimulatorOptions, SimulatorProcess

COMMAND = [sys.executable, "-m", "endpoints.simulator"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as response:
        body: bytes = response.read()
        return body


def test_it_serves_with_its_options_and_stops_with_the_block() -> None:
    with SimulatorProcess(SimulatorOptions(model="a b", speculation="k=2,p=0.5", burst=True)) as simulator:
        assert simulator.url == simulator.root + "/v1"
        assert orjson.loads(get(simulator.url + "/models"))["data"][0]["id"] == "a b"
        truth = orjson.loads(get(simulator.root + "/truth"))
        assert truth["config"]["speculation"]["draft_tokens"] == 2 and truth["options"]["burst"] is True
    assert simulator.stop() == 0
    with pytest.raises(urllib.error.URLError):
        get(simulator.root + "/health")


def test_it_says_why_it_did_not_start() -> None:
    with pytest.raises(RuntimeError, match=r"ended before it was ready: .*SURELY_NOT_SET_ANYWHERE"):
        SimulatorProcess(SimulatorOptions(api_key_env="SURELY_NOT_SET_ANYWHERE")).__enter__()
    with SimulatorProcess() as taken:
        port = int(taken.root.rsplit(":", 1)[1])
        with pytest.raises(RuntimeError, match="address already in use"):
            SimulatorProcess(SimulatorOptions(port=port)).__enter__()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_line_when_ready_and_a_signal_ends_it_cleanly_with_a_stream_open(number: int) -> None:
    child = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    try:
        assert child.stdout is not None and child.stderr is not None
        url = child.stdout.readline().decode()
        assert url.startswith("http://127.0.0.1:") and url.endswith("/v1\n")
        ask = orjson.dumps({"prompt": "x", "max_tokens": 100_000, "stream": True})
        stream = urllib.request.urlopen(url.strip() + "/completions", data=ask, timeout=5)
        stream.readline()
        child.send_signal(number)
        assert child.wait(10) == 0
        assert child.stdout.read() == b"" and child.stderr.read() == b""
        stream.close()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        child.stderr.close()


def test_it_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "import time; from endpoints.simulator.process import *\n"
        "with SimulatorProcess() as s: print(s.root, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=ENVIRONMENT, cwd=tmp_path)
    try:
        assert parent.stdout is not None
        root = parent.stdout.readline().decode().strip()
        assert get(root + "/health") == b""
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    deadline = time.monotonic() + 20
    while True:
        try:
            get(root + "/health")
        except OSError:
            break
        assert time.monotonic() < deadline, "it still answers"
        time.sleep(0.05)
