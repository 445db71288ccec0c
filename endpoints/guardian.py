"""Keeps one command, and everything it starts, from outliving us. Run as a process of its own; standard library only.

It reads one line of JSON from its standard input (`command`, `env`, `cwd`, `log`, `stop_seconds`), starts the command
in a session of its own, and holds the input open. When the other end of it closes, because we asked, ended or were
killed, it stops the command: SIGTERM to its group, and after `stop_seconds` SIGKILL to all that is left. On its
standard output it says `started PID`, then `ended CODE` (negative: a signal), or `cannot REASON`.

On Linux it adopts what loses its parent, so that descendants in sessions of their own are found too. There it is two
processes: the outer one only waits for the inner one, which does all this. When the inner one is killed, the command
dies with it and the outer one adopts and ends the rest; when the outer one is killed, the inner one ends all at once.
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

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FAREWELL_S = 10.0  # for what was killed to be gone


def main() -> None:
    """Guard until the command has ended, or we are to end it."""
    prctl = _prctl()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    order = json.loads(_line())
    asked: list[int] = []
    for number in _STOPS:  # handlers, not SIG_IGN, which the command would inherit
        signal.signal(number, lambda number, _frame: asked.append(number))
    outer = _within_another(prctl, order["env"][MARK]) if _LINUX else None
    told, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    mother = os.getpid()

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
    if code is not None:
        _say(f"ended {code}")
    elif outer in (None, os.getppid()):
        _ask(child.pid, order["stop_seconds"])
    _kill_all(child.pid, family)


def _within_another(prctl: Any, mark: str) -> int:
    """Go on as a child of the process that this was, which ends what we leave behind; its pid."""
    outer = os.getpid()
    inner = os.fork()
    if inner == 0:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)  # which a child does not inherit
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != outer:  # it died before it was set
            os._exit(1)
        return outer
    for number in _STOPS:
        signal.signal(number, lambda number, _frame: _signal(inner, number))
    for fd in (0, 1):  # who reads what is said has to see the inner one go
        os.close(fd)
    while os.waitpid(-1, 0)[0] != inner:
        pass  # somebody adopted
    _kill_all(inner, set())
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
    """SIGTERM to the group, and time for all that descends from us to end in; what the command, once it is gone, has
    left elsewhere gets a SIGTERM too."""
    _signal(pid, signal.SIGTERM, group=True)
    end, gone, all_asked = time.monotonic() + seconds, False, False
    while time.monotonic() < end:
        gone = _reap(pid) is not None or gone
        left = _family()
        if not left:
            return
        if gone and not all_asked:
            all_asked = True
            for each in left:
                if _group_of(each) != pid:
                    _signal(each, signal.SIGTERM)
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


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _family() -> set[int]:
    return family_of(os.getpid())


def family_of(ancestor: int) -> set[int]:
    """All that descends from a process."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = [ancestor]
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
