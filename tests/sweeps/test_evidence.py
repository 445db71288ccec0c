"""What readings, replies and chunks say of a point's speculation: hand-worked cases, and each way to fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from endpoints.counters import Reading
from endpoints.outcomes import Outcome
from sweeps.evidence import TELEMETRY, Evidence, evidence_of, growth_of, telemetry_table
from sweeps.load import Sent
from sweeps.tallies import Bursts
from sweeps.watch import Observed

OFF, ON = (("engine", "0"),), (("engine", "1"),)
BOTH = Reading({"drafts": {OFF: 7.0, ON: 101.0}})


def reading(engine: str = "vllm", labels: Any = OFF, born: float | None = None, **values: float) -> Reading:
    return Reading(
        {name: {labels: value} for name, value in values.items()},
        {name: {labels: born} for name in values} if born is not None else {},
        {},
        engine,
    )


def counters(times: float, **more: float) -> Reading:
    """As a server would have them after `times` hundred drafts of four tokens, 150 accepted."""
    base = {"drafts": 100.0, "draft_tokens": 400.0, "accepted_tokens": 150.0, "generated_tokens": 250.0}
    return reading(**{name: value * times for name, value in base.items()} | more)


def replies(lab: SimpleNamespace, n: int = 25, **fields: Any) -> list[Sent]:
    """Ten tokens each, a fragment a token, 100 ms apart."""
    return [lab.sent(i, [100.0 * i + 10.0 * k for k in range(1, 11)], sent=100.0 * i, **fields) for i in range(n)]


def found(
    lab: SimpleNamespace, sent: list[Sent], observed: Observed | None, speculates: bool | None = None
) -> Evidence:
    r = lab.requests(*sent)
    bursts = Bursts(r)
    r.tally(bursts)
    return evidence_of(r, bursts.bursts, observed, speculates)


def test_acceptance_is_one_plus_accepted_over_drafts(lab: SimpleNamespace) -> None:
    e = found(lab, replies(lab), Observed(counters(10), counters(11)))
    assert (e.source, e.reason) == ("counters", None)
    assert e.acceptance_length == 1 + 150 / 100
    assert e.acceptance_rate == 150 / 400
    assert (e.drafts, e.draft_tokens, e.accepted_tokens) == (100, 400, 150)
    assert (e.generated, e.received, e.expected) == (250, 250, 250)
    assert e.most_per_step == 5
    assert e.speculates is True
    assert not e.foreign_tokens and not e.unseen and e.broken is None


def test_positions_are_told_apart() -> None:
    per_position = [
        Reading({"accepted_per_position": {(("position", str(p)),): n * (2.0 - p) for p in (0, 1)}}) for n in (1, 3)
    ]
    assert growth_of(Observed(*per_position)).per_position == (4.0, 2.0)


@pytest.mark.parametrize(
    ("before", "samples", "after", "says"),
    [
        (counters(10), [counters(10.5)], counters(0.5), "went back"),
        (counters(10), [counters(0.1), counters(10.2)], counters(11), "went back"),  # and has caught up since
        (reading(drafts=5, born=1.0), [], reading(drafts=9, born=2.0), "began anew"),
        (reading(drafts=5), [], reading(labels=ON, drafts=9), "disappeared"),
        (reading(drafts=5), [BOTH], BOTH, "appeared"),
        (reading(drafts=5), [], None, "could not be read afterwards"),
    ],
)  # fmt: skip
def test_counters_that_do_not_only_grow_tell_nothing(
    lab: SimpleNamespace, before: Reading, samples: list[Reading], after: Reading | None, says: str
) -> None:
    observed = Observed(before, after, tuple(enumerate(samples)), unread="" if after else "connection refused")
    e = found(lab, replies(lab), observed)
    assert says in (e.broken or "")
    assert e.source == "none" and says in (e.reason or "")
    assert e.acceptance_length is e.acceptance_rate is e.draft_tokens is None
    assert e.speculates is None and not e.silent


def test_a_counter_that_was_not_there_began_at_zero() -> None:
    grown = growth_of(Observed(reading(generated_tokens=10), reading(generated_tokens=30, drafts=4, draft_tokens=8)))
    assert grown.broken is None
    assert grown.grown == {"generated_tokens": 20, "drafts": 4, "draft_tokens": 8}


def test_what_is_handed_out_once_is_added_up() -> None:
    steps = [
        Reading({}, {}, {"drafts": 2.0, "draft_tokens": 6.0, "accepted_tokens": n}, "trtllm") for n in (9.0, 1.0, 3.0)
    ]
    grown = growth_of(Observed(steps[0], steps[2], ((5, steps[1]),))).grown  # what came before the point is not of it
    assert grown == {"drafts": 4, "draft_tokens": 12, "accepted_tokens": 4}


def test_tokens_for_others_spoil_acceptance(lab: SimpleNamespace) -> None:
    e = found(lab, replies(lab), Observed(counters(10), counters(12)))
    assert e.foreign_tokens == 250
    assert e.acceptance_length is None and "another client" in (e.reason or "")


def test_a_failed_request_may_have_cost_all_that_it_asked_for(lab: SimpleNamespace) -> None:
    cut = [lab.sent(100 + i, [10.0], outcome=Outcome.CANCELLED, requested=50, output=None) for i in range(5)]
    e = found(lab, replies(lab) + cut, Observed(counters(10), counters(11, generated_tokens=11 * 250 + 200)))
    assert (e.received, e.expected, e.foreign_tokens) == (255, 500, 0)


def test_tokens_that_the_counters_miss(lab: SimpleNamespace) -> None:
    e = found(lab, replies(lab, 50), Observed(counters(10), counters(11)))
    assert e.unseen == 0.5
    assert e.acceptance_length is None and "not every replica" in (e.reason or "")


def test_replies_tell_where_the_counters_cannot(lab: SimpleNamespace) -> None:
    sent = replies(lab, drafts=None, drafted_tokens=8, accepted_tokens=5)
    e = found(lab, sent, Observed(counters(10), counters(12)))
    assert (e.source, e.acceptance_rate, e.acceptance_length) == ("replies", 5 / 8, None)
    assert e.reason == "it is not told how many drafts there were"
    told = found(lab, replies(lab, drafts=4, drafted_tokens=8, accepted_tokens=5), None)
    assert told.acceptance_length == 1 + 5 / 4


def test_acceptance_by_category(lab: SimpleNamespace) -> None:
    code = replies(lab, 3, category="code", drafted_tokens=8, accepted_tokens=6)
    prose = replies(lab, 2, category="prose", drafted_tokens=8, accepted_tokens=2)
    by = found(lab, code + prose, None).by_category
    assert {name: of["acceptance_rate"] for name, of in by.items()} == {"code": 0.75, "prose": 0.25}
    assert [of["n"] for of in by.values()] == [3, 2]


def test_a_gauge_is_called_a_gauge(lab: SimpleNamespace) -> None:
    samples = tuple((i, reading("sglang", running=1, tokens_per_step_gauge=v)) for i, v in enumerate((2.0, 4.0)))
    idle = (9, reading("sglang", running=0, tokens_per_step_gauge=99.0))
    rest = reading("sglang", generated_tokens=0), reading("sglang", generated_tokens=250)
    e = found(lab, replies(lab), Observed(*rest, (*samples, idle)))
    assert (e.source, e.acceptance_length, e.speculates) == ("gauge", 3.0, True)
    assert "sampled" in (e.reason or "")


def test_without_any_of_it_the_stream_is_what_there_is(lab: SimpleNamespace) -> None:
    whole = [lab.sent(i, [100.0 * i + 10 * k for k in range(1, 11)], sent=100.0 * i, output=28) for i in range(5)]
    e = found(lab, whole, None)
    assert (e.source, e.tokens_per_step, e.acceptance_length) == ("inferred", 27 / 9, None)
    assert "inferred from the stream" in (e.reason or "")
    plain = found(lab, replies(lab), None)
    assert (plain.source, plain.tokens_per_step) == ("none", 1.0)


def test_a_burst_is_a_step(lab: SimpleNamespace) -> None:
    """The first token, then four steps of three tokens that are sent one by one."""
    marks = [10.0, *(50.0 * step + 0.01 * k for step in range(1, 5) for k in range(3))]
    sent = [lab.sent(i, marks) for i in range(5)]
    assert found(lab, sent, None, speculates=True).tokens_per_step == 3.0
    assert found(lab, sent, None).tokens_per_step == 1.0  # a machine that stalls does the same


def test_silence_of_a_server_that_would_tell(lab: SimpleNamespace) -> None:
    quiet = Observed(reading(generated_tokens=0), reading(generated_tokens=250))
    assert found(lab, replies(lab), quiet).silent
    other = Observed(reading("tgi", generated_tokens=0), reading("tgi", generated_tokens=250))
    assert not found(lab, replies(lab), other).silent
    assert not found(lab, replies(lab), None).silent
    shown = Observed(counters(10), counters(12))  # another client's drafts are in it, but it does draft
    assert not found(lab, replies(lab), shown).silent


@pytest.mark.parametrize(
    ("gauges", "last", "length", "silent"),
    [
        ([0, 3, 3, 3], 3.0, 3.0, False),  # zero is what it begins with
        ([], 3.1, 3.1, False),
        ([0, 0], 0.0, None, False),  # too soon to say
        ([0] * 12, 0.0, None, True),
        ([1] * 12, 1.0, 1.0, False),  # nothing was accepted
    ],
)
def test_a_gauge_that_an_engine_renews_now_and_then(
    lab: SimpleNamespace, gauges: list[float], last: float, length: float | None, silent: bool
) -> None:
    running = {"running": 1.0, "generated_tokens": 9.0}
    samples = tuple((i, reading("sglang", **running, tokens_per_step_gauge=v)) for i, v in enumerate(gauges))
    rest = (reading("sglang", generated_tokens=n, tokens_per_step_gauge=g) for n, g in ((0, 0.0), (250, last)))
    e = found(lab, replies(lab), Observed(*rest, samples))
    assert (e.acceptance_length, e.silent) == (length, silent)
    assert e.speculates is (True if length else None)


def test_counters_without_a_number_of_drafts_and_a_gauge(lab: SimpleNamespace) -> None:
    rest = [reading("trtllm", draft_tokens=n, accepted_tokens=n / 2, tokens_per_step_gauge=2.4) for n in (0, 100)]
    e = found(lab, replies(lab), Observed(*rest))
    assert (e.source, e.acceptance_rate, e.acceptance_length) == ("counters", 0.5, 2.4)
    assert "sampled" in (e.reason or "")


def test_a_missed_look_at_what_is_handed_out_once() -> None:
    step = Reading({}, {}, {"drafts": 2.0}, "trtllm")
    assert "brought nothing" in (growth_of(Observed(step, step, missed=True)).broken or "")
    assert "several processes" in (growth_of(Observed(counters(1), counters(2), disagree=True)).broken or "")


def test_llama_cpp_counts_what_its_cache_missed(lab: SimpleNamespace) -> None:
    rest = (reading("llamacpp", prefix_misses=m, prefix_hits=h) for m, h in ((0, 0), (250, 750)))
    assert found(lab, replies(lab), Observed(*rest)).server["prefix_hit_rate"] == 0.75


def test_gauges_and_cache_are_summed_up(lab: SimpleNamespace) -> None:
    rest = reading(prefix_queries=0, prefix_hits=0), reading(prefix_queries=200, prefix_hits=50)
    samples = tuple(
        (i, reading(running=n, waiting=0, kv_use=n / 10, prefix_queries=50, prefix_hits=9))
        for i, n in enumerate((2.0, 4.0))
    )
    server = found(lab, replies(lab), Observed(*rest, samples)).server
    assert server["running"] == {"mean": 3, "max": 4}
    assert server["kv_use"] == {"mean": pytest.approx(0.3), "max": 0.4}
    assert server["prefix_hit_rate"] == 0.25


def test_the_stored_readings() -> None:
    observed = Observed(counters(1), counters(2), ((5_000, reading(running=3)),))
    table = telemetry_table(observed, 10_000)
    assert table.schema == TELEMETRY
    rows = table.to_pylist()
    assert [r["at_ns"] for r in rows] == [-1] * 4 + [5_000] + [10_000] * 4
    assert rows[4] == {"at_ns": 5_000, "quantity": "running", "labels": '{"engine": "0"}', "value": 3.0}
    assert telemetry_table(Observed(), 1).num_rows == 0
    assert np.isfinite(table.column("value")).all()
