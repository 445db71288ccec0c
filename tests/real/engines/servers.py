"""A server in a process of its own: started, waited for, stopped."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

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
        lines = [
            line for line in self.get("/metrics").decode().splitlines() if line.startswith((f"{name} ", f"{name}{{"))
        ]
        assert lines, f"the server has no metric {name}"
        return sum(float(line.rpartition(" ")[2]) for line in lines)


class Server:
    """A command for a `with` block. Its log lies under .cache/real, and stays there when it did not come up."""

    def __init__(self, name: str, command: list[str | Path], port: int, env: dict[str, str] | None = None) -> None:
        self.engine = Engine(f"http://127.0.0.1:{port}")
        self._command = command
        self._env = {**os.environ, **(env or {})}
        CACHE.mkdir(parents=True, exist_ok=True)
        self._log = CACHE / f"{name}-{port}.log"

    def __enter__(self) -> Server:
        with self._log.open("wb") as log:
            # A session of its own, since some engines start workers that must end with them.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        return self

    def ready(
        self, path: str = "/health", holds: bytes = b"", within_s: float = 60.0, needs: tuple[Server, ...] = ()
    ) -> Engine:
        """Wait until `path` answers 200 with `holds` in its body. Raises AssertionError with the end of a log: its own,
        or that of one of the servers it `needs` when that has ended."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            for server in (self, *needs):
                if (code := server._process.poll()) is not None:
                    server._give_up(f"ended with {code}")
            try:
                if holds in self.engine.get(path):
                    return self.engine
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.1)
        return self._give_up(f"was not ready within {within_s:g} s")

    def _give_up(self, why: str) -> NoReturn:
        log = self._log.read_text(errors="replace")[-3000:]
        raise AssertionError(f"{' '.join(map(str, self._command))} {why}; its log, {self._log}, ends:\n{log}")

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
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
        if kind is None:
            self._log.unlink(missing_ok=True)


def free_port() -> int:
    """Below those that systems hand out by themselves, which another program may have taken a moment later."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
