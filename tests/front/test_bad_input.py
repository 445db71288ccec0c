"""Bad input gets one clear sentence, exit code 2, and nothing lost."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from endpoints.simulator.process import SimulatorProcess
from tests.front.conftest import Cli


def sentence(stderr: str) -> str:
    """The one line that `endsweep:` says; fails when there is more than one."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    assert len(lines) == 1, stderr
    assert lines[0].startswith("endsweep: ")
    return lines[0]


def test_wrong_key(cli: Cli, guarded: SimulatorProcess, tmp_path: Path) -> None:
    said = sentence(cli("run", guarded.url, "--key-env", "K", env={"K": "sk-wrong-key-987"}, code=2).stderr)
    assert "401" in said
    assert "check the key" in said
    assert "sk-wrong" not in said
    assert not (tmp_path / "runs").exists()


def test_no_key(cli: Cli, guarded: SimulatorProcess) -> None:
    assert "--key-env" in sentence(cli("run", guarded.url, code=2).stderr)


def test_key_variable_not_set(cli: Cli, guarded: SimulatorProcess) -> None:
    assert "NO_SUCH_VARIABLE" in sentence(cli("run", guarded.url, "--key-env", "NO_SUCH_VARIABLE", code=2).stderr)


def test_unknown_key_in_the_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("endpoint: {url: http://127.0.0.1:1}\nwork_load: {use: chat-short}\n")
    said = sentence(cli("run", "s.yaml", code=2).stderr)
    assert "s.yaml" in said
    assert "work_load" in said
    assert "workload" in said.replace("work_load", "")


def test_missing_file(cli: Cli) -> None:
    assert "nowhere.yaml" in sentence(cli("run", "nowhere.yaml", code=2).stderr)


def test_a_folder_for_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    assert "folder.yaml" in sentence(cli("run", "folder.yaml", code=2).stderr)


def test_not_utf8(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_bytes(b"name: \xff\xfe\n")
    assert "s.yaml" in sentence(cli("run", "s.yaml", code=2).stderr)


def test_unreachable(cli: Cli) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: refused
        port = held.getsockname()[1]
        said = sentence(cli("run", f"http://127.0.0.1:{port}", "--model", "m", code=2).stderr)
    assert f"127.0.0.1:{port}" in said
    assert "refused" in said


def test_unknown_model(cli: Cli, simulator: SimulatorProcess) -> None:
    said = sentence(cli("run", simulator.url, "--model", "nope", code=2).stderr)
    assert "'nope'" in said
    assert "sim" in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--concurrency", "1,x"], "--concurrency"),
        (["--concurrency", "0"], "--concurrency"),
        (["--arm", "nonsense"], "--arm"),
        (["--requests", "1"], "--requests"),
        (["--seconds", "-3"], "--seconds"),
        (["--api", "responses"], "--api"),
        (["--max-usd", "1"], "--max-usd"),
        (["--header", "no colon here"], "--header"),
        (["--key-env", "A", "--key-file", "b"], "--key-env"),
        (["--resume"], "--resume"),
    ],
)
def test_options(cli: Cli, words: list[str], expected: str) -> None:
    assert expected in sentence(cli("run", "http://127.0.0.1:9", *words, code=2).stderr)


def test_no_url_at_all(cli: Cli) -> None:
    assert "url" in sentence(cli("run", code=2).stderr).lower()


def test_a_folder_that_is_in_use(cli: Cli, simulator: SimulatorProcess, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("precious")
    said = sentence(cli("run", simulator.url, "--out", "out", code=2).stderr)
    assert "not empty" in said
    assert (tmp_path / "out" / "mine.txt").read_text() == "precious"


def test_spending_needs_consent(cli: Cli) -> None:
    said = cli("run", "https://api.example.invalid/v1", "--model", "m", code=2).stderr
    assert "About to send" in said
    assert "--yes" in said


def test_report_of_no_run(cli: Cli, tmp_path: Path) -> None:
    assert "manifest.json" in sentence(cli("report", str(tmp_path), code=2).stderr)


def test_simulate_nonsense(cli: Cli) -> None:
    assert "speculation" in sentence(cli("simulate", "--speculation", "fast please", code=2).stderr)
