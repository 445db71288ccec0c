"""Servers that we start: ready or not, ended by us, by themselves or by a kill, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from endpoints.attempts import Timeouts
from endpoints.guardian import MARK
from endpoints.hooks import HookError, do_before_point
from endpoints.launching import Launched, LaunchError, bring_up
from endpoints.ports import free_port
from endpoints.target import Target, target_of
from profiles.loading import load_sweep
from profiles.models import Hook
from profiles.secrets import redact

SERVER = Path(__file__).with_name("misbehaving.py")
ROOT = Path(__file__).resolve().parents[2]
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def belonging(log: Path) -> list[int]:
    """Processes that the server of this log consists of: by their environment, and by their command line."""
    mark, found = f"{MARK}={log.resolve()}".encode(), []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                continue
    return found


def none_left(log: Path, within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if not belonging(log):
            return True
        time.sleep(0.02)
    return False


def written(path: Path) -> str:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.02)
    raise AssertionError(f"nothing in {path}")


def only_child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "servers" / "on.log"
    yield path
    left = belonging(path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def launched(log: Path, port: int, *words: str, stop_seconds: float = 5.0) -> Launched:
    return Launched([sys.executable, str(SERVER), str(port), *words], {}, None, log, stop_seconds)


def target(port: int) -> Target:
    arm = load_sweep(None, {"endpoint": {"url": f"http://127.0.0.1:{port}/v1"}}, {}).arms[0]
    return target_of(arm, 16, {}, Timeouts(5.0, 5.0, 5.0), {})


def up(log: Path, *words: str, ready: float = 20.0, stop: asyncio.Event | None = None) -> str:
    """Bring it up and stop it; why it would not come up, else empty."""

    async def go() -> str:
        port = free_port()
        server = launched(log, port, *words, stop_seconds=0.5)
        try:
            found = await bring_up(server, target(port), ready, stop or asyncio.Event())
        except LaunchError as exc:
            return str(exc)
        assert found.shape.model == "odd"
        assert "/version says 7" in str([f.seen for f in found.findings])
        await server.stop()
        assert server.ended == "it was stopped"
        return ""

    return asyncio.run(go())


@pytest.mark.parametrize("how", ["well", "deaf", "family"])
def test_a_server_comes_up_and_goes_with_all_it_started(log: Path, how: str) -> None:
    assert up(log, how) == ""
    assert belonging(log) == []
    assert log.read_text().startswith(f"starting {how}")


def test_one_that_hangs_at_start_is_given_up(log: Path) -> None:
    why = up(log, "hang", ready=0.8)
    assert why.startswith("it was not ready within 0.8 s (")
    assert "the last lines of its log: starting hang" in why
    assert belonging(log) == []


def test_one_that_dies_at_start_shows_its_last_lines_at_once(log: Path) -> None:
    began = time.monotonic()
    why = up(log, "crash", ready=60.0)
    assert why == "it ended with exit code 7; the last lines of its log: starting crash | ValueError: no such model"
    assert time.monotonic() - began < 30


def test_one_that_puts_itself_into_the_background_is_told_not_to(log: Path) -> None:
    async def go() -> str:
        port = free_port()
        words = [sys.executable, str(SERVER), str(port)]
        behind = f"import subprocess; subprocess.Popen({words!r}, start_new_session=True)"
        with pytest.raises(LaunchError) as raised:
            server = Launched([sys.executable, "-c", behind], {}, None, log, 1.0)
            await bring_up(server, target(port), 20.0, asyncio.Event())
        return str(raised.value)

    assert asyncio.run(go()).startswith("it ended with exit code 0 (a server has to stay in the foreground)")
    assert belonging(log) == []


def test_one_that_is_ready_and_dies_on_its_first_request(log: Path) -> None:
    why = up(log, "dies_on_request")
    assert why.startswith("it was ready, and at the first real request it ended with exit code 3")
    assert "out of memory in kernel 42" in why


def test_one_whose_place_is_taken_is_not_started(log: Path) -> None:
    async def go() -> str:
        taken = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1]
        with pytest.raises(LaunchError) as raised:
            await bring_up(launched(log, port), target(port), 5.0, asyncio.Event())
        taken.close()
        return str(raised.value)

    assert "something else listens at http://127.0.0.1:" in asyncio.run(go())
    assert not log.exists()


@linux
def test_another_server_at_the_place_of_a_slow_one_is_not_taken_for_it(log: Path) -> None:
    async def go() -> str:
        port, others = free_port(), []
        server = launched(log, port, "hang")
        coming = asyncio.create_task(bring_up(server, target(port), 30.0, asyncio.Event()))
        try:
            while server.pid is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            others.append(await asyncio.create_subprocess_exec(sys.executable, str(SERVER), str(port)))
            with pytest.raises(LaunchError) as raised:
                await coming
            return str(raised.value).replace(str(others[0].pid), "PID")
        finally:
            for other in others:
                other.kill()
                await other.wait()

    assert asyncio.run(go()).startswith("it is process PID that answers at http://127.0.0.1:")
    assert belonging(log) == []


def test_a_port_is_one_runs_own_while_its_server_is_there(log: Path) -> None:
    async def go() -> str:
        port = free_port()
        slow, second = launched(log, port, "hang"), launched(log.with_name("second.log"), port, "well")
        coming = asyncio.create_task(bring_up(slow, target(port), 30.0, asyncio.Event()))
        while slow.pid is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        with pytest.raises(LaunchError) as raised:
            await bring_up(second, target(port), 20.0, asyncio.Event())
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await bring_up(second, target(port), 20.0, asyncio.Event())
        await second.stop()
        return str(raised.value).replace(str(port), "N")

    assert asyncio.run(go()) == "another run has a server at port N: wait for it, or use {port} for a free one"


def test_a_program_that_is_not_there(log: Path) -> None:
    async def go() -> None:
        server = Launched(["no-such-program-here"], {}, None, log, 1.0)
        with pytest.raises(LaunchError, match=r"no-such-program-here: it could not be started \(No such file"):
            await server.start()

    asyncio.run(go())


def test_being_stopped_while_it_starts(log: Path) -> None:
    async def go() -> str:
        stop, port = asyncio.Event(), free_port()
        asyncio.get_running_loop().call_later(0.3, stop.set)
        with pytest.raises(LaunchError) as raised:
            await bring_up(launched(log, port, "hang"), target(port), 60.0, stop)
        return str(raised.value)

    assert asyncio.run(go()).startswith("the run was stopped")
    assert belonging(log) == []


KEY = "sk-0123456789abcdefghijklmnopqrstuvwxyz0123"


@pytest.mark.parametrize(
    "said",
    [
        "x" * 215 + KEY,
        "x" * 239 + KEY,
        "x" * (262_144 + 20) + KEY + "y" * (262_144 - 20),
        "x\n" + KEY + "y" * (262_144 - 20) + "\nz",
        KEY[:20] + "\x1b[0m" + KEY[20:],
        "\n".join([KEY] * 20_000),
        " " * 300_000 + KEY,
    ],
)
def test_the_last_lines_hold_no_piece_of_a_key(log: Path, said: str) -> None:
    log.parent.mkdir(parents=True)
    log.write_text(said)
    shown = launched(log, 1).last_lines(lambda text: redact(text, [KEY]))
    assert shown
    assert not any(KEY[at : at + 6] in shown for at in range(len(KEY) - 5)), shown


def test_a_key_that_a_hooks_route_answers_with_is_not_shown_in_part(tmp_path: Path) -> None:
    async def go() -> str:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 500 No\r\nConnection: close\r\n\r\n" + b"x" * 180 + KEY[:20].encode())
            await writer.drain()
            await asyncio.sleep(0.05)  # the reply comes in two pieces
            writer.write(KEY[20:].encode() + b" and more")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        there = replace(target(server.sockets[0].getsockname()[1]), secrets=(KEY,))
        with pytest.raises(HookError) as raised:
            await do_before_point(Hook(post="/reset"), there, 1, tmp_path / "hook.log")
        server.close()
        return str(raised.value)

    said = asyncio.run(go())
    assert "answers 500: xxx" in said
    assert KEY[:6] not in said


def test_a_crash_is_told_with_the_signal(log: Path) -> None:
    async def go() -> str:
        server = launched(log, free_port(), "well")
        await server.start()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSEGV)
        how = await server.wait()
        await server.stop()
        return how

    assert asyncio.run(go()) == "it was ended by SIGSEGV"


@linux
@pytest.mark.parametrize("how", ["well", "deaf", "family"])
def test_a_guardian_that_is_killed_takes_the_server_along(log: Path, how: str) -> None:
    async def go() -> str:
        port = free_port()
        server = launched(log, port, how)
        await bring_up(server, target(port), 20.0, asyncio.Event())
        assert server.guardian_pid is not None
        os.kill(server.guardian_pid, signal.SIGKILL)
        ended = await asyncio.wait_for(server.wait(), 10)
        await server.stop()
        return ended

    assert asyncio.run(go()) == "its guardian was killed"
    assert belonging(log) == []


SLOW_TO_END = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(0.5)
    pathlib.Path(sys.argv[1]).write_text("saved")
    sys.exit()
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).write_text("up")
time.sleep(600)
"""


@pytest.mark.parametrize(
    "wrapper",
    [
        '"$@"; true',
        pytest.param('setsid "$@"; true', marks=linux),
        pytest.param('(setsid "$@" &) ; sleep 600; true', marks=linux),
    ],
)
def test_what_a_wrapper_started_has_its_time_to_end_in(log: Path, tmp_path: Path, wrapper: str) -> None:
    told = tmp_path / "told"

    async def go() -> float:
        words = ["sh", "-c", wrapper, "sh", sys.executable, "-c", SLOW_TO_END, str(told)]
        server = Launched(words, {}, None, log, 30.0)
        await server.start()
        await asyncio.to_thread(written, told)
        began = time.monotonic()
        await server.stop()
        return time.monotonic() - began

    assert asyncio.run(go()) < 20
    assert told.read_text() == "saved"


@linux
@pytest.mark.parametrize("whom", ["outer", "inner"])
def test_what_hides_its_mark_goes_with_a_guardian_that_is_killed(log: Path, tmp_path: Path, whom: str) -> None:
    pid = tmp_path / "pid"
    hidden = f"env -i /bin/sh -c 'echo $$ > {pid}; exec sleep 600'"

    async def go() -> None:
        server = Launched(["sh", "-c", f"setsid {hidden} & exec sleep 600"], {}, None, log, 30.0)
        await server.start()
        await asyncio.to_thread(written, pid)
        assert server.guardian_pid is not None
        os.kill(server.guardian_pid if whom == "outer" else only_child(server.guardian_pid), signal.SIGKILL)
        assert await asyncio.wait_for(server.wait(), 10) == "its guardian was killed"
        await server.stop()

    asyncio.run(go())
    assert gone(int(pid.read_text()))


OURSELVES = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from endpoints.hooks import HookError, do_before_point
from endpoints.launching import Launched
async def go():
    server = Launched([sys.executable, {server!r}, {port!r}, {how!r}], {{"PIDS": {pids!r}}}, None, Path({log!r}), 0.5)
    await server.start()
    print(server.guardian_pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(go())
"""


@linux
@pytest.mark.parametrize("how", ["well", "deaf", "family", "hang"])
def test_our_own_kill_leaves_nothing(log: Path, tmp_path: Path, how: str) -> None:
    pids = tmp_path / "pids"
    code = OURSELVES.format(
        root=str(ROOT), server=str(SERVER), port=str(free_port()), how=how, pids=str(pids), log=str(log)
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as ourselves:
        assert ourselves.stdout is not None
        guardian = int(ourselves.stdout.readline())
        while how != "hang" and not pids.exists():
            time.sleep(0.02)
        assert belonging(log)
        ourselves.kill()
    assert none_left(log)
    assert gone(guardian)


@linux
@pytest.mark.parametrize("both", [False, True])
def test_we_are_killed_together_with_the_guardian(log: Path, tmp_path: Path, both: bool) -> None:
    """The guardian's other process ends what is left; and where that is killed as well, the next start does."""
    pids = tmp_path / "pids"
    code = OURSELVES.format(
        root=str(ROOT), server=str(SERVER), port=str(free_port()), how="family", pids=str(pids), log=str(log)
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as ourselves:
        assert ourselves.stdout is not None
        guardian = int(ourselves.stdout.readline())
        while not pids.exists():
            time.sleep(0.02)
        inner = only_child(guardian)
        os.kill(ourselves.pid, signal.SIGSTOP)  # so that neither sees the other go
        if both:
            os.kill(inner, signal.SIGKILL)
        os.kill(guardian, signal.SIGKILL)
        ourselves.kill()
    if both:
        assert belonging(log), "its children in sessions of their own"
        assert up(log, "well") == ""
    assert none_left(log)
    assert gone(inner)


def gone(pid: int) -> bool:
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()
