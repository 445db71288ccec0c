"""The servers that a sweep starts: at most one is up; each comes up when its arm is next, and the run knows when it
dies."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from endpoints.findings import Probed, as_json
from endpoints.hooks import HookError, do_before_point
from endpoints.launching import Launched, LaunchError, bring_up
from endpoints.ports import free_port
from endpoints.preflight import seen
from endpoints.target import Target
from profiles.launching import ResolvedLaunch
from profiles.loading import ResolvedArm, Sweep
from sweeps.events import Listener, Note
from sweeps.files import write_atomically, write_text
from sweeps.manifest import request_facts
from sweeps.point import FINISHED, INTERRUPTED
from sweeps.store import RunStore

_HEARD_S = 1.0  # how soon after its connections broke we know that a server has died
LARGEST_LOG = 256 * 1024 * 1024  # bytes that are looked through for secrets
_LINES_AT_ONCE = 256 * 1024  # characters of a log, and the rest of the line


@dataclass(frozen=True, slots=True)
class _Up:
    """The server that is up, or was until it died, and where its arm's requests go."""

    arm: ResolvedArm
    server: Launched
    target: Target


class Servers:
    """Brings servers up and down for a run. Arms with a URL of their own are passed through."""

    def __init__(self, sweep: Sweep, targets: Mapping[str, Target], store: RunStore, listen: Listener) -> None:
        self._sweep, self._targets, self._store, self._listen = sweep, targets, store, listen
        self._up: _Up | None = None
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Wait for no server any more."""
        self._stopping.set()

    async def target(self, arm: ResolvedArm, seconds_left: float) -> Target:
        """Where the arm's requests go, its server up and every other down. Raises LaunchError, with the last lines of
        the server's log, when it does not come up within its time, or has died since."""
        if self._up is not None and self._up.arm.name == arm.name:
            if (why := self._why_ended()) is not None:
                raise LaunchError(why)
            return self._up.target
        await self.down()
        if arm.launch is None:
            return self._targets[arm.name]
        return await self._bring_up(arm, arm.launch, seconds_left)

    async def before_point(self, arm: ResolvedArm, target: Target, concurrency: int) -> None:
        """Do the arm's hook, where it has one. Raises HookError, at once when the run is stopped."""
        if arm.before_point is None:
            return
        log = self._store.path.absolute() / "servers" / f"{arm.slug}-before-point.log"
        doing = do_before_point(arm.before_point, target, concurrency, log)
        task, stopped = asyncio.ensure_future(doing), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise HookError("the run was stopped")
            await task
        finally:
            for each in (task, stopped):
                each.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)
            await self._scrub(target, log)

    async def down(self) -> None:
        """Stop the server that is up, if one is."""
        up, self._up = self._up, None
        if up is None:
            return
        reason = up.server.ended or ("the run was stopped" if self._stopping.is_set() else "its points are done")
        await up.server.stop()
        await self._scrub(up.target, up.server.log)
        self._store.note("server_stopped", arm=up.arm.name, reason=reason)

    async def _scrub(self, target: Target, log: Path) -> None:
        if why := await asyncio.to_thread(_scrub_log, target, log):
            self._store.note("decision", arm=target.name, text=why)
            self._listen(Note(f"{target.name}: {why}", "warn"))

    def watch(self, arm: str, end_point: Callable[[str], None]) -> asyncio.Task[None]:
        """A task, to be cancelled, that ends the point under way when the arm's server dies."""
        return asyncio.create_task(self._watch(arm, end_point))

    async def judged(self, arm: str, point: dict[str, Any]) -> dict[str, Any]:
        """The point, as cut short where its server died in it, which may be known only after its last request broke."""
        if self._up is None or self._up.arm.name != arm or not point["counts_all"]["failed"]:
            return point
        try:
            await asyncio.wait_for(self._up.server.wait(), _HEARD_S)
        except TimeoutError:
            return point
        why = self._why_ended()
        if point["status"] != FINISHED or why is None:
            return point
        verdict = {
            "code": "interrupted",
            "severity": "invalid",
            "evidence": why,
            "threshold": "a point runs to its end",
            "remedy": "mend the server, and measure it again with --resume",
        }
        return point | {"status": INTERRUPTED, "valid": False, "verdicts": [verdict, *point["verdicts"]]}

    async def _watch(self, arm: str, end_point: Callable[[str], None]) -> None:
        if self._up is not None and self._up.arm.name == arm:
            await self._up.server.wait()
            end_point(self._why_ended() or "")

    def _why_ended(self) -> str | None:
        if self._up is None or self._up.server.ended is None:
            return None
        lines = self._up.server.last_lines(self._up.target.scrub)
        return f"the server of this arm is gone: {self._up.server.ended}; the last lines of its log: {lines}"

    async def _bring_up(self, arm: ResolvedArm, launch: ResolvedLaunch, seconds_left: float) -> Target:
        port, folder = free_port(), self._store.path.absolute() / "servers"
        folder.mkdir(exist_ok=True)
        options = folder / f"{arm.slug}-options.yaml"
        if launch.options is not None:
            write_text(options, launch.options)
        words = [word.replace("{port}", str(port)).replace("{options}", str(options)) for word in launch.command]
        env = {name: value.replace("{port}", str(port)) for name, value in launch.env.items()}
        server = Launched(words, env, launch.cwd, folder / f"{arm.slug}.log", launch.stop_seconds)
        target = replace(self._targets[arm.name], url=launch.at(port))
        seconds, began = min(launch.ready_seconds, seconds_left), time.monotonic()
        command = target.scrub(shlex.join(words))
        self._store.note("server_starting", arm=arm.name, command=command, url=target.url)
        self._listen(Note(f"{arm.name}: starting its server: {command}"))
        say = lambda text: self._listen(Note(text))  # noqa: E731
        try:
            found = await bring_up(server, target, seconds, self._stopping, say)
        except LaunchError as exc:
            await self._scrub(target, server.log)
            self._store.note("server_failed", arm=arm.name, reason=str(exc))
            if not self._stopping.is_set():
                self._listen(Note(f"{arm.name}: its server did not come up: {exc}", "warn"))
            raise LaunchError(f"the server of this arm did not come up: {exc}") from None
        took = time.monotonic() - began
        target = seen(target, found)
        self._up = _Up(arm, server, target)
        try:
            self._take_down(arm, target, found, command, took)
        except LaunchError:
            await self.down()
            raise
        return target

    def _take_down(self, arm: ResolvedArm, target: Target, found: Probed, command: str, took: float) -> None:
        """Put what the server showed into the manifest. Raises LaunchError when it is not what it was before."""
        before = self._store.manifest["arms"].get(arm.name) or {}
        shape = target.shape
        request = request_facts(shape)
        if before.get("started") and (before.get("model"), before.get("request")) != (shape.model, request):
            raise LaunchError(
                f"the server serves {shape.model} with {request}, and the points of this run were measured with "
                f"{before.get('model')} and {before.get('request')}: measure into a new folder (--out)"
            )
        facts = {
            "model": shape.model,
            "request": request,
            "probe": as_json(found),
            "server": found.server,
            "started": {"command": command, "url": target.url, "ready_s": round(took, 3)},
        }
        self._store.amend_arm(arm.name, facts)
        self._store.note("server_ready", arm=arm.name, url=target.url, seconds=round(took, 3))
        self._listen(Note(f"{arm.name}: its server is ready after {took:.1f} s at {target.url}"))


def _scrub_log(target: Target, log: Path) -> str | None:
    """Take the arm's secrets out of a log, where a program of ours wrote them there; why not, where it is not done."""
    try:
        if not target.secrets:
            return None
        if log.stat().st_size > LARGEST_LOG:
            return f"{log.name} is larger than {LARGEST_LOG >> 20} MiB, so secrets were not looked for in it"
        if any(said != shown for said, shown in _scrubbed(target, log)):
            write_atomically(log, lambda temporary: _write_scrubbed(target, log, temporary))
    except OSError:
        pass  # a log that cannot be read cannot be given away either
    return None


def _scrubbed(target: Target, log: Path) -> Iterator[tuple[str, str]]:
    """(as it was, as it is shown) of a few lines at a time: while a string is searched, nothing else goes on here."""
    with log.open(encoding="utf-8", errors="replace", newline="") as source:
        while lines := source.readlines(_LINES_AT_ONCE):
            said = "".join(lines)
            yield said, target.scrub(said)


def _write_scrubbed(target: Target, log: Path, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(shown for _, shown in _scrubbed(target, log))
