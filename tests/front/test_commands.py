"""Every command end to end, over a real embedded endpoint."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from endpoints.simulator.process import SimulatorProcess
from tests.front.conftest import Cli

KEY = "sk-the-right-key-0123456789"


def point(run: Path, arm: str, level: int, trial: int = 1) -> dict:
    return json.loads((run / "points" / arm / f"c{level:05d}-t{trial}" / "point.json").read_text())


def journal(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]


def quick(simulator: SimulatorProcess, out: str, *more: str) -> list[str]:
    return ["run", simulator.url, "--max-tokens", "8", "--requests", "12", "--out", out, *more]


def test_run_writes_the_folder(cli: Cli, simulator: SimulatorProcess, tmp_path: Path) -> None:
    arms = ["--arm", f"one={simulator.url}", "--arm", f"two={simulator.url}"]
    done = cli("run", *arms, "--concurrency", "1,4", "--requests", "40", "--max-tokens", "8", "--out", "r", "--json")
    run = tmp_path / "r"
    summary = json.loads(done.stdout)
    assert summary == json.loads((run / "summary.json").read_text())
    for arm in ("one", "two"):
        for level in (1, 4):
            p = point(run, arm, level)
            assert p["counts"]["completed"] == 40
            assert p["output_tokens"]["total"] == 320
            assert p["in_flight"]["max"] <= level
            rows = pq.read_table(run / "points" / arm / f"c{level:05d}-t1" / "requests.parquet").to_pylist()
            assert sum(row["counted"] for row in rows) == 40
            assert len({(row["prompt_id"], row["salt"]) for row in rows}) == len(rows)
    with (run / "points.csv").open() as table:
        assert len(list(csv.DictReader(table))) == 4
    assert (run / "report.html").stat().st_size > 100_000
    assert (run / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert "<redacted>" not in (run / "sweep.yaml").read_text()


def test_every_order_is_the_same_in_both_arms(cli: Cli, simulator: SimulatorProcess, tmp_path: Path) -> None:
    arms = ["--arm", f"a={simulator.url}", "--arm", f"b={simulator.url}"]
    cli("run", *arms, "--concurrency", "1", "--requests", "12", "--max-tokens", "4", "--out", "r")
    orders, salts = [], []
    for arm in ("a", "b"):
        rows = pq.read_table(tmp_path / "r" / "points" / arm / "c00001-t1" / "requests.parquet").to_pylist()
        counted = [row for row in rows if row["counted"]]
        orders.append([row["prompt_id"] for row in counted])
        salts.append({row["salt"] for row in counted})
    assert orders[0] == orders[1]
    assert not salts[0] & salts[1]


def test_the_key_is_sent_and_shows_nowhere(cli: Cli, guarded: SimulatorProcess, tmp_path: Path) -> None:
    done = cli(*quick(guarded, "r", "--concurrency", "1", "--key-env", "K"), env={"K": KEY})
    assert KEY not in done.stdout + done.stderr
    for path in (tmp_path / "r").rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path
            if path.suffix == ".parquet":
                assert KEY not in str(pq.read_table(path).to_pylist()), path
    assert "env: K" in (tmp_path / "r" / "sweep.yaml").read_text()


def test_kill_in_the_third_point_then_resume(cli: Cli, simulator: SimulatorProcess, tmp_path: Path) -> None:
    run = tmp_path / "r"
    words = quick(simulator, str(run), "--concurrency", "1,2,3,4")
    child = subprocess.Popen(
        [sys.executable, "-m", "endsweep", *words, "--warmup", "200"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        end = time.monotonic() + 60
        while sum(line["event"] == "point_started" for line in _journal_so_far(run)) < 3:
            assert time.monotonic() < end, "the third point never started"
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
        assert child.stderr is not None
        child.stderr.close()
    first = [(run / "points" / "default" / f"c{c:05d}-t1" / "point.json").read_bytes() for c in (1, 2)]
    cli(*words, "--warmup", "200", "--resume")
    assert [(run / "points" / "default" / f"c{c:05d}-t1" / "point.json").read_bytes() for c in (1, 2)] == first
    finished = [line["concurrency"] for line in journal(run) if line["event"] == "point_finished"]
    assert finished == [1, 2, 3, 4]
    assert all(point(run, "default", c)["status"] == "finished" for c in (1, 2, 3, 4))

    # Levels may be added; a changed workload is refused by name; nothing is lost by the refusal.
    cli(*quick(simulator, str(run), "--concurrency", "1..8", "--warmup", "200"), "--resume")
    assert point(run, "default", 8)["counts"]["completed"] == 12
    refused = cli("run", simulator.url, "--max-tokens", "9", "--requests", "12", "--warmup", "200",
                  "--concurrency", "1..8", "--out", str(run), "--resume", code=2)  # fmt: skip
    assert "workload.max_tokens" in refused.stderr
    assert "8" in refused.stderr
    assert point(run, "default", 8)["counts"]["completed"] == 12


@pytest.mark.parametrize("line", ['{"schema_version": 1, "event": "point_finished"}', '{"text": "x"}', "?"])
def test_a_bad_journal_is_refused_by_all_that_read_it(
    line: str, cli: Cli, simulator: SimulatorProcess, tmp_path: Path
) -> None:
    words = quick(simulator, "r", "--concurrency", "1")
    cli(*words)
    path = tmp_path / "r" / "journal.jsonl"
    path.write_text(path.read_text() + line + "\n")
    number = len(path.read_text().splitlines())
    for command in ([*words, "--resume"], ["report", "r"]):
        said = cli(*command, code=2).stderr.splitlines()[-1]
        assert f"journal.jsonl is corrupt: line {number} " in said, said


def _journal_so_far(run: Path) -> list[dict]:
    try:
        lines = (run / "journal.jsonl").read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_cleanly(number: int, code: int, simulator: SimulatorProcess, tmp_path: Path) -> None:
    run = tmp_path / "r"
    words = ["run", simulator.url, "--concurrency", "1,2", "--seconds", "1", "--max-tokens", "8", "--out", str(run)]
    child = subprocess.Popen(
        [sys.executable, "-m", "endsweep", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 60
    while sum(line["event"] == "point_started" for line in _journal_so_far(run)) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(child.pid, number)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == code, stderr
    assert "Traceback" not in stderr
    assert point(run, "default", 1)["status"] == "finished"
    assert [line["event"] for line in journal(run)][-1] == "interrupted"
    assert (run / "report.html").exists()


def test_limits_skip_points_and_say_so(cli: Cli, simulator: SimulatorProcess, tmp_path: Path) -> None:
    done = cli(*quick(simulator, "r", "--concurrency", "1,64", "--max-total-tokens", "6000"))
    skipped = [line for line in journal(tmp_path / "r") if line["event"] == "point_skipped"]
    assert [line["concurrency"] for line in skipped] == [64]
    assert "limit" in skipped[0]["reason"]
    assert "limit" in done.stderr + done.stdout


def test_strict_and_the_exit_code(cli: Cli, simulator: SimulatorProcess) -> None:
    few = ["run", simulator.url, "--max-tokens", "4", "--requests", "4", "--concurrency", "1"]
    done = cli(*few, code=1)  # too few for a valid point, and the arm has no other
    assert "too_few" in done.stdout


def test_report_again_and_of_several(cli: Cli, simulator: SimulatorProcess, tmp_path: Path) -> None:
    cli(*quick(simulator, "a", "--concurrency", "1,2"))
    cli(*quick(simulator, "b", "--concurrency", "1,2", "--seed", "7"))
    before = (tmp_path / "a" / "points.csv").read_text()
    (tmp_path / "a" / "report.html").unlink()
    cli("report", "a")
    assert (tmp_path / "a" / "report.html").exists()
    assert (tmp_path / "a" / "points.csv").read_text() == before
    cli("report", "a", "b", "--out", "both")
    assert len(json.loads((tmp_path / "both" / "summary.json").read_text())["points"]) == 4
    into_the_first = json.loads(cli("report", "a", "b", "--out", "a", "--json").stdout)
    assert len(into_the_first["points"]) == 4


def test_probe(cli: Cli, simulator: SimulatorProcess) -> None:
    found = json.loads(cli("probe", simulator.url, "--json").stdout)
    assert found["profile"]["endpoint"]["model"] == "sim"
    assert found["round_trip_ms"] > 0
    assert {f["what"] for f in found["findings"]} >= {"/models", "/chat/completions", "/completions"}
    assert "endpoint:" in cli("probe", simulator.url).stdout


def test_plan_sends_nothing(cli: Cli) -> None:
    plan = json.loads(cli("plan", "http://127.0.0.1:9", "--concurrency", "1..64", "--requests", "40", "--json").stdout)
    assert [p["concurrency"] for p in plan["points"]] == [1, 2, 4, 8, 16, 32, 64]
    assert plan["regions"]["low_concurrency"] == [2, 5]
    assert plan["totals"]["requests"] > 280
    assert {"arm", "concurrency", "region", "seconds", "requests", "passes", "reason"} <= set(plan["points"][0])
    assert "points" in cli("plan", "http://127.0.0.1:9", "--concurrency", "1,2").stdout


def test_profiles(cli: Cli, tmp_path: Path) -> None:
    names = {row["name"] for row in json.loads(cli("profiles", "--json").stdout)}
    assert names == {"chat-short", "long-prompt", "long-answer", "code"}
    (tmp_path / "s.yaml").write_text(cli("profiles", "new", "sweep").stdout)
    cli("plan", "s.yaml")


@pytest.mark.parametrize("command", ["", "run", "plan", "probe", "report", "demo", "simulate", "selftest", "profiles"])
def test_help(cli: Cli, command: str) -> None:
    said = cli(*filter(None, [command]), "--help").stdout
    assert "Usage" in said
    if command:
        assert "Example" in said


def test_hostile_cases_are_listed_and_served(cli: Cli) -> None:
    names = [line.split()[0] for line in cli("simulate", "--hostile", "list").stdout.splitlines()]
    assert len(names) > 80 and "good" in names
    child = subprocess.Popen(
        [sys.executable, "-m", "endsweep", "simulate", "--hostile", "good"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        summary = json.loads(cli("run", url, "--concurrency", "1", "--requests", "12", "--json", code=None).stdout)
        assert summary["points"][0]["counts"]["completed"] == 12
    finally:
        child.terminate()
        child.communicate(timeout=20)
    assert "good" in cli("simulate", "--hostile", "goood", code=2).stderr
