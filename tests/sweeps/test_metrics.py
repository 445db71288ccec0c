"""Every definition by a small table whose numbers are worked out in the comments, and the laws that always hold."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoints.outcomes import Outcome
from sweeps.columns import table_of, write_parquet
from sweeps.load import LoadPlan, Sent, Window
from sweeps.metrics import (
    Span,
    counts_of,
    e2e_ms,
    in_flight,
    peak_tps,
    point_metrics,
    summary_of,
    system_tps,
    token_source,
    tokens_in_bins,
    tpot_ms,
    ttft_ms,
    ttft_visible_ms,
)
from sweeps.point import PointFacts, point_json
from sweeps.requests import read_requests, requests_of
from sweeps.series import series_of
from sweeps.verdicts import Earlier

MS = 1_000_000


def metrics_of(lab: SimpleNamespace, *sent: Sent, span: Span | None = None) -> dict[str, Any]:
    r = lab.requests(*sent)
    return point_metrics(r, span, r.counted)


def test_times_of_one_request(lab: SimpleNamespace) -> None:
    # sent 20 | first fragment 120 | first visible 140 | last 180 | body ends 190
    r = lab.requests(lab.sent(chunks=(120, 140, 180), sent=20, ended=190, first_visible_ns=140 * MS))
    assert ttft_ms(r).tolist() == [100]
    assert ttft_visible_ms(r).tolist() == [120]
    assert e2e_ms(r).tolist() == [160]  # to the last fragment, not to the end of the body
    assert tpot_ms(r).tolist() == [30]  # (180 - 120) / 2


def test_tpot_counts_tokens_not_chunks(lab: SimpleNamespace) -> None:
    # 20 tokens in 5 chunks 200 ms apart: the gaps are 200 ms, a token takes 800 / 19 = 42.1 ms.
    r = lab.requests(lab.sent(chunks=(100, 300, 500, 700, 900), output=20, requested=20))
    assert tpot_ms(r)[0] == pytest.approx(800 / 19)
    m = point_metrics(r, None, r.counted)
    assert m["chunk_interval_ms"]["p50"] == 200
    assert m["tokens_per_chunk"]["mean"] == 4
    # Mean fragment 4 tokens: the true divisor may be 20 - 4 = 16, so tpot may be off by (4 - 1) / 16.
    assert m["tpot_ms"]["divisor"] == "n_minus_1"
    assert m["tpot_ms"]["bias_bound"] == pytest.approx(3 / 16)
    assert m["tps_per_user"] == pytest.approx(1000 / (800 / 19))


def test_tpot_leaves_the_first_chunk_out_where_its_tokens_are_told(lab: SimpleNamespace) -> None:
    # 4 of 8 tokens in the first chunk, then one each 10 ms: 40 / 4 = 10 ms, where n - 1 would say 40 / 7 = 5.7.
    r = lab.requests(lab.sent(chunks=(100, 110, 120, 130, 140), output=8, tokens=(4, 1, 1, 1, 1)))
    assert tpot_ms(r).tolist() == [10]
    m = point_metrics(r, None, r.counted)
    assert m["tpot_ms"]["divisor"] == "tokens_after_first_chunk"
    assert m["tpot_ms"]["bias_bound"] == 0
    assert m["tokens_per_chunk"] == {"mean": 1.6, "p50": 1, "p90": 1, "max": 4}


@pytest.mark.parametrize(("chunks", "output"), [((100,), 1), ((100,), 20), ((), None)])
def test_one_arrival_has_no_pace(lab: SimpleNamespace, chunks: tuple[float, ...], output: int | None) -> None:
    m = metrics_of(lab, lab.sent(chunks=chunks, output=output), lab.sent(1))
    assert m["tpot_ms"]["n"] == 1  # of the other request
    m = metrics_of(lab, lab.sent(chunks=chunks, output=output))
    assert m["tpot_ms"]["p90"] is None
    assert m["tps_per_user"] is None


def test_tps_per_user_is_the_reciprocal_of_the_p90_and_not_a_share_of_the_total(lab: SimpleNamespace) -> None:
    # tpot 1, 2, … 10 ms; the "lower" p90 of ten values is the one at rank floor(0.9 * 9) = 8: 9 ms.
    sent = [lab.sent(i, chunks=(100, 100 + i)) for i in range(1, 11)]
    m = metrics_of(lab, *sent, span=Span(0, 1000 * MS))
    assert m["tpot_ms"]["p90"] == 9
    assert m["tps_per_user"] == pytest.approx(1000 / 9)
    assert m["system_tps"] == 20


def test_percentiles_are_values_that_were_seen() -> None:
    # Ranks floor(p * (n - 1)) of 1..20 from 0: p50 -> 9, p90 -> 17, p95 -> 18, p99 -> 18.
    assert summary_of(np.arange(1.0, 21)) == {"mean": 10.5, "p50": 10, "p90": 18, "p95": 19, "p99": 19, "n": 20}
    assert summary_of(np.empty(0)) == {"mean": None, "p50": None, "p90": None, "p95": None, "p99": None, "n": 0}


def test_the_window_is_open_at_t0_and_closed_at_t1(lab: SimpleNamespace) -> None:
    # Fragments at 1000 (= t0, out), 1001, 1500, 2000 (= t1, in), 2001 (out): three tokens in one second.
    r = lab.requests(lab.sent(chunks=(1000, 1001, 1500, 2000, 2001)))
    assert system_tps(r, Span(1000 * MS, 2000 * MS)) == 3
    # Next to one another, windows share nothing and lose nothing.
    spans = [Span(0, 1000 * MS), Span(1000 * MS, 2000 * MS), Span(2000 * MS, 3000 * MS)]
    assert sum(tokens_in_bins(r, s, 1).sum() for s in spans) == 5


def test_all_phases_give_tokens_and_only_successes(lab: SimpleNamespace) -> None:
    r = lab.requests(
        lab.sent(0, phase="warmup"),
        lab.sent(1, phase="measure"),
        lab.sent(2, phase="filler"),
        lab.sent(3, outcome=Outcome.TRUNCATED),
        lab.sent(4, outcome=Outcome.CANCELLED),
    )
    assert system_tps(r, Span(0, 1000 * MS)) == 9
    m = point_metrics(r, Span(0, 1000 * MS), r.counted)
    assert m["output_tokens"] == {"mean": 3, "total": 3}
    assert m["ttft_ms"]["n"] == 1
    assert m["request_rate"] == 3


def test_a_requests_tokens_are_spread_evenly_where_they_are_not_told(lab: SimpleNamespace) -> None:
    # 20 tokens in 4 chunks, two of them inside: 10 tokens in 0.5 s.
    r = lab.requests(lab.sent(chunks=(100, 300, 600, 900), output=20))
    assert system_tps(r, Span(200 * MS, 700 * MS)) == 20


def test_told_tokens_are_scaled_to_the_usage(lab: SimpleNamespace) -> None:
    # Usage counts an end-of-text token that no fragment holds: 9 for the 8 told.
    r = lab.requests(lab.sent(chunks=(1, 2, 3), output=9, tokens=(4, 2, 2)))
    assert lab.fragments(r)[0].tokens.tolist() == [4.5, 2.25, 2.25]
    r = lab.requests(lab.sent(chunks=(1, 2), output=4, tokens=(0, 0)))
    assert lab.fragments(r)[0].tokens.tolist() == [2, 2]


def test_hidden_reasoning_is_no_part_of_the_pace(lab: SimpleNamespace) -> None:
    # 100 tokens billed, 60 of them reasoning that no event carried: (500 - 100) / (40 - 1).
    hidden = lab.sent(chunks=(100, 500), output=100, reasoning_tokens=60, text_bytes=200)
    assert tpot_ms(lab.requests(hidden))[0] == pytest.approx(400 / 39)
    # The same reasoning streamed counts in full.
    shown = lab.sent(chunks=(100, 500), output=100, reasoning_tokens=60, reasoned=True)
    assert tpot_ms(lab.requests(shown))[0] == pytest.approx(400 / 99)


def test_a_requested_length_is_never_credited(lab: SimpleNamespace) -> None:
    # No usage: three fragments count as three tokens, whatever was asked for.
    m = metrics_of(lab, lab.sent(output=None, requested=500), span=Span(0, 1000 * MS))
    assert m["output_tokens"]["total"] == 3
    assert m["requested_tokens"]["mean"] == 500
    assert m["system_tps"] == 3
    assert m["token_source"] == "chunks"


def test_token_sources_are_never_mixed_unsaid(lab: SimpleNamespace) -> None:
    r = lab.requests(lab.sent(0), lab.sent(1, output=None))
    assert token_source(r, r.counted) == "mixed"
    assert token_source(r, r.counted & False) == "none"


def test_in_flight_is_weighted_by_time(lab: SimpleNamespace) -> None:
    # Window 0..100 ms: one request from 0 to 50, one from 50 to 100, one from 90 on. (50 + 50 + 10) / 100 = 1.1.
    r = lab.requests(
        lab.sent(0, (50,), sent=0),
        lab.sent(1, (100,), sent=50),
        lab.sent(2, (300,), sent=90),
        lab.sent(3, (), sent=400),
    )
    assert in_flight(r, Span(0, 100 * MS)) == {"mean": 1.1, "max": 2}
    assert in_flight(r, Span(500 * MS, 600 * MS)) == {"mean": 0, "max": 0}


def test_peak_is_the_highest_second(lab: SimpleNamespace) -> None:
    # 2.5 s are two bins of 1.25 s: three tokens in the first, one in the second.
    r = lab.requests(lab.sent(chunks=(10, 20, 1250, 2500)))
    assert peak_tps(r, Span(0, 2500 * MS)) == pytest.approx(3 / 1.25)
    assert peak_tps(r, Span(0, 500 * MS)) == pytest.approx(2 / 0.5)  # a short window is one bin


def test_counts_add_up(lab: SimpleNamespace) -> None:
    ends = [Outcome.OK, Outcome.HTTP_5XX, Outcome.CANCELLED, Outcome.OK, Outcome.RATE_LIMITED]
    r = lab.requests(*(lab.sent(i, outcome=outcome) for i, outcome in enumerate(ends)))
    assert counts_of(r, r.counted) == {
        "issued": 5,
        "completed": 2,
        "failed": 1,
        "cancelled": 1,
        "rate_limited": 1,
        "by_outcome": {"cancelled": 1, "http_5xx": 1, "ok": 2, "rate_limited": 1},
    }


def facts(**changes: Any) -> PointFacts:
    base: dict[str, Any] = {
        "arm": "a",
        "plan": LoadPlan(2, None, 10),
        "trial": 1,
        "window": Window(0, 1000 * MS, 0, "", ""),
        "origin_unix_ns": 1_764_500_000_000_000_000,
        "origin_monotonic_ns": 5,
        "duration_s": 1.0,
        "notes": (),
        "cut_short": None,
        "client": {"loop_lag_ms_p99": None, "cpu_fraction": None, "workers": 1, "transport": "scripted"},
        "error_rate": 0.01,
        "common_bytes": 0,
        "streamed": True,
        "draft_tokens": None,
        "prices": None,
        "earlier": Earlier(),
        "seed": 0,
    }
    return PointFacts(**base | changes)


@pytest.mark.parametrize("sent", ["none", "failed", "warmup"])
def test_nothing_measured_is_null_and_strict_json(lab: SimpleNamespace, sent: str) -> None:
    requests = {
        "none": [],
        "failed": [lab.sent(i, (), output=None, outcome=Outcome.REFUSED, error="no") for i in range(3)],
        "warmup": [lab.sent(0, phase="warmup")],
    }[sent]
    r = lab.requests(*requests)
    point = point_json(r, facts(window=Window()))
    json.dumps(point, allow_nan=False)
    for name in ("system_tps", "tps_per_user", "peak_tps", "request_rate"):
        assert point[name] is None
    for name in ("ttft_ms", "tpot_ms", "e2e_latency_ms", "chunk_interval_ms"):
        assert point[name]["n"] == 0
        assert point[name]["p90"] is None
    assert all(i["low"] is None and i["reason"] for i in point["intervals"].values())
    assert not point["valid"]
    assert series_of(r, None, r.counted).num_rows >= 0
    with_window = point_json(r, facts())
    assert with_window["system_tps"] is None or sent == "warmup"


def test_point_json_adds_up_costs_and_says_what_the_client_added(lab: SimpleNamespace) -> None:
    # due 10, issued 12, connected 15, sent 16: lag (12 - 10) + (16 - 15) = 3 ms, connecting 15 - 12 = 3 ms.
    sent = lab.sent(chunks=(100, 110, 120), sent=16, issued=12, due=10)
    sent.exchange.connected_ns = 15 * MS
    point = point_json(lab.requests(sent, lab.sent(1, phase="filler")), facts(prices=(1e-6, 2e-6)))
    assert point["client"]["client_lag_ms_p99"] == 3
    assert point["client"]["connect_ms_p99"] == 3
    # Two requests of 10 input and 3 output tokens, the filler too: 20 * 1e-6 + 6 * 2e-6.
    assert point["spent"] == {"requests": 2, "input_tokens": 20, "output_tokens": 6, "usd": pytest.approx(32e-6)}
    assert point["usd_per_million_output_tokens"] == pytest.approx(32 / 6)
    assert point["started_at"].endswith("Z")
    assert point["counts_all"]["by_phase"] == {"warmup": 0, "measure": 1, "filler": 1}
    assert point["system_tps"] == point["bases"]["window"]["system_tps"]


@st.composite
def records(draw: st.DrawFn) -> list[dict[str, Any]]:
    def one(index: int) -> dict[str, Any]:
        begin = draw(st.integers(0, 3000))
        gaps = draw(st.lists(st.integers(0, 400), max_size=6))
        chunks = np.cumsum([begin, *gaps])[1:].tolist()
        outcome = draw(st.sampled_from([*[Outcome.OK] * 3, Outcome.RESET, Outcome.CANCELLED, Outcome.RATE_LIMITED]))
        if outcome is Outcome.OK and not chunks:
            chunks = [begin + 1]
        tokens = draw(st.none() | st.lists(st.integers(0, 9), min_size=len(chunks), max_size=len(chunks)))
        return {
            "index": index,
            "chunks": chunks,
            "sent": begin,
            "ended": (chunks[-1] if chunks else begin) + draw(st.integers(0, 50)),
            "output": draw(st.none() | st.integers(0, 60)),
            "tokens": tokens,
            "outcome": outcome,
            "phase": draw(st.sampled_from(["warmup", "measure", "filler"])),
        }

    return [one(i) for i in range(draw(st.integers(0, 8)))]


@given(records())
def test_laws(lab: SimpleNamespace, rows: list[dict[str, Any]]) -> None:
    r = lab.requests(*(lab.sent(**row) for row in rows))
    counts = counts_of(r, r.counted)
    assert counts["issued"] == sum(counts[k] for k in ("completed", "failed", "cancelled", "rate_limited"))
    assert counts["issued"] == sum(counts["by_outcome"].values())
    # A request's fragments hold its tokens, however they are told.
    sums = np.zeros(len(r))
    for f in lab.fragments(r):
        sums[f.rows] = np.bincount(f.owner, f.tokens, minlength=len(f.rows))
    has = r.ints("chunks") > 0
    assert np.allclose(sums[has], np.maximum(r.ints("output_tokens")[has], 0))
    span = Span(500 * MS, 3700 * MS)
    mean, peak = system_tps(r, span), peak_tps(r, span)
    assert (mean is None) == (peak is None)
    if mean is not None and peak is not None:
        assert peak >= mean - 1e-9
    flight = in_flight(r, span)
    assert flight["mean"] is not None and flight["max"] is not None
    assert 0 <= flight["mean"] <= flight["max"] <= len(r)
    point = point_json(r, facts(window=Window(span.t0, span.t1, 0)))
    json.dumps(point, allow_nan=False)
    table = series_of(r, span, r.counted).to_pydict()
    assert all(math.isfinite(y) for y in table["y"])
    issued = [y for name, y in zip(table["series"], table["y"], strict=True) if name == "issued"]
    assert sum(issued) == len(r)


@given(rows=records())
def test_a_stored_point_gives_the_same_numbers_again(
    lab: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    table = table_of([lab.sent(**row) for row in rows], 0)
    path = tmp_path_factory.getbasetemp() / "requests.parquet"
    write_parquet(table, path)
    again = pq.read_table(path)
    assert again.equals(table)
    asked = facts(window=Window(500 * MS, 3700 * MS, 0))
    assert point_json(requests_of(again), asked) == point_json(requests_of(table), asked)
    assert point_json(read_requests(path), asked) == point_json(requests_of(table), asked)


def test_times_are_stored_from_the_origin(lab: SimpleNamespace, tmp_path: Path) -> None:
    table = table_of([lab.sent(chunks=(110, 120), sent=100)], 90 * MS)
    row = table.to_pylist()[0]
    assert (row["sent_ns"], row["first_token_ns"], row["last_token_ns"]) == (10 * MS, 20 * MS, 30 * MS)
    assert row["chunk_offsets_us"] == [10_000, 20_000]  # from sent
    assert row["first_visible_ns"] is None
    assert row["outcome"] == "ok"
