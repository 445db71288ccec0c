"""Keeps one command, and everything it starts, from outliving us. Run as a process of its own; standard library only.

It reads one line of JSON from its standard input (`command`, `env`, `cwd`, `log`, `stop_seconds`), starts the command
in a session of its own, and holds the input open. When the other end of it closes, because we asked, ended or were
killed, it stops the command: SIGTERM to its group, and after `stop_seconds` SIGKILL to all that is left. On its
standard output it says `started PID`, then `ended CODE` (negative: a signal), or `cannot REASON`.

On Linux it adopts what loses its parent, so that descendants in sessions of their own are found too. The command itself
dies with the guardian, and whatever else bears the server's mark is ended by a twin, which only waits for the guardian
to be killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_LINUX = sys.platform == "linux"
MARK = "ENDSWEEP_SERVER"
"""In the environment of all that a server consists of: the path of its log. Whoever has it is ours to kill."""

_FAREWELL_S = 10.0  # for what was killed to be gone


def main() -> None:
    """Guard until the command has ended, or we are to end it."""
    prctl = _prctl()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    told, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    asked: list[int] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)  # handlers, not SIG_IGN, which the command would inherit
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: asked.append(number))
    order = json.loads(_line())
    mother = os.getpid()
    if _LINUX:
        _leave_twin(order["env"][MARK])

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != mother:  # we died before it was set
            os._exit(1)

    try:
        with Path(order["log"]).open("ab") as log:
            child = subprocess.Popen(
                order["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=order["cwd"],
                env=order["env"],
                start_new_session=True,
                preexec_fn=in_child,
            )
    except (OSError, ValueError, subprocess.SubprocessError) as exc:
        _say(f"cannot {getattr(exc, 'strerror', None) or exc}")
        return
    _say(f"started {child.pid}")
    code = _reap(child.pid)
    while code is None and not asked:
        ready, _, _ = select.select([0, told], [], [])
        if 0 in ready:  # closed: nothing more is ever written to it
            break
        os.read(told, 4096)
        code = _reap(child.pid)
    family = _family()
    if code is None:
        _ask(child.pid, order["stop_seconds"])
    else:
        _say(f"ended {code}")
    _kill_all(child.pid, family)


def _leave_twin(mark: str) -> None:
    """A child that ends all that has the mark when we are gone; when we go in order, it goes before us."""
    watched, ours = os.pipe()  # nobody but us has the end whose closing it waits for
    if os.fork():
        os.close(watched)
        return
    os.setsid()
    for fd in (ours, 0, 1):  # who reads what we say has to see us go
        os.close(fd)
    signal.set_wakeup_fd(-1)
    while os.read(watched, 1):
        pass
    kill_marked(mark)
    os._exit(0)


def kill_marked(mark: str) -> None:
    """SIGKILL to every process whose environment has this mark, until there is none (elsewhere than on Linux none is
    found)."""
    for _ in range(200):
        found = _marked(mark)
        if not found:
            return
        for pid in found:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.01)


def _marked(mark: str) -> list[int]:
    entry, found = f"{MARK}={mark}".encode(), []
    if not Path("/proc/self/environ").exists():
        return []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if entry in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                continue  # gone by now, or not ours
    return found


def _prctl() -> Any:
    if not _LINUX:
        return lambda *_: 0
    return ctypes.CDLL(None, use_errno=True).prctl


def _line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 65_536)
        if not part:  # we ended before we had said what to start
            sys.exit(0)
        line += part
    return line


def _say(text: str) -> None:
    try:
        os.write(1, f"{text}\n".encode())
    except OSError:
        pass  # nobody is there to hear it


def _reap(pid: int) -> int | None:
    """Bury whoever has died; the exit code of `pid` when it is among them (negative: a signal)."""
    code = None
    while True:
        try:
            gone, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if gone == 0:
            return code
        if gone == pid:
            code = os.waitstatus_to_exitcode(status)


def _ask(pid: int, seconds: float) -> None:
    """SIGTERM to the group, and time for the command to end in."""
    _signal(pid, signal.SIGTERM, group=True)
    end = time.monotonic() + seconds
    while _reap(pid) is None and time.monotonic() < end:
        time.sleep(0.02)


def _kill_all(pid: int, family: set[int]) -> None:
    """SIGKILL to the command's group and to all that descends from us, until none is left."""
    end = time.monotonic() + _FAREWELL_S
    _signal(pid, signal.SIGKILL, group=True)
    while left := _family() | (set() if _LINUX else family):
        family = set()  # told once; whatever has that number later is not ours
        for each in left:
            _signal(each, signal.SIGKILL)
        _reap(pid)
        if time.monotonic() > end:
            return
        time.sleep(0.02)


def _signal(pid: int, number: int, group: bool = False) -> None:
    try:
        (os.killpg if group else os.kill)(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _family() -> set[int]:
    """All that descends from us."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        todo += (below := children.get(todo.pop(), []))
        found.update(below)
    return found


def _parents() -> list[tuple[int, int]]:
    """(pid, its parent) of every process."""
    if not _LINUX:
        with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True) as ps:
            assert ps.stdout is not None
            rows = [line.split() for line in ps.stdout]
        return [(int(pid), int(parent)) for pid, parent in rows if int(pid) != ps.pid]
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue  # gone by now
            found.append((int(entry.name), int(stat.rpartition(")")[2].split()[1])))
    return found


if __name__ == "__main__":
    main()
