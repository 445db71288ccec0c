"""A sweep whose points are carried by worker processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq

from endpoints.simulator.null import NullOptions, NullProcess
from sweeps.capacity import Capacity
from sweeps.events import Event, Note, PointProgress
from sweeps.manifest import manifest_of
from sweeps.runner import SweepRun
from sweeps.session import new_run, prepare
from sweeps.store import RunStore


def ready(
    lab: SimpleNamespace, url: str, folder: Path, load: dict[str, Any], heard: list[Event], capacity: Capacity | None
) -> tuple[SweepRun, RunStore]:
    sweep = lab.sweep(load, arms={"a": {"url": url, "model": "m"}}, workload={"max_tokens": 8})
    prepared = prepare(sweep, {})
    store = RunStore.create(folder, manifest_of(sweep, prepared.targets, {}, prepared.prompts.all), "name: x\n")
    return new_run(prepared, store, heard.append, capacity), store


def point(folder: Path, level: int) -> Any:
    return json.loads((folder / f"points/a/c{level:05d}-t1/point.json").read_text())


def test_a_worker_that_is_killed_voids_its_point_and_the_sweep_goes_on(lab: SimpleNamespace, tmp_path: Path) -> None:
    heard: list[Event] = []
    killed: list[int] = []
    with NullProcess(NullOptions(ttft_ms=100, jitter_ms=50, chunk_ms=5)) as server:
        load = {"concurrency": [4, 6], "requests": 24, "workers": 2}
        run, store = ready(lab, server.url, tmp_path / "r", load, heard, None)
        listen = run._listen

        def kill_one(event: Event) -> None:
            listen(event)
            if isinstance(event, PointProgress) and event.phase == "measure" and not killed:
                killed.append(run._pool.pids[1])
                os.kill(killed[0], signal.SIGKILL)

        run._listen = kill_one
        outcome = asyncio.run(run.run())
        store.close()
    assert killed
    first, second = point(tmp_path / "r", 4), point(tmp_path / "r", 6)
    (verdict,) = (v for v in first["verdicts"] if v["code"] == "errors")
    assert verdict["severity"] == "invalid"
    assert f"worker 1 (process {killed[0]}) died" in verdict["evidence"]
    assert not first["valid"]
    assert first["counts_all"]["by_outcome"]["client_resource"] >= 1
    assert outcome.finished == 2
    assert second["counts"]["by_outcome"] == {"ok": 24}
    assert second["client"]["workers"] == 2
    rows = pq.read_table(tmp_path / "r/points/a/c00006-t1/requests.parquet").to_pylist()
    assert {row["worker"] for row in rows} == {0, 1}
    assert len({(row["prompt_id"], row["salt"]) for row in rows}) == len(rows)
    assert any(isinstance(e, Note) and e.text.startswith("2 client processes") for e in heard)


def test_one_process_carries_what_one_can(lab: SimpleNamespace, tmp_path: Path) -> None:
    heard: list[Event] = []
    with NullProcess(NullOptions(ttft_ms=5, jitter_ms=5, chunk_ms=2)) as server:
        load = {"concurrency": [2], "requests": 12}
        run, store = ready(lab, server.url, tmp_path / "r", load, heard, Capacity(1e6, measured=True))
        asyncio.run(run.run())
        store.close()
    client = point(tmp_path / "r", 2)["client"]
    assert (client["workers"], len(client["per_worker"]), client["parent"]) == (1, 1, None)
    assert 1 <= client["sockets"] <= 2
    assert run._pool.pids == []
    assert not [e for e in heard if isinstance(e, Note)]
