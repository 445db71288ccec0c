"""What the hot path costs, beside the least that it can cost, and how near to the truth its times are."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.rig import CLIENT_CORE, ROOT, Truth, family_memory_mb, pin, pinned, run_client

KINDS = ("floor", "httptools", "aiohttp")
LEVELS = (64, 256, 1024, 2048)
PACE = {"ttft_ms": 200, "jitter_ms": 400, "chunk_ms": 20}
TOKENS = 128


def chunks(server: Truth, runs: int) -> None:
    """256 streams of a token every 20 ms: one wake-up a chunk, as real servers make it."""
    load = {"streams": 256, "requests": 512, "tokens": TOKENS}
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(runs):
        for kind in KINDS:
            result = run_client(kind, server.paced(**PACE), **load)
            spent[kind].append(1e6 * result["cpu_s"] / (load["requests"] * TOKENS))
    compared("CPU us a chunk, 256 streams x 20 ms", spent)


def requests(server: Truth, runs: int) -> None:
    """Replies of one token, at once: nearly all is what a request costs."""
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(runs):
        for kind in KINDS:
            result = run_client(kind, server.paced(0, 0, 0, bulk=True), streams=64, requests=4000, tokens=1)
            spent[kind].append(1e6 * result["cpu_s"] / 4000)
    compared("CPU us a request, replies of one token", spent)


def burst(server: Truth, runs: int) -> None:
    """5,000 replies of 64 tokens, each in one write, 64 at a time."""
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(runs):
        for kind in KINDS:
            result = run_client(kind, server.paced(0, 0, 0, bulk=True), streams=64, requests=5000, tokens=64)
            spent[kind].append(result["cpu_s"])
    compared("CPU s, 5,000 replies of 64 tokens in bulk, 64 at a time", spent)


def exactness(server: Truth, runs: int) -> None:
    """TTFT and TPOT against the server's own record, all streams starting at once; the floor's error is the rig's."""
    print("\nError against truth, median [least, most]:")
    print(f"{'':>10} {'streams':>7} {'TTFT mean':>24} {'TTFT p99':>24} {'TPOT mean':>24} {'TPOT p99':>24} {'CPU':>5}")
    for streams in LEVELS if server.compiled else LEVELS[:-1]:
        kinds = KINDS if streams < LEVELS[-1] else KINDS[:-1]
        seen: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in kinds}
        for _ in range(runs):
            for kind in seen:
                server.forget()
                result = run_client(kind, server.paced(**PACE), streams=streams, requests=2 * streams, tokens=TOKENS)
                truth = server.truth()
                errors = [
                    result[name][part] / truth[name][part] - 1
                    for name in ("ttft_ms", "tpot_ms")
                    for part in ("mean", "p99")
                ]
                seen[kind].append((*errors, result["cpu_s"] / result["wall_s"]))
        for kind, rows in seen.items():
            *errors, busy = zip(*rows, strict=True)
            cells = " ".join(f"{relative(values):>24}" for values in errors)
            print(f"{kind:>10} {streams:>7} {cells} {statistics.median(busy):>5.0%}")


def memory(server: Truth, runs: int) -> None:
    """The whole program at 1,024 streams, its workers included."""
    peaks: dict[str, list[float]] = {"while streams flow": [], "in the analysis": [], "in the report": []}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            options = ["--concurrency=1024", "--requests=1024", f"--max-tokens={TOKENS}", f"--out={folder}/run"]
            command = [sys.executable, "-m", "endsweep", "run", server.url, *options]
            child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            pin(child.pid, CLIENT_CORE)
            peak, begun = dict.fromkeys(peaks, 0.0), False
            while child.poll() is None:
                flow, used = server.truth()["open"] > 0, family_memory_mb(child.pid)
                begun = begun or flow
                stored = any(Path(folder).glob("run/points/*/*/point.json"))
                phase = "in the report" if stored else "in the analysis" if begun and not flow else "while streams flow"
                peak[phase] = max(peak[phase], used)
                time.sleep(0.05)
            for phase, most in peak.items():
                peaks[phase].append(most)
    print("\nPeak memory of a whole run at 1,024 streams (PSS, all processes), MB:")
    for phase, values in peaks.items():
        print(f"  {phase:<20} {plain(values)}")


def startup(server: Truth, runs: int) -> None:
    """Commands that send next to nothing."""
    print("\nStarting up, CPU s (wall s):")
    for words in (["--help"], ["probe", server.url]):
        cpu, wall = [], []
        for _ in range(runs):
            began = time.perf_counter()
            done = pinned([sys.executable, "-c", _TIMED, *words])
            wall.append(time.perf_counter() - began)
            cpu.append(float(done.stderr.rsplit("\n", 2)[-2]))
        print(f"  endsweep {words[0]:<8} {plain(cpu)} ({plain(wall)})")


def answer(server: Truth, runs: int) -> None:
    """A run of one small point: all that the sweep's process spends, and what the page's does after the answer."""
    own, page = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            options = ["--concurrency=4", "--requests=40", "--max-tokens=8", f"--out={folder}/run"]
            done = pinned([sys.executable, "-c", _TIMED, "run", server.url, *options])
        spent = done.stderr.rsplit("\n", 3)[-3:-1]
        own.append(float(spent[1]))
        page.append(float(spent[0]))
    print("\nA run of one point of 40 requests, CPU s:")
    print(f"  start, point.json, answer in the terminal {plain(own)}")
    print(f"  page and pictures, a process after that   {plain(page)}")


# The command, and then what its children and it itself cost, on stderr.
_TIMED = """
import resource, sys, endsweep
try:
    endsweep.main()
finally:
    for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF):
        u = resource.getrusage(who)
        print(u.ru_utime + u.ru_stime, file=sys.stderr)
"""


def compared(title: str, spent: dict[str, list[float]]) -> None:
    print(f"\n{title}, median [least, most], and the ratio to the floor of the same turn:")
    for kind, values in spent.items():
        ratio = statistics.median(a / b for a, b in zip(values, spent["floor"], strict=True))
        print(f"{kind:>10} {plain(values):>24} {ratio:>7.2f} x")


def plain(values: Iterable[float]) -> str:
    known = sorted(values)
    return f"{statistics.median(known):.2f} [{known[0]:.2f}, {known[-1]:.2f}]"


def relative(values: Iterable[Any]) -> str:
    known = sorted(values)
    return f"{statistics.median(known):+.2%} [{known[0]:+.2%}, {known[-1]:+.2%}]"
