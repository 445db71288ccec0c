"""What storing and analysing a point costs: records as of 8,192 streams, injected where the load hands them over."""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from endpoints.outcomes import Outcome
from endpoints.transport import Call, Exchange
from sweeps.load import LoadPlan, Sent, Window
from sweeps.point import PointFacts, analysed
from sweeps.prompts import FILLER, MEASURE, WARMUP, Planned
from sweeps.requests import read_requests
from sweeps.spool import FileSpool
from sweeps.verdicts import Earlier

STREAMS, FRAGMENTS, GAP_NS = 8192, 256, 25_000_000
TWENTY_MINUTES = STREAMS * 1200 * 10**9 // GAP_NS  # fragments of all streams
_BYTES = 4  # a fragment on disk, at most


@dataclass(frozen=True, slots=True)
class Row:
    """`store_us`: CPU of this process to take in and write one request; `seconds`: wall time from the stored file to
    `point.json` and series, `cpu_s`: CPU of that; `peak_bytes`: the process's largest resident size, `before_bytes`:
    that before anything."""

    requests: int
    chunks: int
    store_us: float
    file_bytes: int
    seconds: float
    cpu_s: float
    before_bytes: int
    peak_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.requests:>9,} requests {self.chunks:>12,} chunks | stored at {self.store_us:.1f} us a request, "
            f"{self.file_bytes / 1e6:,.0f} MB on disk, {self.file_bytes / self.chunks:.2f} B a chunk | "
            f"point.json in {self.seconds:.1f} s ({self.cpu_s:.1f} s of CPU) | "
            f"peak RSS {self.peak_bytes / 1e6:.0f} MB ({self.before_bytes / 1e6:.0f} MB before)"
        )


def scale() -> None:
    """A point of 8,192 streams for 20 minutes at 40 chunks a second each; as much of it as the disk holds."""
    room = int(shutil.disk_usage(tempfile.gettempdir()).free * 0.8) // _BYTES
    chunks = min(TWENTY_MINUTES, room)
    share = "" if chunks == TWENTY_MINUTES else f", cut to {chunks / TWENTY_MINUTES:.0%}: the disk holds no more"
    print(f"\n{STREAMS:,} streams for 20 minutes{share}: {measured(chunks)}")


def measured(chunks: int, streams: int = STREAMS) -> Row:
    """Inject so many fragments, store and analyse them."""
    before = peak_bytes()
    n = max(2 * streams, chunks // FRAGMENTS)
    with tempfile.TemporaryDirectory() as folder:
        spool = FileSpool(Path(folder) / "requests.parquet.tmp")
        spent, last = 0.0, 0
        for sent in injected(n, streams):
            began = time.process_time()
            spool.add(sent)
            spent += time.process_time() - began
            last = max(last, sent.exchange.ended_ns or 0)
        began = time.process_time()
        spool.finish()
        spent += time.process_time() - began
        length = FRAGMENTS * GAP_NS
        began, cpu = time.perf_counter(), time.process_time()
        requests = read_requests(spool.path)
        point, _ = analysed(requests, facts(Window(length, last - length, 0), streams))
        json.dumps(point, allow_nan=False)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        size = spool.path.stat().st_size
    return Row(n, n * FRAGMENTS, spent / n * 1e6, size, seconds, cpu, before, peak_bytes())


def injected(n: int, streams: int = STREAMS, fragments: int = FRAGMENTS) -> Iterator[Sent]:
    """n requests in the order of their ends, `streams` at a time, their fragments about 25 ms apart."""
    rng = np.random.default_rng(0)
    length = fragments * GAP_NS
    gaps = np.maximum(rng.normal(GAP_NS, GAP_NS / 10, (64, fragments)), 1e3).astype(np.int64).cumsum(axis=1)
    for i in range(n):
        begin = i * length // streams
        arrivals = array("q")
        arrivals.frombytes((gaps[int(rng.integers(64))] + (begin + int(rng.integers(1_000_000)))).tobytes())
        exchange = Exchange(
            issued_ns=begin,
            connected_ns=begin,
            sent_ns=begin,
            headers_ns=arrivals[0],
            first_visible_ns=arrivals[0],
            ended_ns=arrivals[-1],
            attempts=1,
            status=200,
            outcome=Outcome.OK,
            chunk_ns=arrivals,  # type: ignore[arg-type]
            text_bytes=4 * fragments,
            text_hash=f"{i:016x}",
            input_tokens=100,
            output_tokens=fragments,
            finish_reason="length",
            request_id=f"request-{i}",
            model="m",
        )
        phase = WARMUP if i < streams else MEASURE if i < n - streams else FILLER
        planned = Planned(i, phase, f"p{i % 500}", "chat", i // 500, f"[{i:016x}] ", Call(b"", fragments, 400, i))
        yield Sent(planned, i % streams, begin, exchange, phase == MEASURE, phase)


def facts(window: Window, streams: int = STREAMS) -> PointFacts:
    return PointFacts(
        arm="a",
        plan=LoadPlan(streams, 60.0, None),
        trial=1,
        window=window,
        origin_unix_ns=0,
        origin_monotonic_ns=0,
        duration_s=1.0,
        notes=(),
        cut_short=None,
        client={"loop_lag_ms_p99": None, "cpu_fraction": None, "workers": 1, "transport": "injected"},
        error_rate=0.01,
        streamed=True,
        common_bytes=0,
        draft_tokens=None,
        prices=None,
        earlier=Earlier(),
        seed=0,
    )


def peak_bytes() -> int:
    """The largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Print one row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000_000)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    row = measured(a.chunks, a.streams)
    print(json.dumps(asdict(row)) if a.json else row)


if __name__ == "__main__":
    main()
