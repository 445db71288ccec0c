"""What a measurement stands on: a server that knows the truth on one core, a client on another, and what else runs."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from endpoints.simulator.null import NullProcess

ROOT = Path(__file__).resolve().parents[1]
CLIENT_CORE, SERVER_CORE = 0, 1


def pin(pid: int, core: int) -> None:
    """Keep a process to one core, where the system can, and where there is a second."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(pid, {core})


class Truth:
    """A paced server for a `with` block: the one in C where a compiler is found, else the one in Python."""

    def __init__(self) -> None:
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        self.compiled = compiler is not None and sys.platform == "linux"
        self._compiler = compiler
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self.compiled:
            binary = Path(self._stack.enter_context(tempfile.TemporaryDirectory())) / "truth"
            source = Path(__file__).with_name("truth_server.c")
            subprocess.run([str(self._compiler), "-O2", "-o", str(binary), str(source)], check=True)
            child = subprocess.Popen([str(binary)], stdout=subprocess.PIPE, text=True)
            self._stack.callback(child.wait)
            self._stack.callback(child.kill)
            assert child.stdout is not None
            self.url, pid = child.stdout.readline().strip(), child.pid
        else:
            server = self._stack.enter_context(NullProcess())
            self.url, pid = server.url, server.pid
        pin(pid, SERVER_CORE)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def paced(self, ttft_ms: float, jitter_ms: float, chunk_ms: float, *, bulk: bool = False) -> str:
        """Where streams of this pace are asked for."""
        query = f"ttft_ms={ttft_ms}&jitter_ms={jitter_ms}&chunk_ms={chunk_ms}&bulk={int(bulk)}"
        return f"{self.url}/chat/completions?{query}"

    def forget(self) -> None:
        self._page("/truth", "DELETE")

    def truth(self) -> dict[str, Any]:
        """Of the streams since the last `forget`."""
        return self._page("/truth?requests=0", "GET")

    def _page(self, path: str, method: str) -> Any:
        asked = urllib.request.Request(self.url.removesuffix("/v1") + path, method=method)
        with urllib.request.urlopen(asked, timeout=30) as reply:
            return json.load(reply)


def run_client(kind: str, url: str, *, streams: int, requests: int, tokens: int, **more: str) -> dict[str, Any]:
    """One load, by `benchmarks/client.py`."""
    counts = {"streams": streams, "requests": requests, "tokens": tokens} | more
    words = [f"--{name}={value}" for name, value in counts.items()]
    done = pinned([sys.executable, "-m", "benchmarks.client", kind, url, *words])
    result: dict[str, Any] = json.loads(done.stdout)
    if result["failed"]:
        sys.stderr.write(f"{kind}: {result['failed']} of {requests} requests failed\n")
    return result


def pinned(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command on the client's core. Raises subprocess.CalledProcessError."""
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pin(child.pid, CLIENT_CORE)
    out, err = child.communicate()
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command, out, err)
    return subprocess.CompletedProcess(command, 0, out, err)


def family_memory_mb(pid: int) -> float:
    """Proportional set size of a process and all that it has started; 0 where the kernel does not tell."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(after_name[1]), []).append(int(entry.name))
    family, total = [pid], 0.0
    for member in family:
        family += children.get(member, [])
        try:
            rollup = Path(f"/proc/{member}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
    return total


class Bystanders:
    """How many cores, on average, others kept busy since this was made; None where the kernel does not tell."""

    def __init__(self) -> None:
        self._began, self._busy, self._ours = time.monotonic(), busy_s(), ours_s()

    def cores(self) -> float | None:
        if self._busy is None or (busy := busy_s()) is None:
            return None
        return max(0.0, (busy - self._busy) - (ours_s() - self._ours)) / (time.monotonic() - self._began)


def busy_s() -> float | None:
    try:
        user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    except OSError:
        return None
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def ours_s() -> float:
    return sum(
        u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
