"""The page comes after the answer, from a process of its own; what befalls that process costs nothing that was
measured."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from endpoints.simulator.process import SimulatorProcess
from tests.front.conftest import Cli

DRAWN = ("report.html", "report.md", "points.csv", "frontier.png", "frontier.svg")
DRAWING = {"pandas", "scipy", "altair", "jinja2", "vl_convert", "matplotlib", "pyarrow.dataset"}
on_linux = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the child in /proc")


def words(simulator: SimulatorProcess, run: Path, *more: str) -> list[str]:
    load = ["--concurrency", "2", "--requests", "40", "--max-tokens", "8", "--out", str(run)]
    return ["run", simulator.url, *load, *more]


def test_the_sweeps_process_loads_nothing_that_draws(simulator: SimulatorProcess, tmp_path: Path) -> None:
    arms = ["--arm", f"off={simulator.url}", "--arm", f"tuned={simulator.url}", "--trials", "2", "--check-equal", "4"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "endsweep", *words(simulator, tmp_path / "r", *arms)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"pyarrow.parquet", "numpy"} <= imported, done.stderr[-2000:]
    assert not imported & DRAWING
    assert done.stdout.splitlines()[-1] == f"report: {tmp_path / 'r' / 'report.html'}"
    for name in DRAWN:
        assert (tmp_path / "r" / name).stat().st_size > 0, name


def test_json_is_alone_on_stdout(cli: Cli, simulator: SimulatorProcess, tmp_path: Path) -> None:
    done = cli(*words(simulator, tmp_path / "r", "--json"))
    assert json.loads(done.stdout) == json.loads((tmp_path / "r" / "summary.json").read_text())
    assert done.stderr.splitlines()[-1] == f"report: {tmp_path / 'r' / 'report.html'}"


@contextmanager
def while_it_draws(simulator: SimulatorProcess, run: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A sweep's process whose child has begun to draw, and that child's id."""
    parent = subprocess.Popen(
        [sys.executable, "-m", "endsweep", *words(simulator, run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 60
        while (child := drawing_for(run)) is None:
            assert parent.poll() is None and time.monotonic() < end
            time.sleep(0.005)
        yield parent, child
    finally:
        parent.kill()
        parent.communicate()


def drawing_for(run: Path) -> int | None:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"reports.drawing" in command and os.fsencode(run) in command:
            return int(entry.name)
    return None


def assert_all_is_kept(run: Path) -> None:
    assert len(json.loads((run / "summary.json").read_text())["points"]) == 1
    assert [line["event"] for line in map(json.loads, (run / "journal.jsonl").read_text().splitlines())][-1] == (
        "run_finished"
    )
    assert not list(run.glob(".*")), "a half-written file is left"
    assert drawing_for(run) is None


@on_linux
def test_a_killed_child_is_one_sentence(cli: Cli, simulator: SimulatorProcess, tmp_path: Path) -> None:
    run = tmp_path / "r"
    with while_it_draws(simulator, run) as (parent, child):
        os.kill(child, signal.SIGKILL)
        stdout, stderr = parent.communicate(timeout=60)
    assert parent.returncode == 2
    assert "2 users" in stdout and "report:" not in stdout  # the answer was given before
    last = stderr.splitlines()[-1]
    assert last.startswith("endsweep: the page is not drawn: its process was ended by SIGKILL")
    assert f"`endsweep report {run}` draws it" in last
    assert "Traceback" not in stderr
    assert_all_is_kept(run)
    cli("report", str(run))
    assert (run / "report.html").exists()


@on_linux
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_it_draws(number: int, code: int, simulator: SimulatorProcess, tmp_path: Path) -> None:
    run = tmp_path / "r"
    with while_it_draws(simulator, run) as (parent, _):
        parent.send_signal(number)
        _, stderr = parent.communicate(timeout=60)
    assert parent.returncode == code, stderr
    assert "Traceback" not in stderr
    assert "interrupted while the page was drawn" in stderr.splitlines()[-1]
    assert_all_is_kept(run)


def test_a_full_disk_is_one_sentence(simulator: SimulatorProcess, tmp_path: Path) -> None:
    run = tmp_path / "r"
    done = subprocess.run(
        [sys.executable, "-m", "endsweep", *words(simulator, run)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        # Only the page is larger than this; the kernel refuses to write on, as it does on a full disk.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)),
    )
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"endsweep: the page is not drawn: cannot write it into {run}: File too large; all that")
    assert "Traceback" not in done.stderr
    assert_all_is_kept(run)


def test_a_reader_that_leaves_costs_no_page(simulator: SimulatorProcess, tmp_path: Path) -> None:
    run = tmp_path / "r"
    parent = subprocess.Popen(
        [sys.executable, "-m", "endsweep", *words(simulator, run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None and parent.stderr is not None
    parent.stdout.close()
    stderr = parent.stderr.read()
    parent.stderr.close()
    assert parent.wait(60) in (0, 1), stderr
    assert "Traceback" not in stderr
    assert (run / "report.html").exists()


def test_a_module_of_the_users_does_not_stand_in_the_way(cli: Cli, simulator: SimulatorProcess, tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("raise RuntimeError('not this one')\n")
    cli(*words(simulator, tmp_path / "r"))
    assert (tmp_path / "r" / "report.html").exists()
