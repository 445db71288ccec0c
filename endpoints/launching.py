"""A server that we start: under a guardian that outlives us just long enough to stop it, waited for, its log kept."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from tenacity import AsyncRetrying, RetryError, retry_if_result, stop_after_delay, wait_exponential

from endpoints.findings import PreflightError, Probed, Say
from endpoints.guardian import MARK, kill_marked
from endpoints.look import looking, read
from endpoints.pages import look_beside
from endpoints.ports import claimed, port_here, stranger_at
from endpoints.preflight import preflight
from endpoints.target import Target, beside, join
from profiles.errors import printable
from profiles.hosts import origin

ENDED_WELL = "it ended with exit code 0"

_GUARDIAN = Path(__file__).with_name("guardian.py")
_PAGE_S = 5.0
_MOST_PAGE = 4 * 1024 * 1024  # bytes
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0
_FAREWELL_S = 15.0  # beyond the time the command has for ending
_LINES, _LONGEST_LINE, _TAIL = 8, 240, 262_144
_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

T = TypeVar("T")


class LaunchError(Exception):
    """A server could not be started, or is gone; one sentence, with the last lines of its log."""


class Launched:
    """One command under its guardian. `ended`: how it ended, in words; None while it runs."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: str | None, log: Path, stop_seconds: float):
        self.log = log.resolve()
        self.ended: str | None = None
        self.pid: int | None = None
        self._program, self._stop_seconds = command[0], stop_seconds
        self._order = {
            "command": list(command),
            "env": {**os.environ, **env, MARK: str(self.log)},
            "cwd": cwd,
            "log": str(self.log),
            "stop_seconds": stop_seconds,
        }
        self._begun, self._over = asyncio.Event(), asyncio.Event()
        self._guardian: subprocess.Popen[bytes] | None = None
        self._heard = b""
        self._log_from = 0

    @property
    def guardian_pid(self) -> int | None:
        """Of the process that guards it, while there is one."""
        return self._guardian.pid if self._guardian else None

    async def start(self, port: int | None = None) -> None:
        """Start it. Raises LaunchError when there is no such program, or another run has a server at the `port`. What
        an earlier run of ours, which was killed with its guardian, left behind under the same log is ended first."""
        claim = None if port is None else claimed(port)
        if port is not None and claim is None:
            raise LaunchError(f"another run has a server at port {port}: wait for it, or use {{port}} for a free one")
        kill_marked(str(self.log))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_from = self.log.stat().st_size if self.log.exists() else 0
        # A session of its own: Ctrl-C in a terminal is for us, and we stop the server in order.
        guardian = subprocess.Popen(  # noqa: ASYNC220 - it takes a few milliseconds, and its pipe is needed as it is
            [sys.executable, "-I", str(_GUARDIAN)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=() if claim is None else (claim,),  # the port is claimed for as long as there is a guardian
        )
        if claim is not None:
            os.close(claim)
        assert guardian.stdin is not None and guardian.stdout is not None
        self._guardian = guardian
        os.set_blocking(guardian.stdout.fileno(), False)
        asyncio.get_running_loop().add_reader(guardian.stdout.fileno(), self._hear)
        try:
            guardian.stdin.write(json.dumps(self._order).encode() + b"\n")
            guardian.stdin.flush()
        except OSError:
            pass  # it is dead, which its standard output tells
        await self._begun.wait()
        if self.pid is None:
            how = self.ended or "it could not be started"
            await self.stop()
            raise LaunchError(f"{self._program}: {how}")

    async def stop(self) -> None:
        """Stop it with all that it started, by force where asking does not help. May be called more than once."""
        guardian = self._guardian
        if guardian is None:
            return
        self._guardian = None
        assert guardian.stdin is not None and guardian.stdout is not None
        asyncio.get_running_loop().remove_reader(guardian.stdout.fileno())
        with suppress(OSError):
            guardian.stdin.close()
        try:
            await asyncio.to_thread(guardian.wait, self._stop_seconds + _FAREWELL_S)
        except subprocess.TimeoutExpired:
            guardian.kill()
            guardian.wait()
        finally:
            guardian.stdout.close()
            self._end("it was stopped")
            await asyncio.to_thread(kill_marked, str(self.log))

    async def unless_it_ends(self, doing: Coroutine[Any, Any, T], stop: asyncio.Event | None = None) -> T:
        """What `doing` brings. Raises LaunchError as soon as the server has ended, or `stop` is set."""
        task = asyncio.ensure_future(doing)
        others = [asyncio.ensure_future(self._over.wait())]
        if stop is not None:
            others.append(asyncio.ensure_future(stop.wait()))
        try:
            await asyncio.wait([task, *others], return_when=asyncio.FIRST_COMPLETED)
            if self.ended is not None:
                raise LaunchError(self.ended)
            if not task.done():
                raise LaunchError("the run was stopped")
            return await task
        finally:
            for each in (task, *others):
                each.cancel()
            await asyncio.gather(task, *others, return_exceptions=True)

    async def wait(self) -> str:
        """Until it has ended: how."""
        await self._over.wait()
        return self.ended or ""

    async def wait_up_to(self, seconds: float) -> str:
        """How it ended, within the time. Raises LaunchError when it did not."""
        try:
            return await asyncio.wait_for(self.wait(), seconds)
        except TimeoutError:
            raise LaunchError(f"{self._program}: it did not end within {seconds:g} s") from None

    def last_lines(self, scrub: Callable[[str], str]) -> str:
        """The end of what it wrote to its log since it was started, on one line, `scrub`bed while it is whole, since a
        secret that is cut is not known as one; empty when it wrote nothing."""
        try:
            with self.log.open("rb") as log:
                log.seek(begin := max(self._log_from, self.log.stat().st_size - _TAIL))
                raw = log.read(_TAIL)
        except OSError:
            return ""
        lines = scrub(_STEERING.sub("", raw.decode("utf-8", "replace"))).splitlines()
        if begin > self._log_from:
            lines = lines[1:] or [f"(a single line of more than {_TAIL >> 10} KiB)"]
        lines = [line for line in (printable(line).strip() for line in lines) if line]
        return " | ".join(line[:_LONGEST_LINE] for line in lines[-_LINES:])

    def _hear(self) -> None:
        assert self._guardian is not None and self._guardian.stdout is not None
        stdout = self._guardian.stdout.fileno()
        try:
            part = os.read(stdout, 4096)
        except BlockingIOError:
            return
        if not part:
            asyncio.get_running_loop().remove_reader(stdout)
            if not self._over.is_set():  # killed, since it tells before it goes of itself
                kill_marked(str(self.log))
                self._end("its guardian was killed")
            return
        self._heard += part
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == "started":
                self.pid = int(rest)
                self._begun.set()
            else:
                self._end(_how(int(rest)) if word == "ended" else f"it could not be started ({rest})")

    def _end(self, how: str) -> None:
        self.ended = self.ended or how
        self._begun.set()
        self._over.set()


async def bring_up(
    server: Launched, target: Target, ready_seconds: float, stop: asyncio.Event, say: Say | None = None
) -> Probed:
    """Start the server and wait until it answers at the target's URL, first its pages, then one real request; then see
    what it tells about itself. Raises LaunchError with the last lines of its log; the server is then stopped."""
    try:
        if await _somebody_listens(target.url):
            raise LaunchError(f"something else listens at {target.url} already: end it, or use {{port}} for a free one")
        port = await asyncio.to_thread(port_here, target.url)
        await server.start(port)
        await server.unless_it_ends(_answers(target, ready_seconds), stop)
        guardian = server.guardian_pid
        if port and guardian and (stranger := await asyncio.to_thread(stranger_at, port, guardian)):
            raise LaunchError(
                f"it is process {stranger} that answers at {target.url}, and not the server that was started: "
                "end it, or use {port} for a free one"
            )
        try:
            found = await server.unless_it_ends(preflight(target, say), stop)
        except LaunchError as exc:
            raise LaunchError(f"it was ready, and at the first real request {exc}") from None
        except PreflightError as exc:
            with suppress(TimeoutError):  # a server that dies of a request closes its connections first
                async with asyncio.timeout(1.0):
                    raise LaunchError(f"it was ready, and at the first real request {await server.wait()}") from None
            raise LaunchError(f"it was ready, and its first real request failed: {exc}") from None
        if not found.metrics_url:  # else it is done already
            async with looking(target) as (session, _):
                await server.unless_it_ends(look_beside(session, target, found), stop)
    except BaseException as exc:
        await server.stop()
        if not isinstance(exc, LaunchError):
            raise
        lines = server.last_lines(target.scrub)
        told = "" if server.pid is None else "; its log is empty"
        told = f"; the last lines of its log: {lines}" if lines else told
        hint = " (a server has to stay in the foreground)" if str(exc) == ENDED_WELL else ""
        raise LaunchError(f"{exc}{hint}{told}") from None
    return found


async def _somebody_listens(url: str) -> bool:
    _, host, port = origin(url)
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # TimeoutError is one
        return False
    writer.close()
    return True


async def _answers(target: Target, seconds: float) -> None:
    """Until the list of models is there and the health page, where there is one, is not against it."""
    retrying = AsyncRetrying(
        retry=retry_if_result(lambda why: why is not None),
        wait=wait_exponential(_FIRST_WAIT_S, max=_LONGEST_WAIT_S),
        stop=stop_after_delay(seconds),
        sleep=asyncio.sleep,
    )
    try:
        async with looking(target) as (session, _):
            await retrying(_not_ready, session, target)
    except RetryError as exc:
        why = exc.last_attempt.result()
        raise LaunchError(f"it was not ready within {seconds:g} s ({why})") from None


async def _not_ready(session: aiohttp.ClientSession, target: Target) -> str | None:
    for url in (join(target.url, "/models"), beside(target.url, "/health")):
        try:
            page = await read(session, target, url, most=_MOST_PAGE, seconds=_PAGE_S)
        except TimeoutError:
            return f"{url} does not answer"
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            return f"{url}: {exc}"
        if page.status >= 500:
            return f"{url} answers {page.status}"
    return None


def _how(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"
