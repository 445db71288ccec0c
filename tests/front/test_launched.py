"""Arms whose servers are started by the sweep, through the command line: blocks, anchors, crashes, kills, resuming."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from profiles.loading import load_sweep
from sweeps.session import prepare

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "tests" / "endpoints" / "misbehaving.py"
Cli = Callable[..., "subprocess.CompletedProcess[str]"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def launch(*words: str, **keys: Any) -> dict[str, Any]:
    command = [sys.executable, str(SERVER), "{port}", *words]
    return {"launch": {"command": command, "stop_seconds": 0.5, "ready_seconds": 20, **keys}}


def spec(folder: Path, arms: dict[str, Any], **sections: Any) -> Path:
    """A sweep file (YAML is a superset of JSON)."""
    document = {
        "name": "launched",
        "arms": arms,
        "workload": {"use": "chat-short", "max_tokens": 3},
        "load": {"concurrency": [1, 2], "requests": 10, "warmup": 2},
        **sections,
    }
    path = folder / "sweep.yaml"
    path.write_text(json.dumps(document))
    return path


def journal(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]


def of(run: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in journal(run) if line["event"] == event]


def points(run: Path, arm: str) -> dict[str, dict[str, Any]]:
    found = sorted((run / "points" / arm).glob("*/point.json"))
    return {path.parent.name: json.loads(path.read_text()) for path in found}


def belonging(run: Path) -> list[int]:
    """Processes of servers that this run started."""
    mark, found = f"ENDSWEEP_SERVER={run.resolve()}/".encode(), []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if mark in (process / "environ").read_bytes():
                    found.append(int(process.name))
            except OSError:
                continue
    return found


def nothing_left(run: Path) -> bool:
    end = time.monotonic() + 15
    while time.monotonic() < end:
        if not belonging(run):
            return True
        time.sleep(0.05)
    return False


def test_arms_run_in_blocks_one_server_at_a_time(cli: Cli, tmp_path: Path) -> None:
    path = spec(tmp_path, {"off": launch(), "on": launch("deaf")})
    plan = json.loads(cli("plan", str(path), "--json").stdout)
    turns = [(p["block"], p["arm"], p["concurrency"], p["kind"]) for p in plan["points"]]
    assert turns == [
        (1, "off", 1, "measure"),
        (1, "off", 2, "measure"),
        (2, "on", 1, "measure"),
        (2, "on", 2, "measure"),
        (3, "off", 1, "anchor"),
    ]
    assert "blocks" in cli("plan", str(path)).stdout
    run = tmp_path / "run"
    done = cli("run", str(path), "--out", str(run), "--json")
    summary = json.loads(done.stdout)
    started = [(line["event"], line["arm"]) for line in journal(run) if line["event"].startswith("server_")]
    assert started == [
        (event, arm) for arm in ("off", "on", "off") for event in ("server_starting", "server_ready", "server_stopped")
    ]
    assert summary["order"]["blocks"] is True
    assert summary["order"]["text"].endswith("off, on, off (anchor)")
    (drift,) = summary["drift"]
    assert (drift["arm"], drift["concurrency"]) == ("off", 1)
    both = [p["valid"] for p in summary["points"] if (p["arm"], p["concurrency"]) == ("off", 1)]
    assert (drift["metrics"]["system_tps"] is not None) == all(both)  # on a busy machine they may not be valid
    page = (run / "report.html").read_text()
    assert "arms ran in blocks" in page
    assert "measured again at the end" in page
    assert set(points(run, "off")) == {"c00001-t1", "c00002-t1", "anchor-c00001-t1"}
    assert points(run, "off")["anchor-c00001-t1"]["kind"] == "anchor"
    curve = summary["frontier"]["arms"].get("off", [])  # on a busy machine points may be missing
    assert all(row["trials"] == 1 and row["concurrency"] in (1, 2) for row in curve)
    manifest = json.loads((run / "manifest.json").read_text())
    arm = manifest["arms"]["on"]
    assert arm["launch"]["command"][-1] == "deaf"
    assert arm["model"] == "odd"
    assert "/version says 7" in str(arm["probe"]["findings"])
    assert str(SERVER) in arm["started"]["command"]
    assert (run / "servers" / "on.log").read_text().startswith("starting deaf")
    assert belonging(run) == []


def answers(run: Path, arm: str) -> list[tuple[int, int]]:
    rows = pq.read_table(run / "points" / arm / "equality" / "responses.parquet").to_pylist()
    return sorted({(row["repeat"], row["start"]) for row in rows})


def test_the_base_answers_again_after_a_restart(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    workload = {"use": "chat-short", "max_tokens": 3, "salt": False}
    path = spec(tmp_path, {"off": launch(), "on": launch()}, check_equal=2, workload=workload)
    cli("run", str(path), "--out", str(run), code=None)
    asked = [(line["arm"], line["spent"]["requests"]) for line in of(run, "equality_asked")]
    assert asked == [("off", 2), ("on", 2), ("off", 2)]
    assert (answers(run, "off"), answers(run, "on")) == ([(1, 1), (2, 2)], [(1, 1)])
    assert len(of(run, "server_ready")) == 3  # the anchor's was up anyway
    found = json.loads((run / "equality.json").read_text())
    assert (found["status"], found["floor"]["restarted"]) == ("equal", True)
    told = [v["evidence"] for v in points(run, "on")["c00001-t1"]["verdicts"] if v["code"] == "reused_prompts"]
    assert ["earlier points" in text for text in told] == [False]
    assert "the check for equal answers sent" in told[0]


def test_without_an_anchor_the_base_comes_up_again_for_that(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    load = {"concurrency": 1, "requests": 10, "warmup": 1, "anchor": False}
    path = spec(tmp_path, {"off": launch(), "on": launch()}, check_equal=2, load=load)
    cli("run", str(path), "--out", str(run), code=None)
    assert [line["arm"] for line in of(run, "server_ready")] == ["off", "on", "off"]
    assert answers(run, "off") == [(1, 1), (2, 2)]
    cli("run", str(run), "--resume", code=None)
    assert len(of(run, "server_ready")) == 3
    assert belonging(run) == []
    # More prompts than before: what is missing is asked, and asked again of another start.
    cli("run", str(run), "--resume", "--check-equal", "4", code=None)
    assert [line["arm"] for line in of(run, "server_ready")][3:] == ["off", "on", "off"]
    assert answers(run, "off") == [(1, 1), (1, 3), (2, 2), (2, 4)]
    assert belonging(run) == []


def test_a_server_that_does_not_come_up_costs_its_own_arm_only(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arms = {"bad": launch("crash"), "hangs": launch("hang", ready_seconds=0.5), "good": launch()}
    done = cli("run", str(spec(tmp_path, arms)), "--out", str(run), code=1)
    assert "ValueError: no such model" in done.stdout
    assert "it was not ready within 0.5 s" in done.stdout
    assert len(points(run, "good")) == 2
    assert {line["arm"] for line in of(run, "server_failed")} == {"bad", "hangs"}
    assert len(of(run, "point_skipped")) == 2 * 2 + 1  # the anchor is the first arm's
    assert belonging(run) == []


def test_a_server_that_dies_on_the_first_real_request(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = cli("run", str(spec(tmp_path, {"a": launch("dies_on_request")})), "--out", str(run), code=1)
    assert "at the first real request it ended with exit code 3" in done.stdout
    assert "out of memory in kernel 42" in done.stdout


def test_a_crash_in_a_point_ends_that_arm_and_the_others_go_on(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # One request before the run, then 12 or 13 in the first point: it dies in the second.
    arms = {"a": launch("crash_after", "20"), "b": launch()}
    path = spec(tmp_path, arms, load={"concurrency": [1, 2, 4], "requests": 10, "warmup": 2})
    done = cli("run", str(path), "--out", str(run), code=0)
    mine = points(run, "a")
    assert mine["c00001-t1"]["status"] == "finished"
    cut = mine["c00002-t1"]
    assert cut["status"] == "interrupted"
    assert "RuntimeError: out of memory in kernel 42" in cut["verdicts"][0]["evidence"]
    (failed,) = of(run, "point_failed")
    assert (failed["arm"], failed["concurrency"]) == ("a", 2)
    assert "exit code 3" in failed["reason"]
    assert [line["concurrency"] for line in of(run, "point_skipped")] == [4, 2]
    assert all(p["status"] == "finished" for p in points(run, "b").values())
    assert len(points(run, "b")) == 3
    assert "kernel 42" in done.stdout
    assert belonging(run) == []


def test_resuming_starts_no_server_for_a_block_that_is_finished(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    path = spec(tmp_path, {"a": launch(), "b": launch("deaf")}, load={"concurrency": [1, 2], "requests": 10})
    cli("run", str(path), "--out", str(run))
    again = cli("run", str(run), "--resume")
    assert "starting its server" not in again.stderr
    # The last point of the second block is lost, as by a kill.
    for file in (run / "points" / "b" / "c00002-t1").iterdir():
        file.unlink()
    before = len(journal(run))
    again = cli("run", str(run), "--resume")
    events = [(line["event"], line["arm"]) for line in journal(run)[before:] if line["event"].startswith("server_")]
    assert events == [("server_starting", "b"), ("server_ready", "b"), ("server_stopped", "b")]
    assert json.loads((run / "manifest.json").read_text())["arms"]["a"]["started"]["ready_s"] > 0
    changed = spec(tmp_path, {"a": launch(), "b": launch("well")}, load={"concurrency": [1, 2], "requests": 10})
    refused = cli("run", str(changed), "--out", str(run), "--resume", code=2)
    assert "arms.b.launch: was" in refused.stderr


def test_no_server_is_started_for_answers_when_the_limit_is_used_up(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    path = spec(tmp_path, {"a": launch(), "b": launch("deaf")}, load={"concurrency": [1], "requests": 10})
    cli("run", str(path), "--out", str(run))
    before = len(journal(run))
    cli("run", str(run), "--resume", "--check-equal", "2", "--max-total-tokens", "1", code=None)
    lines = journal(run)[before:]
    assert not [line for line in lines if line["event"].startswith("server_")]
    asked = {line["arm"]: line["reason"] for line in lines if line["event"] == "equality_asked"}
    assert asked == dict.fromkeys("ab", "the limit of 1 tokens is used up")
    assert json.loads((run / "equality.json").read_text())["status"] == "unknown"


def test_a_point_is_skipped_when_answers_have_taken_what_it_needs(cli: Cli, tmp_path: Path) -> None:
    run, arms = tmp_path / "run", {"a": launch(), "b": launch("deaf")}
    load = {"concurrency": [1], "requests": 10, "anchor": False}
    planned = prepare(load_sweep(spec(tmp_path, arms, load=load), {}, {}), {}, keys=False).points
    enough = max(p.input_tokens + p.output_tokens for p in planned)
    path = spec(tmp_path, arms, load=load, check_equal=2, limits={"tokens": enough})
    cli("run", str(path), "--out", str(run), code=1)
    assert not of(run, "point_started")
    reasons = [line["reason"] for line in of(run, "point_skipped")]
    assert len(reasons) == 2
    assert all("of the limit are left" in reason for reason in reasons)


def test_hooks_before_points(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    telling = ["sh", "-c", "echo $$ENDSWEEP_ARM $$ENDSWEEP_CONCURRENCY; test $$ENDSWEEP_CONCURRENCY != 2"]
    arms = {
        "route": launch() | {"before_point": {"post": "/reset"}},
        "badly": launch() | {"before_point": {"post": "/reset_badly"}},
        "command": launch() | {"before_point": {"command": telling}},
    }
    done = cli(
        "run", str(spec(tmp_path, arms, load={"concurrency": [1, 2], "requests": 10})), "--out", str(run), code=1
    )
    assert (run / "servers" / "route.log").read_text().count("reset\n") == 3  # two points and the anchor
    assert "POST http://127.0.0.1:" in done.stdout
    assert "/reset_badly answers 500" in done.stderr
    assert "no cache here" in done.stderr
    assert set(points(run, "command")) == {"c00001-t1"}
    (skipped,) = [line for line in of(run, "point_skipped") if line["arm"] == "command"]
    assert "the hook before the point failed: sh: it ended with exit code 1; it said: command 2" in skipped["reason"]


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        (
            {"launch": ["no-such-engine-here", "{port}"]},
            "arm a: launch: there is no program no-such-engine-here to start",
        ),
        (launch(cwd="nowhere"), "nowhere is not a folder"),
        ({"launch": ["/", "{port}"]}, "arm a: launch: there is no program / to start"),
        (launch() | {"before_point": {"command": ["no-such-hook"]}}, "before_point: there is no program no-such-hook"),
        (
            {"url": "http://127.0.0.1:9/v1", "before_point": {"command": [str(SERVER.parent)]}},
            f"arm a: before_point: there is no program {SERVER.parent} to start",
        ),
        ({"launch": {"command": ["serve", "{port}", "--api-key", "abc"]}}, "secret in a command line (--api-key)"),
        ({"launch": {"command": ["serve", "{port}"], "env": {"HF_TOKEN": "abc"}}}, "HF_TOKEN seems to hold a secret"),
    ],
)
def test_what_cannot_be_started_is_one_sentence(cli: Cli, tmp_path: Path, arm: dict[str, Any], said: str) -> None:
    done = cli("run", str(spec(tmp_path, {"a": arm})), code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert "abc" not in done.stderr


def test_a_servers_secret_is_not_kept(cli: Cli, tmp_path: Path) -> None:
    run, key = tmp_path / "run", "sk-server-secret-0123456789"
    telling = (
        "import os, runpy, sys; print('my key is', os.environ['SERVER_KEY'], flush=True); sys.argv = sys.argv[1:]; "
    )
    telling += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", telling, str(SERVER), "{port}"]
    own = {"command": command, "env": {"SERVER_KEY": "${THE_API_KEY}"}, "stop_seconds": 1}
    hook = {"command": ["sh", "-c", "echo hook: $$THE_API_KEY"]}
    arms = {
        "a": {"launch": own, "before_point": hook},
        "crashes": {"launch": {**own, "command": [*command, "crash"]}},
    }
    cli("run", str(spec(tmp_path, arms)), "--out", str(run), env={"THE_API_KEY": key}, code=1)
    for arm in arms:
        assert "my key is <redacted>" in (run / "servers" / f"{arm}.log").read_text()
    assert "hook: <redacted>" in (run / "servers" / "a-before-point.log").read_text()
    for path in run.rglob("*"):
        if path.is_file():
            assert key.encode() not in path.read_bytes(), path


def started(path: Path, run: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "endsweep", "run", str(path), "--out", str(run)]
    return subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def wait_for(run: Path, event: str, **having: Any) -> None:
    end = time.monotonic() + 40
    while time.monotonic() < end:
        try:
            if any(having.items() <= line.items() for line in of(run, event)):
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.02)
    raise AssertionError(f"{event} {having} did not come")


@linux
@pytest.mark.parametrize("how", ["deaf", "family"])
def test_a_kill_in_a_point_leaves_no_process_and_loses_no_finished_point(cli: Cli, tmp_path: Path, how: str) -> None:
    run = tmp_path / "run"
    load = {"concurrency": [1, 2], "requests": 100, "warmup": 2}
    path = spec(tmp_path, {"a": launch(how)}, load=load)
    with started(path, run) as sweep:
        wait_for(run, "point_started", concurrency=2)
        assert belonging(run)
        sweep.kill()
    assert nothing_left(run)
    assert points(run, "a")["c00001-t1"]["status"] == "finished"
    cli("run", str(run), "--resume")
    assert points(run, "a")["c00002-t1"]["status"] == "finished"
    assert len(of(run, "point_finished")) == 2
    assert belonging(run) == []


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_end_while_a_server_starts_leaves_no_process(tmp_path: Path, number: int) -> None:
    run = tmp_path / "run"
    with started(spec(tmp_path, {"a": launch("hang", ready_seconds=100)}), run) as sweep:
        wait_for(run, "server_starting")
        end = time.monotonic() + 20
        while not belonging(run) and time.monotonic() < end:
            time.sleep(0.01)
        assert belonging(run)
        sweep.send_signal(number)
        code = sweep.wait(30)
    assert code == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[signal.Signals(number)]
    assert nothing_left(run)


@linux
def test_a_stop_does_not_wait_for_a_hook(tmp_path: Path) -> None:
    run = tmp_path / "run"
    arm = launch() | {"before_point": {"command": ["sleep", "600"], "seconds": 600}}
    with started(spec(tmp_path, {"a": arm}), run) as sweep:
        wait_for(run, "server_ready")
        end = time.monotonic() + 20
        while len(belonging(run)) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        sweep.send_signal(signal.SIGTERM)
        assert sweep.wait(30) == 143
    assert of(run, "server_stopped")[0]["reason"] == "the run was stopped"
    assert belonging(run) == []


@linux
def test_a_guardian_that_is_killed_ends_the_point_and_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    load = {"concurrency": [1, 2], "requests": 200, "warmup": 2}
    with started(spec(tmp_path, {"a": launch("family")}, load=load), run) as sweep:
        wait_for(run, "point_started", concurrency=1)
        children = Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children").read_text().split()
        (guardian,) = [pid for pid in children if b"guardian.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(int(guardian), signal.SIGKILL)
        assert sweep.wait(40) == 1
    assert "its guardian was killed" in of(run, "point_failed")[0]["reason"]
    assert belonging(run) == []
