"""Same answers? through the command line, over embedded endpoints that answer alike, or do not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from endpoints.simulator.options import SimulatorOptions
from endpoints.simulator.process import SimulatorProcess
from tests.front.conftest import FAST, Cli

SHORT = ["--concurrency", "1", "--requests", "10", "--warmup", "1", "--max-tokens", "16"]


@pytest.fixture(scope="module")
def alike() -> Iterator[SimulatorProcess]:
    with SimulatorProcess(SimulatorOptions(**FAST, speculation="k=4,p=0.7", seed=3)) as process:
        yield process


@pytest.fixture(scope="module")
def unlike() -> Iterator[SimulatorProcess]:
    with SimulatorProcess(SimulatorOptions(**FAST, speculation="k=4,p=0.7", diverge=0.6)) as process:
        yield process


def arms(off: SimulatorProcess, on: SimulatorProcess) -> list[str]:
    return ["--arm", f"off={off.url}", "--arm", f"on={on.url}"]


def asked(run: Path) -> list[tuple[str, int]]:
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    return [(line["arm"], line["spent"]["requests"]) for line in lines if line["event"] == "equality_asked"]


def test_speculation_that_answers_alike(
    cli: Cli, simulator: SimulatorProcess, alike: SimulatorProcess, tmp_path: Path
) -> None:
    run = tmp_path / "r"
    done = cli(
        "run", *arms(simulator, alike), *SHORT, "--check-equal", "8", "--out", "r", "--json", "--strict", code=None
    )
    summary = json.loads(done.stdout)
    found = summary["equality"]
    assert (found["status"], found["arms"]["on"]["equal"], found["floor"]["equal"]) == ("equal", 8, 8)
    assert asked(run) == [("off", 16), ("on", 8)]
    rows = pq.read_table(run / "points" / "on" / "equality" / "responses.parquet").to_pylist()
    assert all(row["output_tokens"] == 16 and row["finish_reason"] == "length" and row["text"] for row in rows)
    # Apart from the load: no point has counted them, the totals have.
    point = json.loads((run / "points" / "on" / "c00001-t1" / "point.json").read_text())
    assert point["counts_all"]["issued"] <= 10 + 2 + 1
    assert summary["totals"]["requests"] == sum(p["spent"]["requests"] for p in summary["points"]) + 24
    # What is stored is not asked again; a larger count asks for what is missing.
    cli("run", str(run), "--resume", code=None)
    assert asked(run) == [("off", 16), ("on", 8)]
    done = cli("run", str(run), "--resume", "--check-equal", "10", code=None)
    assert asked(run)[2:] == [("off", 4), ("on", 2)]
    assert "on gives the same greedy answers as off to all 10 prompts" in done.stdout


def test_an_arm_that_says_something_else(
    cli: Cli, simulator: SimulatorProcess, unlike: SimulatorProcess, tmp_path: Path
) -> None:
    done = cli("run", *arms(simulator, unlike), *SHORT, "--check-equal", "20", "--out", "r", "--strict", code=1)
    assert done.stdout.startswith("on does not answer as off does: ")
    run = tmp_path / "r"
    found = json.loads((run / "equality.json").read_text())
    on = found["arms"]["on"]
    assert on["status"] == "different"
    assert on["diverged"] >= 5
    assert on["p_value"] == 2.0 ** -on["diverged"]
    assert on["first_at_character"] > 0
    for example in on["examples"]:
        assert example["base"] != example["arm"]
    assert "on does not answer as off does" in (run / "report.md").read_text().partition("##")[0]
    assert cli("report", "r", code=None).stdout.startswith("on does not answer as off does: ")


def test_limits_hold_for_the_check_too(cli: Cli, simulator: SimulatorProcess, tmp_path: Path) -> None:
    done = cli("run", *arms(simulator, simulator), *SHORT, "--check-equal", "50", "--max-total-tokens", "4000",
               "--out", "r", code=None)  # fmt: skip
    assert "off: not asked to the end whether it answers as the others do: it would take about" in done.stderr
    found = json.loads((tmp_path / "r" / "equality.json").read_text())
    assert found["failures"][0]["outcome"] == "not_asked"
    assert not (tmp_path / "r" / "points" / "off" / "equality").exists()


def test_the_plan_counts_it(cli: Cli, simulator: SimulatorProcess) -> None:
    words = ["plan", *arms(simulator, simulator), *SHORT, "--json"]
    without, plan = (json.loads(cli(*words, *more).stdout) for more in ([], ["--check-equal", "5"]))
    assert without["checks"] == []
    assert [(c["arm"], c["requests"], c["repeats"]) for c in plan["checks"]] == [("off", 10, 2), ("on", 5, 1)]
    for name in ("requests", "tokens", "seconds"):
        assert plan["totals"][name] == pytest.approx(without["totals"][name] + sum(c[name] for c in plan["checks"]))
    assert "to compare answers: 10 requests" in cli(*words[:-1], "--check-equal", "5").stdout


def test_a_bad_count_is_one_sentence(cli: Cli, simulator: SimulatorProcess) -> None:
    done = cli("plan", simulator.url, "--check-equal", "-1", code=2)
    assert "--check-equal" in done.stderr
    assert done.stderr.count("\n") == 1


def test_ctrl_c_while_asking_keeps_what_was_answered(tmp_path: Path) -> None:
    run = tmp_path / "r"
    with SimulatorProcess(SimulatorOptions(decode_base_ms=40.0)) as slow:
        words = ["run", slow.url, *SHORT, "--check-equal", "200", "--out", str(run)]
        child = subprocess.Popen(
            [sys.executable, "-m", "endsweep", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert child.stderr is not None
        for line in child.stderr:
            if "greedy requests" in line:
                break
        time.sleep(3)
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=60)
    assert child.returncode == 130, stderr
    assert "Traceback" not in stderr
    kept = pq.read_table(run / "points" / "default" / "equality" / "responses.parquet").to_pylist()
    assert kept
    assert all(row["outcome"] == "ok" for row in kept)
    (line,) = [json.loads(x) for x in (run / "journal.jsonl").read_text().splitlines() if "equality_asked" in x]
    assert line["reason"] == "it was interrupted"
    assert line["spent"]["requests"] >= len(kept)
