"""Requests on their way to the file: in batches of any size, at any length of the point, killed or whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps.spool
from endpoints.outcomes import Outcome
from endpoints.simulator.engine import EngineConfig
from endpoints.virtual import VirtualTransport
from profiles.workloads import load_prompts, split
from sweeps.columns import table_of
from sweeps.load import Sent
from sweeps.measure import Measured, Prompts
from sweeps.metrics import Span, point_metrics, tokens_in_bins
from sweeps.plan import plan_sweep
from sweeps.requests import read_requests, requests_of
from sweeps.spool import SAMPLE, FileSpool, prune
from sweeps.virtual import virtual_point

MS = 1_000_000
ENGINE = EngineConfig(
    prefill_ns_per_token=20_000,
    prefill_base_ns=2_000_000,
    decode_base_ns=4_800_000,
    decode_ns_per_sequence=200_000,
    max_batch=256,
    kv_capacity_tokens=10_000_000,
    prefill_budget_tokens=8192,
)


@st.composite
def ended(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Requests in an order in which they may end."""
    rows = []
    for index in range(draw(st.integers(0, 12))):
        begin = draw(st.integers(0, 2000))
        chunks = np.cumsum([begin, *draw(st.lists(st.integers(0, 300), max_size=5))])[1:].tolist()
        told = draw(st.none() | st.lists(st.integers(0, 5), min_size=len(chunks), max_size=len(chunks)))
        ok = Outcome.OK if chunks else Outcome.EMPTY
        outcome = draw(st.sampled_from([ok, Outcome.RESET]))
        error = draw(st.sampled_from([None, "", "é \ud800"]))
        rows.append(
            {"index": index, "chunks": chunks, "sent": begin, "tokens": told, "outcome": outcome, "error": error}
        )
    return draw(st.permutations(rows))


@settings(max_examples=40)
@given(rows=ended(), most_rows=st.integers(1, 5), most_chunks=st.integers(1, 9))
def test_batches_of_any_size_are_the_same_table(
    lab: SimpleNamespace,
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    most_rows: int,
    most_chunks: int,
) -> None:
    sent = [lab.sent(**row) for row in rows]
    whole = table_of(sent, 5)
    assert whole.column("index").to_pylist() == list(range(len(rows)))
    path = tmp_path_factory.getbasetemp() / "requests.parquet.tmp"
    requests = spooled(path, sent, most_rows, most_chunks)
    stored = pq.read_table(path)
    assert stored.sort_by("index").equals(whole)
    assert pq.ParquetFile(path).num_row_groups <= max(1, len(rows))
    span, again = Span(300 * MS, 1700 * MS), requests_of(whole)
    assert_alike(point_metrics(requests, span, requests.ok), point_metrics(again, span, again.ok))
    # What arrives is in one bin or another, whatever the bins.
    everything = Span(-1, 10_000 * MS)
    output = requests.ints("output_tokens")[requests.ok]
    assert tokens_in_bins(requests, everything, 7).sum() == pytest.approx(output.sum())


def spooled(path: Path, sent: Sequence[Sent], rows: int, chunks: int) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps.spool, "_MOST_ROWS", rows)
        patch.setattr(sweeps.spool, "_MOST_CHUNKS", chunks)
        spool = FileSpool(path)
        spool.begin(5)
        for one in sent:
            spool.add(one)
        return spool.finish()


def assert_alike(a: Any, b: Any) -> None:
    """Equal but for the order in which floats are added."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_alike(a[key], b[key])
    else:
        assert a == (pytest.approx(b, rel=1e-12) if isinstance(a, float) else b)


def measured(lab: SimpleNamespace, spool: FileSpool | None, **load: Any) -> Measured:
    sweep = lab.sweep({"concurrency": [4], "requests": 60, **load})
    prompts = Prompts(*split(load_prompts(sweep.workload)))
    (planned,) = plan_sweep(sweep, prompts.measured)
    return virtual_point(sweep, planned, prompts, VirtualTransport(ENGINE), spool)


@pytest.mark.parametrize("chunks", ["all", "sample", "none"])
def test_what_is_kept_of_fragments_changes_nothing_but_the_file(
    lab: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: Any
) -> None:
    monkeypatch.setattr(sweeps.spool, "_MOST_ROWS", 16)
    path = tmp_path / "requests.parquet.tmp"
    of_file, of_memory = measured(lab, FileSpool(path)), measured(lab, None)
    for name in ("started_at", "origin_unix_ns"):
        of_file.point.pop(name), of_memory.point.pop(name)
    assert_alike(of_file.point, of_memory.point)
    whole = pq.read_table(path)
    prune(path, chunks)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    kept = pq.read_table(path)
    lists = ["chunk_offsets_us", "chunk_tokens"]
    assert kept.drop_columns(lists).equals(whole.drop_columns(lists))
    for before, after in zip(whole.to_pylist(), kept.to_pylist(), strict=True):
        stays = chunks == "all" or (chunks == "sample" and before["index"] % SAMPLE == 0)
        assert [after[name] for name in lists] == ([before[name] for name in lists] if stays else [None, None])
    r = read_requests(path)
    if chunks == "all":
        assert point_metrics(r, None, r.counted)["chunk_interval_ms"] == of_file.point["chunk_interval_ms"]
    else:
        with pytest.raises(ValueError, match="were not all kept"):
            point_metrics(r, None, r.counted)


def test_a_disk_that_is_full_ends_the_point(lab: SimpleNamespace, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sweeps.spool, "_MOST_ROWS", 8)
    spool = FileSpool(tmp_path / "requests.parquet.tmp")

    def full(_table: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(spool._writer, "write_table", full)
    with pytest.raises(OSError, match="no space left"):
        measured(lab, spool)
    spool.close()


GROWTH = """
import json
from benchmarks.analysis import measured, peak_bytes
measured(500_000)
before = peak_bytes()
row = measured(4_000_000)
print(json.dumps([row.chunks, before, row.peak_bytes]))
"""


def test_memory_does_not_grow_with_the_length_of_a_point() -> None:
    # 4 million fragments are 160 MB as Python's numbers; of 8,192 streams, those of 50 s.
    ran = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True, timeout=100)
    chunks, before, after = json.loads(ran.stdout)
    assert chunks >= 3_900_000
    assert after - before < 100e6


LIGHT = """
import sys
import sweeps.session, reports.live, reports.terminal
heavy = {"pandas", "scipy", "altair"}
assert not heavy & set(sys.modules), "before the load"
from benchmarks.analysis import measured
measured(100_000)
assert not {"pandas", "altair"} & set(sys.modules), "up to point.json"
"""


def test_nothing_heavy_is_imported_before_a_point_has_been_judged() -> None:
    ran = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
