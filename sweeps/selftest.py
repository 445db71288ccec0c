"""What this machine's client can carry, and how exact it is: measured against the null server's own record.

The levels run through the same code as a sweep's points; only the endpoint is one whose true times are known.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from endpoints.attempts import ReusePolicy
from endpoints.resources import descriptor_shortage, raise_descriptor_limit
from endpoints.simulator.null import NullOptions, NullProcess
from profiles.loading import load_sweep
from sweeps.capacity import Capacity
from sweeps.clock import RealClock
from sweeps.files import write_json
from sweeps.health import ClientMonitor
from sweeps.load import Sent
from sweeps.manifest import host, libraries
from sweeps.measure import Measurement
from sweeps.session import Prepared, prepare
from sweeps.store import utc_now

SCHEMA_VERSION = 1
EXACT, EXACT_P99 = 0.01, 0.05  # shares of the true value: of the means of ttft and tpot, and of ttft p99
_BULK_STREAMS, _BULK_REQUESTS = 64, 2_000


@dataclass(frozen=True, slots=True)
class Programme:
    """What is measured: streams at once, and the pace of each, in ms and tokens."""

    levels: tuple[int, ...]
    pace: NullOptions
    rounds: int  # counted requests a stream


FULL = Programme((16, 64, 256, 512, 1024), NullOptions(ttft_ms=200, jitter_ms=200, chunk_ms=20, tokens=64), 2)
QUICK = Programme((16, 128, 512), NullOptions(ttft_ms=150, jitter_ms=100, chunk_ms=20, tokens=24), 2)


@dataclass(frozen=True, slots=True)
class Level:
    """One level. Errors are (measured - true) / true over the same requests; times in ms; `lost`: requests that the
    server got and the client has no record of."""

    streams: int
    requests: int
    lost: int
    in_flight_max: int | None
    chunks_per_s: float | None
    ttft_ms: float | None
    ttft_error: float | None
    ttft_p99_error: float | None
    tpot_ms: float | None
    tpot_error: float | None
    client_lag_ms_p99: float | None
    loop_lag_ms_p99: float | None
    cpu_fraction: float | None
    cpu_wait_fraction: float | None
    client_bound: str | None  # the verdict's severity
    exact: bool


async def selftest(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure; the document that is stored and printed. Raises RuntimeError when the null server does not start."""
    programme = QUICK if quick else FULL
    most = raise_descriptor_limit()
    levels = [n for n in programme.levels if descriptor_shortage(n, most) is None]
    rows: list[Level] = []
    with NullProcess(programme.pace) as server:
        for streams in levels:
            say(f"{streams} streams")
            rows.append(await measure_level(server, programme, streams))
        say("replies in one piece")
        bulk, transport = await _bulk(server)
    return {
        "schema_version": SCHEMA_VERSION,
        "created_at": utc_now(),
        "quick": quick,
        "transport": transport,
        **_identity(),
        "pace": {name: getattr(programme.pace, name) for name in ("ttft_ms", "jitter_ms", "chunk_ms", "tokens")},
        "levels": [asdict(row) for row in rows],
        "bulk": bulk,
        "limits": limits_of(rows),
    }


def limits_of(levels: list[Level]) -> dict[str, Any]:
    """The highest level up to which every one was exact. `at_least`: no level was too much."""
    good: Level | None = None
    for level in sorted(levels, key=lambda level: level.streams):
        if not level.exact:
            break
        good = level
    return {
        "streams": good.streams if good else None,
        "chunks_per_s": good.chunks_per_s if good else None,
        "at_least": good is not None and all(level.exact for level in levels),
    }


def is_exact(ttft: float | None, ttft_p99: float | None, tpot: float | None, lost: int, bound: str | None) -> bool:
    """Whether a level's errors are immaterial, and a run would not have called the point invalid for the client."""
    known = [(ttft, EXACT), (tpot, EXACT), (ttft_p99, EXACT_P99)]
    return lost == 0 and bound != "invalid" and all(e is not None and abs(e) <= most for e, most in known)


async def measure_level(server: NullProcess, programme: Programme, streams: int) -> Level:
    """One level against a null server that paces as the programme says."""
    await _reset(server)
    prepared = prepare(_sweep(server.url, streams, programme.rounds * streams, programme.pace.tokens), {})
    ended, point = await _measured(prepared)
    truth = await _truth(server)
    true = {row["id"]: row for row in truth["requests"]}
    pairs = [(s, _number(s)) for s in ended]
    lost = truth["received"] - sum(s.exchange.attempts for s in ended if s.exchange.sent_ns is not None)
    both = [(s.exchange, true[number]) for s, number in pairs if s.counted and number in true]
    ours = np.array([(e.sent_ns, e.chunk_ns[0], e.chunk_ns[-1]) for e, _ in both], np.int64).reshape(-1, 3)
    theirs = np.array([(t["received_ns"], t["first_token_ns"], t["last_token_ns"]) for _, t in both], np.int64).reshape(
        -1, 3
    )
    after = np.array([t["tokens"] - 1 for _, t in both], np.int64)
    ttft, true_ttft = ((stamps[:, 1] - stamps[:, 0]) / 1e6 for stamps in (ours, theirs))
    tpot, true_tpot = ((stamps[:, 2] - stamps[:, 1]) / 1e6 / after for stamps in (ours, theirs))
    mean, p99, pace = _error(ttft, true_ttft, np.mean), _error(ttft, true_ttft, _p99), _error(tpot, true_tpot, np.mean)
    client = point["client"]
    bound = next((v["severity"] for v in point["verdicts"] if v["code"] == "client_bound"), None)
    return Level(
        streams=streams,
        requests=len(both),
        lost=lost,
        in_flight_max=point["in_flight"]["max"],
        chunks_per_s=point["system_tps"],
        ttft_ms=float(true_ttft.mean()) if both else None,
        ttft_error=mean,
        ttft_p99_error=p99,
        tpot_ms=float(true_tpot.mean()) if both else None,
        tpot_error=pace,
        client_lag_ms_p99=client["client_lag_ms_p99"],
        loop_lag_ms_p99=client["loop_lag_ms_p99"],
        cpu_fraction=client["cpu_fraction"],
        cpu_wait_fraction=client["cpu_wait_fraction"],
        client_bound=bound,
        exact=is_exact(mean, p99, pace, lost, bound),
    )


async def _bulk(server: NullProcess) -> tuple[dict[str, Any], str]:
    """Whole replies in one piece, as many as go: the ceiling of parsing, not of pace. And the transport's name."""
    query = "?bulk=1&ttft_ms=0&jitter_ms=0"
    _, point = await _measured(prepare(_sweep(server.url + query, _BULK_STREAMS, _BULK_REQUESTS, 64), {}))
    found = {
        "streams": _BULK_STREAMS,
        "requests_per_s": point["request_rate"],
        "chunks_per_s": point["system_tps"],
        "completed": point["counts"]["completed"],
        "failed": point["counts"]["failed"],
    }
    return found, str(point["client"]["transport"])


def _sweep(url: str, streams: int, requests: int, tokens: int) -> Any:
    document = {
        "name": "selftest",
        "endpoint": {"url": url, "model": "null"},
        "workload": {"use": "chat-short", "max_tokens": tokens},
        "load": {"concurrency": [streams], "requests": requests},
    }
    return load_sweep(None, document, {})


async def _measured(prepared: Prepared) -> tuple[list[Sent], dict[str, Any]]:
    ended: list[Sent] = []
    planned, arm = prepared.points[0], prepared.sweep.arms[0]
    target = prepared.targets[arm.name]
    transport = target.transport(ReusePolicy())
    measurement = Measurement(
        prepared.sweep,
        arm,
        target.shape,
        planned,
        prepared.prompts,
        transport,
        RealClock(),
        on_ended=ended.append,
        monitor=ClientMonitor(),
    )
    gc.collect()
    gc.freeze()
    try:
        measured = await measurement.run()
    finally:
        gc.unfreeze()
        await transport.close()
    return ended, measured.point


def _number(sent: Sent) -> int:
    """Which of the null server's requests it was; -1 where no reply says."""
    name = sent.exchange.request_id
    return int(name.rpartition("-")[2], 16) if name else -1


def _error(ours: Any, true: Any, of: Callable[[Any], Any]) -> float | None:
    return float(of(ours) / of(true) - 1) if len(ours) else None


def _p99(values: Any) -> Any:
    return np.percentile(values, 99, method="lower")


async def _truth(server: NullProcess) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(server.root + "/truth") as reply:
        document: dict[str, Any] = json.loads(await reply.read())
    return document


async def _reset(server: NullProcess) -> None:
    async with aiohttp.ClientSession() as session, session.delete(server.root + "/truth") as reply:
        await reply.read()


# -- where it is kept ------------------------------------------------------------------------------------------------


def state_file(env: Mapping[str, str]) -> Path:
    """`endsweep/selftest.json` in the user's state folder (XDG_STATE_HOME, by default ~/.local/state)."""
    home = env.get("XDG_STATE_HOME")
    folder = Path(home) if home and Path(home).is_absolute() else Path.home() / ".local" / "state"
    return folder / "endsweep" / "selftest.json"


def store(document: Mapping[str, Any], env: Mapping[str, str]) -> Path:
    """Write it where runs find it. Raises OSError."""
    path = state_file(env)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, dict(document))
    return path


def capacity_from(env: Mapping[str, str]) -> Capacity | None:
    """What one process carries by the last selftest; None where there is none of this machine and this client."""
    try:
        document = json.loads(state_file(env).read_text(encoding="utf-8"))
        same = all(document[name] == value for name, value in _identity().items())
        chunks = document["limits"]["chunks_per_s"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if document.get("schema_version") != SCHEMA_VERSION or not same or not isinstance(chunks, int | float):
        return None
    return Capacity(float(chunks), measured=True)


def _identity() -> dict[str, Any]:
    """What a selftest holds for: this machine, and these versions."""
    return {"tool": {"name": "endsweep", "version": version("endsweep")}, "host": host(), "libraries": libraries()}
