"""How well this process keeps up: how late its event loop is served, what it burns, waits for and pauses over."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import socket
import stat
import struct
import sys
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

BEAT_NS = 11_000_000  # no divisor or multiple of the round intervals at which servers send
_BEATS_A_MARK = 23  # a reading of the CPU clocks every quarter of a second
_MOST_AT_ONCE = 10_000  # missed beats noted after one stall: a process that was stopped for an hour has too many

_SCHEDSTAT = Path("/proc/self/schedstat")
_OPEN_FILES = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")


@dataclass(frozen=True, slots=True)
class Vitals:
    """One process over a span. Flat arrays of int64 (ns on CLOCK_MONOTONIC).

    `due`, `late`: each beat, and how much later the loop served it. `marks`: time, CPU time used by then, and time
    waited for a core by then (-1 where the system does not tell), one after the other. `gc_pause_ns`: the longest.
    `sockets`: most network connections that were seen open, at some moments; None where the system does not tell.
    """

    due: array[int]
    late: array[int]
    marks: array[int]
    gc_pause_ns: int
    sockets: int | None


class Metronome(Protocol):
    """A file descriptor that becomes readable at a fixed pace, whatever the process does meanwhile."""

    fd: int

    def missed(self) -> int:
        """Beats since the last call."""
        ...

    def close(self) -> None: ...


class VitalsWatch:
    """Watches the running loop. A beat is a descriptor that the kernel makes readable on time, so its lateness is what
    bytes from a socket would have suffered: the wait for a core, for the callbacks before it, and for the collector.
    """

    def __init__(self, metronome: Callable[[int], Metronome] | None = None) -> None:
        self._make = metronome or (KernelMetronome if sys.platform == "linux" else ThreadMetronome)
        self._metronome: Metronome | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due, self._late, self._marks = array("q"), array("q"), array("q")
        self._gc_began = self._gc_pause = 0
        self._sockets: int | None = None
        gc.callbacks.append(self._collected)
        self._mark()
        self._next = time.monotonic_ns() + BEAT_NS
        self._metronome = self._make(self._next)
        self._loop.add_reader(self._metronome.fd, self._beat)

    def _beat(self) -> None:
        now = time.monotonic_ns()
        assert self._metronome is not None
        missed = self._metronome.missed()
        for due in range(self._next, self._next + BEAT_NS * min(missed, _MOST_AT_ONCE), BEAT_NS):
            self._due.append(due)
            self._late.append(max(0, now - due))
        self._next += BEAT_NS * missed
        if now - self._marks[-3] >= BEAT_NS * _BEATS_A_MARK:
            self._mark()

    def _mark(self) -> None:
        self._marks.extend((time.monotonic_ns(), time.process_time_ns(), waited_ns()))
        marks = len(self._marks) // 3
        if marks & (marks - 1) == 0:  # counting a thousand takes a few ms, so not often: at the 2nd, 4th, 8th, …
            self._count()

    def _count(self) -> None:
        if (found := connections()) is not None:
            self._sockets = max(self._sockets or 0, found)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        now = time.monotonic_ns()
        if phase == "start":
            self._gc_began = now
        else:
            self._gc_pause = max(self._gc_pause, now - self._gc_began)

    def stop(self) -> Vitals:
        """What was seen since `start`."""
        assert self._metronome is not None
        self._mark()
        gc.callbacks.remove(self._collected)
        self._loop.remove_reader(self._metronome.fd)
        self._metronome.close()
        self._metronome = None
        self._count()
        return Vitals(self._due, self._late, self._marks, self._gc_pause, self._sockets)


class _Spec(ctypes.Structure):
    """struct itimerspec: interval and first expiry, each in seconds and nanoseconds."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]


class KernelMetronome:
    """Linux's timerfd (os.timerfd_create is in Python 3.13 and later only). Raises OSError."""

    _NONBLOCK_CLOEXEC, _ABSOLUTE, _MONOTONIC = 0o2004000, 1, 1

    def __init__(self, first_ns: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.timerfd_create(self._MONOTONIC, self._NONBLOCK_CLOEXEC)
        spec = _Spec(0, BEAT_NS, *divmod(first_ns, 1_000_000_000))
        if self.fd < 0 or libc.timerfd_settime(self.fd, self._ABSOLUTE, ctypes.byref(spec), None) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def missed(self) -> int:
        try:
            return int(struct.unpack("Q", os.read(self.fd, 8))[0])
        except BlockingIOError:
            return 0

    def close(self) -> None:
        os.close(self.fd)


class ThreadMetronome:
    """Where the kernel has no such timer: a thread that sleeps and writes. Its own lateness counts as the loop's."""

    def __init__(self, first_ns: int) -> None:
        self._ours, self._its = socket.socketpair()
        self._ours.setblocking(False)
        self._its.setblocking(False)
        self.fd = self._ours.fileno()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(first_ns,), name="metronome", daemon=True)
        self._thread.start()

    def _run(self, due: int) -> None:
        while not self._closed.wait(max(0.0, (due - time.monotonic_ns()) / 1e9)):
            try:
                self._its.send(b".")
            except BlockingIOError:
                pass  # thousands of beats unread already
            due += BEAT_NS

    def missed(self) -> int:
        try:
            return len(self._ours.recv(65_536))
        except BlockingIOError:
            return 0

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._ours.close()
        self._its.close()


def waited_ns() -> int:
    """How long the main thread has been ready to run without a core to run on; -1 where the system does not tell."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return -1


def connections() -> int | None:
    """Network connections this process has open; None where the system does not tell."""
    try:
        names = [path.name for path in _OPEN_FILES.iterdir()]
    except OSError:
        return None
    return sum(_is_connection(int(name)) for name in names if name.isdecimal())


def _is_connection(number: int) -> bool:
    """Whether a descriptor is a network socket with a peer."""
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        seen = socket.socket(fileno=number)
    except OSError:  # closed meanwhile
        return False
    try:
        if seen.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        seen.getpeername()
    except OSError:
        return False
    finally:
        seen.detach()  # it is not ours to close
    return True
