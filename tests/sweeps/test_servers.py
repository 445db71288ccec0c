"""Logs of the servers a sweep starts: secrets are taken out, and it is said where they were not looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import sweeps.servers
from endpoints.attempts import Timeouts
from endpoints.target import Target, target_of
from profiles.loading import load_sweep
from sweeps.servers import _scrub_log

KEY = "sk-0123456789abcdefghij"


def keyed() -> Target:
    document = {"endpoint": {"url": "http://127.0.0.1:1/v1", "auth": {"env": "A_KEY"}}}
    return target_of(load_sweep(None, document, {}).arms[0], 16, {}, Timeouts(5.0, 5.0, 5.0), {"A_KEY": KEY})


def test_a_log_is_scrubbed_wherever_the_key_is_and_else_left_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    lines = [f"line {n}\r\n" for n in range(100_000)] + [f"{'A' * 600_000} {KEY} B\n", f"10%\r20% {KEY}\n", KEY]
    log.write_bytes("".join(lines).encode())
    assert _scrub_log(keyed(), log) is None
    assert log.read_bytes().decode() == "".join(lines).replace(KEY, "<redacted>")
    before = log.stat().st_ino
    assert _scrub_log(keyed(), log) is None
    assert log.stat().st_ino == before
    assert list(tmp_path.iterdir()) == [log]


def test_a_log_that_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "a.log"
    log.write_text(KEY * 3)
    monkeypatch.setattr(sweeps.servers, "LARGEST_LOG", 40)
    why = _scrub_log(keyed(), log)
    assert why is not None
    assert why.startswith("a.log is larger than")
