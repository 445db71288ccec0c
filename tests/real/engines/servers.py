"""A server in a process of its own: started, waited for, stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.real.engines.environments import CACHE


@dataclass(frozen=True)
class Engine:
    """One running server, by its root."""

    root: str

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.root}{path}", timeout=30) as reply:
            body: bytes = reply.read()
            return body

    def metric(self, name: str) -> float:
        """The sum of a Prometheus counter over its labels."""
        lines = [line for line in self.get("/metrics").decode().splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        assert lines, f"the server has no metric {name}"
        return sum(float(line.rpartition(" ")[2]) for line in lines)


class Server:
    """A command for a `with` block. Its log lies under .cache/real, and stays there when the server did not come up."""

    def __init__(self, name: str, command: list[str | Path], port: int, env: dict[str, str] | None = None) -> None:
        self.engine = Engine(f"http://127.0.0.1:{port}")
        self._command = command
        self._env = {**os.environ, **(env or {})}
        CACHE.mkdir(parents=True, exist_ok=True)
        self._log = CACHE / f"{name}-{port}.log"
        self._came_up = False

    def __enter__(self) -> Server:
        with self._log.open("wb") as log:
            # A session of its own, since some engines start workers that must end with them.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        return self

    def ready(self, path: str = "/health", holds: bytes = b"", within_s: float = 60.0) -> Engine:
        """Wait until `path` answers 200 with `holds` in its body. Raises AssertionError with the log's end."""
        end = time.monotonic() + within_s
        why = f"was not ready within {within_s:g} s"
        while time.monotonic() < end:
            if (code := self._process.poll()) is not None:
                why = f"ended with {code}"
                break
            try:
                if holds in self.engine.get(path):
                    self._came_up = True
                    return self.engine
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.1)
        log = self._log.read_text(errors="replace")[-3000:]
        raise AssertionError(f"{self._command[0]} {why}; its log, {self._log}, ends:\n{log}")

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self._process.pid, signal.SIGKILL)  # whatever of its session is left
        except ProcessLookupError:
            pass
        self._process.wait()
        if self._came_up:
            self._log.unlink(missing_ok=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
