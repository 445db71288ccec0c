"""Streams that are cut, garbled, torn off or held up, and refusals: held against the journal of the server that did it.

What it does is queued beforehand, in order, so both sides can be counted.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.real.engines.llmock import Mock, llmock
from tests.real.sweeping import points, rows, sweep, verdicts

pytestmark = pytest.mark.timeout(300)
REQUESTS, EACH, IDLE_S = 40, 3, 0.5
KINDS = ("truncate", "malformed", "disconnect", "stall")
SPEC = """\
name: llmock
endpoint: {{url: "{url}", model: mock}}
workload: {{use: chat-short, max_tokens: 24}}
load: {{concurrency: 2, requests: {requests}}}
limits: {{error_rate: {error_rate}, idle_seconds: {idle}, first_byte_seconds: 10, point_seconds: 90}}
"""


def fault(kind: str, after: int = 2) -> dict[str, Any]:
    return {"type": "stream_fault", "kind": kind, "after_chunks": after, "stall_seconds": 4 * IDLE_S}


def spared(times: int = 1) -> list[dict[str, Any]]:
    """Requests that are let through: their fault would come after more events than a reply has."""
    return [fault("truncate", after=10_000)] * times


@pytest.fixture(scope="module")
def mock() -> Iterator[Mock]:
    with llmock() as running:
        yield running


def spec(mock: Mock, error_rate: float, requests: int = REQUESTS) -> str:
    return SPEC.format(url=mock.url, requests=requests, error_rate=error_rate, idle=IDLE_S)


@pytest.fixture(scope="module", params=[0.01, 0.9])
def faulty(request: pytest.FixtureRequest, mock: Mock, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(the run, the journal's faults by kind, limits.error_rate) of a point in which each kind came three times."""
    mock.reset()
    mock.queue(*spared(7), *(f for kind in KINDS * EACH for f in (fault(kind), *spared())))
    run = sweep(tmp_path_factory.mktemp("faults"), spec(mock, request.param))
    assert mock.pending == 0, "not every fault was met"
    # The journal says stream:truncate@2 for instance.
    told = [str(served["fault"]).split(":")[-1].split("@")[0] for served in mock.journal() if served["fault"]]
    return run, Counter(told), request.param


def test_what_failed_is_what_the_server_broke(faulty: Any) -> None:
    run, broke, _ = faulty
    assert broke == dict.fromkeys(KINDS, EACH)
    seen = Counter(row["outcome"] for row in rows(run))
    assert set(seen) <= {"ok", "truncated", "reset", "idle_timeout", "cancelled"}, seen
    assert seen["truncated"] + seen["reset"] == broke["truncate"] + broke["disconnect"]
    assert seen["truncated"] >= broke["truncate"]
    assert seen["idle_timeout"] == broke["stall"]
    # One event that is no JSON spoils no other: that reply has its text and its end.
    garbled = [row for row in rows(run) if row["dropped_events"]]
    assert len(garbled) == broke["malformed"]
    assert all(row["outcome"] == "ok" and row["dropped_events"] == 1 for row in garbled)


def test_counts_account_for_every_request(faulty: Any) -> None:
    run, _, _ = faulty
    (point,) = points(run)
    for counts in (point["counts"], point["counts_all"]):
        ended = ("completed", "failed", "cancelled", "rate_limited")
        assert counts["issued"] == sum(counts[how] for how in ended) == sum(counts["by_outcome"].values())
    assert point["counts"]["issued"] == REQUESTS
    assert point["counts_all"]["failed"] == 3 * EACH
    assert {e["outcome"] for e in point["errors"]} == set(point["counts"]["by_outcome"]) - {"ok"}


def test_no_failure_enters_a_latency(faulty: Any) -> None:
    run, _, _ = faulty
    (point,) = points(run)
    completed = point["counts"]["completed"]
    assert point["counts"]["failed"] > 0
    for metric in ("ttft_ms", "tpot_ms", "e2e_latency_ms"):
        assert point[metric]["n"] == completed, metric
    whole = [row["chunks"] for row in rows(run) if row["outcome"] == "ok" and not row["dropped_events"]]
    broken = [row["chunks"] for row in rows(run) if row["outcome"] not in ("ok", "cancelled")]
    assert max(broken) < min(whole)


def test_too_many_failures_void_the_point(faulty: Any) -> None:
    run, _, error_rate = faulty
    (point,) = points(run)
    assert point["status"] == "finished"
    assert verdicts(point).get("errors") == ("invalid" if error_rate < 0.1 else None)


def test_a_refusal_pauses_the_point_and_is_no_failure(mock: Mock, tmp_path: Path) -> None:
    mock.reset()
    refusals, before = 3, 20
    mock.queue(*spared(before))

    def refuse_midway() -> None:
        end = time.monotonic() + 60
        while mock.pending > before // 4 and time.monotonic() < end:
            time.sleep(0.02)
        refusal = {"type": "fail", "status": 429, "retry_after": 1, "times": refusals, "match": {"stream": True}}
        mock.queue(refusal)

    thread = threading.Thread(target=refuse_midway)
    thread.start()
    run = sweep(tmp_path, spec(mock, 0.01, requests=60))
    thread.join()

    assert Counter(served["status"] for served in mock.journal())[429] == refusals
    (point,) = points(run)
    assert point["counts_all"]["rate_limited"] == refusals
    assert point["counts_all"]["failed"] == point["counts"]["failed"] == 0
    assert point["counts"]["completed"] == point["counts"]["issued"] == 60
    assert "errors" not in verdicts(point)
    assert verdicts(point)["rate_limited"] == "warn"
    refused = [row for row in rows(run) if row["outcome"] == "rate_limited"]
    assert all(row["status"] == 429 and row["pause_ms"] == 1000 and not row["counted"] for row in refused)
    # Both slots wait: from a refusal on nothing is sent for a second.
    starts = sorted(row["issued_ns"] for row in rows(run))
    longest = max(b - a for a, b in pairwise(starts))
    assert longest >= 0.9e9
    for row in refused:
        assert not [at for at in starts if row["ended_ns"] + 0.05e9 < at < row["ended_ns"] + 0.9e9]
