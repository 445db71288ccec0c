"""Ports for servers that we start: claimed by one run only, and listened at by what was started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import endpoints.ports
from endpoints.ports import claimed, free_port, port_here, stranger_at

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
LISTENING = """
import socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind((sys.argv[2], int(sys.argv[1])))
listener.listen()
print("up", flush=True)
sys.stdin.read()
"""


@contextmanager
def listening(port: int, host: str, *before: str) -> Iterator[subprocess.Popen[str]]:
    words = [*before, sys.executable, "-c", LISTENING, str(port), host]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.stdin.close()


def test_a_port_is_claimed_once() -> None:
    port = free_port()
    claim = claimed(port)
    assert claim is not None
    assert claimed(port) is None
    os.close(claim)
    again = claimed(port)
    assert again is not None
    os.close(again)


def test_without_a_place_for_locks_nothing_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    for _ in range(2):
        claim = claimed(1234)
        assert claim is not None
        os.close(claim)


def test_a_free_port_is_not_one_that_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, free = free_port(), free_port()
    ports = iter([taken, taken, free])
    claim = claimed(taken)
    assert claim is not None

    class Socket(socket.socket):
        def getsockname(self) -> tuple[str, int]:
            return "127.0.0.1", next(ports)

    monkeypatch.setattr(endpoints.ports.socket, "socket", Socket)
    assert free_port() == free
    os.close(claim)


def test_a_port_of_this_machine() -> None:
    assert port_here("http://127.0.0.1:8123/v1") == 8123
    assert port_here("http://localhost:8123") == 8123
    assert port_here("http://192.0.2.1:8123") is None
    assert port_here("http://no-such-host.invalid:8123") is None


def test_a_name_is_this_machines_when_one_of_its_addresses_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("192.0.2.1", "127.0.0.1")]
    monkeypatch.setattr(endpoints.ports.socket, "getaddrinfo", lambda *_, **__: found)
    assert port_here("http://both:8123") == 8123


@linux
def test_who_listens_is_no_stranger_when_it_descends_from_us() -> None:
    port = free_port()
    assert stranger_at(port, os.getpid()) is None
    with listening(port, "127.0.0.1") as one:
        assert stranger_at(port, os.getpid()) is None
        assert stranger_at(port, one.pid) == one.pid  # it does not descend from itself


@linux
@pytest.mark.parametrize(("host", "shared"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_a_stranger_beside_the_server_is_seen_where_they_share_an_address(host: str, shared: bool) -> None:
    port = free_port()
    parent = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
    with listening(port, "127.0.0.1", sys.executable, "-c", parent) as guardian, listening(port, host) as other:
        assert stranger_at(port, guardian.pid) == (other.pid if shared else None)


@linux
def test_of_what_a_containers_client_started_nothing_is_known(tmp_path: Path) -> None:
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\nread line\n")
    client.chmod(0o755)
    port = free_port()
    parent = [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))", str(client)]
    with (
        listening(port, "127.0.0.1") as other,
        subprocess.Popen(parent, stdin=subprocess.PIPE) as guardian,
    ):
        end = time.monotonic() + 20
        while stranger_at(port, guardian.pid) is not None and time.monotonic() < end:  # until it has its name
            time.sleep(0.02)
        assert stranger_at(port, guardian.pid) is None
        assert other.poll() is None
        assert guardian.stdin is not None
        guardian.stdin.close()
