"""A port for a server that we start: free, ours alone while the server is up, and listened at by that server."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from endpoints.guardian import family_of
from profiles.hosts import origin

_LISTENING = "0A"  # TCP_LISTEN of include/net/tcp_states.h
# Their servers are no descendants of theirs, so nothing can be known of who listens.
_ELSEWHERE = {"docker", "podman", "nerdctl", "kubectl", "ssh", "systemd-run", "srun"}


def free_port() -> int:
    """A TCP port of this machine that nobody listens on now, nor any run is about to have a server listen on."""
    for _ in range(100):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port: int = listener.getsockname()[1]
        if (claim := claimed(port)) is not None:
            os.close(claim)
            break
    return port


def port_here(url: str) -> int | None:
    """The port that a URL leads to, where that is a port of this machine."""
    _, host, port = origin(url)
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return None
    return port if any(_is_ours(family, address) for family, _, _, _, address in found) else None


def _is_ours(family: int, address: tuple[Any, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.bind(address)  # to any port: only one's own address can be bound
    except OSError:
        return False
    return True


def claimed(port: int) -> int | None:
    """A descriptor of a lock on the port; the port is claimed while it, or a copy of it in another process, is open.
    None when another run has claimed it.

    The lock is a file in the folder of temporary files. Where none can be had there, nothing is locked.
    """
    path = Path(tempfile.gettempdir()) / f"endsweep-port-{port}.lock"
    try:
        claim = _opened(path)
    except OSError:
        return os.open(os.devnull, os.O_RDONLY)
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(claim)
        return None
    except OSError:
        pass  # a file system without locks
    return claim


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except PermissionError:  # somebody else's, which Linux does not let us create in a folder of everyone's
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


def stranger_at(port: int, guardian: int) -> int | None:
    """The pid of a process that listens on the port and does not descend from `guardian`, where nobody who does listens
    at the same address. None where there is none, or it cannot be known: elsewhere than on Linux, of other users'
    processes, and of what a container's client or the like has started."""
    if sys.platform != "linux":
        return None
    family = family_of(guardian)
    if _ELSEWHERE & {_name(pid) for pid in family}:
        return None
    listeners = dict(_listeners(port))
    ours = {inode for pid in family for inode in _sockets(pid, listeners.keys())}
    at_ours = {listeners[inode] for inode in ours}
    others = {inode for inode, address in listeners.items() if inode not in ours and (not ours or address in at_ours)}
    if not others:
        return None
    processes = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return next((pid for pid in processes if pid not in family and _sockets(pid, others)), None)


def _listeners(port: int) -> Iterator[tuple[str, str]]:
    """(inode, local address) of all sockets that listen on the port."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9], fields[1]


def _sockets(pid: int, wanted: Set[str]) -> set[str]:
    """Which of the wanted sockets (inodes) the process has; none where we may not look."""
    found = set()
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue  # closed by now
    except OSError:
        pass
    return found & wanted


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
