"""The embedded endpoint as a process: serve until told to stop, or run it as a child that cannot outlive its parent."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from endpoints.simulator.options import SimulatorOptions, parse_speculation
from endpoints.simulator.server import running

__all__ = ["SimulatorOptions", "SimulatorProcess", "parse_speculation", "serve"]

ROOT = Path(__file__).resolve().parents[2]


def serve(options: SimulatorOptions, watch_stdin: bool = False) -> None:
    """Serve until SIGTERM or SIGINT, or with `watch_stdin` until standard input ends. Call it from the main thread.

    Prints one line when ready, its URL, such as http://127.0.0.1:8000/v1. Raises OSError if it cannot listen,
    ValueError for settings that cannot be.
    """
    run_loop(_serve(options, watch_stdin))


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run it to its end on the fastest event loop there is."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(options: SimulatorOptions, watch_stdin: bool) -> None:
    async with running(options) as url:
        await serve_until_told(url, watch_stdin)


async def serve_until_told(url: str, watch_stdin: bool) -> None:
    """Say where a server that listens is found, and wait for what ends it: see `serve`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if watch_stdin:
        threading.Thread(target=_when_stdin_ends, args=(loop, stop), daemon=True).start()
    sys.stdout.write(f"{url}/v1\n")
    sys.stdout.flush()
    await stop.wait()


def _when_stdin_ends(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    # os.read, since a daemon thread inside sys.stdin holds a lock that the interpreter wants as it ends.
    while os.read(0, 4096):
        pass
    try:
        loop.call_soon_threadsafe(stop.set)
    except RuntimeError:
        pass  # the loop has ended for another reason


class Options(Protocol):
    """A server's settings, as the arguments of its command."""

    def arguments(self) -> list[str]: ...


class SimulatorProcess:
    """The embedded endpoint in a child process, for a `with` block.

    `url` is its API (…/v1), `root` what /truth, /metrics and /health are under. The child holds the read end of a pipe
    whose write end is here alone, and stops when that closes: also if this process is killed.
    """

    module = "endpoints.simulator"

    def __init__(self, options: Options | None = None, ready_within_s: float = 30.0):
        self.options: Options = options or SimulatorOptions()
        self._ready_within_s = ready_within_s
        self.url = self.root = ""
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, "the simulator has not been started"
        return self._child.pid

    def __enter__(self) -> Self:
        """Start it and wait until it is ready. Raises RuntimeError, with what the child said, if it never is."""
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with tempfile.TemporaryFile() as said:
            self._child = subprocess.Popen(
                [sys.executable, "-m", self.module, "--watch-stdin", *self.options.arguments()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env={**os.environ, "PYTHONPATH": path},
            )
            try:
                self.url = self._read_url(said)
            except BaseException:
                self.stop()
                raise
        self.root = self.url.removesuffix("/v1")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> int:
        """Stop it, at the latest after five seconds; its exit code. May be called more than once."""
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        child.terminate()
        try:
            code = child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        child.stdin.close()
        child.stdout.close()
        return code

    def _read_url(self, said: IO[bytes]) -> str:
        child = self._child
        assert child is not None and child.stdout is not None
        deadline = time.monotonic() + self._ready_within_s
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(child.stdout.fileno(), 4096) if ready else b""
            if not part:
                how = "ended before it was ready" if ready else f"was not ready within {self._ready_within_s:g} s"
                said.seek(0)
                raise RuntimeError(f"the simulator {how}: {said.read().decode(errors='replace').strip()}")
            line += part
        return line.decode().strip()
