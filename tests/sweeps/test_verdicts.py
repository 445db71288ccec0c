"""Each verdict with a point that deserves it and one that does not."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from endpoints.outcomes import Outcome
from endpoints.simulator.engine import EngineConfig
from profiles.loading import load_sweep
from sweeps.evidence import Evidence, evidence_of
from sweeps.load import Sent
from sweeps.metrics import counts_of, point_metrics
from sweeps.tallies import Bursts
from sweeps.verdicts import Context, Earlier, backends_of, judge
from sweeps.virtual import virtual_sweep

Make = Any


def verdicts(lab: SimpleNamespace, sent: Sequence[Sent], **changes: Any) -> dict[str, str]:
    """Severity by code."""
    found = judged(lab, sent, **changes)
    assert all(all(v[k] for k in ("evidence", "threshold", "remedy")) for v in found)
    severities = [v["severity"] for v in found]
    assert severities == sorted(severities, key=["invalid", "warn"].index)
    return {v["code"]: v["severity"] for v in found}


def judged(lab: SimpleNamespace, sent: Sequence[Sent], **changes: Any) -> list[dict[str, Any]]:
    r = lab.requests(*sent)
    bursts = Bursts(r)
    r.tally(bursts)
    base: dict[str, Any] = {
        "requests": r,
        "bursts": bursts.bursts,
        "keep": r.counted,
        "span": None,
        "metrics": point_metrics(r, None, r.counted),
        "counts": counts_of(r, r.counted),
        "client": {"client_lag_ms_p99": 0.1, "loop_lag_ms_p99": 0.1},
        "concurrency": 4,
        "streamed": True,
        "emptying": 0.0,
        "error_rate": 0.01,
        "common_bytes": 0,
        "draft_tokens": None,
        "evidence": evidence_of(r, bursts.bursts, None),
        "speculates": None,
        "raw_prompts": False,
        "synthetic": None,
        "cut_short": None,
        "earlier": Earlier(),
    }
    return judge(Context(**base | changes))


@pytest.mark.parametrize(("tokens", "biased"), [(9, True), (3, False)])
def test_tokens_of_the_first_chunk_that_are_not_told(lab: SimpleNamespace, tokens: int, biased: bool) -> None:
    """Three chunks of a third of the tokens each: of nine, tpot by n - 1 may be (3 - 1) / (9 - 3) too low."""
    found = judged(lab, good(lab, output=tokens, requested=tokens, text_bytes=99))
    assert [v["code"] for v in found] == ["tpot_bias"] * biased
    assert not biased or "33%" in found[0]["evidence"]


def speaking(**fields: Any) -> Evidence:
    """Evidence with these fields, of a server that would show its drafts."""
    base: dict[str, Any] = {
        "tokens_per_step": 1.0,
        "by_category": {},
        "generated": 120.0,
        "received": 120,
        "expected": 120,
        "server": {"engine": "vllm"},
        "broken": None,
        "restless": False,
        "silent": True,
        "ever_drafted": False,
    }
    return Evidence(**base | fields)


def drafting(accepted: float = 100.0, **fields: Any) -> Evidence:
    """A hundred drafts of four tokens."""
    acceptance = {"acceptance_length": 1 + accepted / 100, "acceptance_rate": accepted / 400}
    counts = {"drafts": 100.0, "draft_tokens": 400.0, "accepted_tokens": accepted}
    return speaking(source="counters", **counts, **acceptance, **fields)


@pytest.mark.parametrize(
    ("evidence", "speculates", "code"),
    [
        (drafting(), True, None),
        (drafting(), None, None),
        (drafting(), False, "unexpected_speculation"),
        (speaking(source="counters", drafts=0.0, draft_tokens=0.0), True, "not_speculating"),
        (speaking(source="counters", drafts=0.0, draft_tokens=0.0), False, None),
        (speaking(source="replies", draft_tokens=0.0), True, "not_speculating"),
        (speaking(generated=240.0), True, "foreign_traffic"),
        (speaking(received=1000, expected=1000), True, "counters_broken"),
        (speaking(), True, "not_speculating"),  # vLLM without speculation has no such series
        (speaking(), False, None),
        (speaking(silent=False), True, None),  # an engine that would not say
        (speaking(silent=False, broken="a counter went back"), True, "counters_broken"),
        (speaking(received=0), True, None),
        (speaking(source="gauge", acceptance_length=2.5), False, "unexpected_speculation"),
    ],
)
def test_an_arm_that_is_not_what_it_says(
    lab: SimpleNamespace, evidence: Evidence, speculates: bool | None, code: str | None
) -> None:
    found = verdicts(lab, good(lab), evidence=evidence, speculates=speculates)
    assert list(found) == ([code] if code else [])
    assert code is None or found[code] == ("invalid" if "specul" in code else "warn")


def test_a_server_that_stopped_drafting_is_warned_of(lab: SimpleNamespace) -> None:
    """Some switch speculation off under load."""
    quiet = speaking(source="counters", drafts=0.0, draft_tokens=0.0, ever_drafted=True)
    assert verdicts(lab, good(lab), evidence=quiet, speculates=True) == {"not_speculating": "warn"}


def test_acceptance_without_a_number_of_drafts_is_judged_too(lab: SimpleNamespace) -> None:
    told = speaking(source="replies", draft_tokens=400.0, accepted_tokens=400.0, acceptance_rate=1.0)
    assert verdicts(lab, good(lab), evidence=told, speculates=True) == {"implausible_acceptance": "warn"}


@pytest.mark.parametrize(
    ("accepted", "raw", "judged"),
    [(250, False, False), (370, False, True), (150, True, False), (250, True, True), (500, False, True)],
)
def test_acceptance_too_good_to_be_true(lab: SimpleNamespace, accepted: float, raw: bool, judged: bool) -> None:
    found = verdicts(lab, good(lab), evidence=drafting(accepted), speculates=True, raw_prompts=raw)
    assert found == ({"implausible_acceptance": "warn"} if judged else {})


def test_a_single_draft_token_may_be_right_nearly_always(lab: SimpleNamespace) -> None:
    mtp = {"drafts": 400.0, "draft_tokens": 400.0, "source": "counters"}
    real = speaking(**mtp, accepted_tokens=376.0, acceptance_length=1.94, acceptance_rate=0.94)
    fixed = speaking(**mtp, accepted_tokens=400.0, acceptance_length=2.0, acceptance_rate=1.0)
    assert verdicts(lab, good(lab), evidence=real, speculates=True) == {}
    assert verdicts(lab, good(lab), evidence=fixed, speculates=True) == {"implausible_acceptance": "warn"}


def test_synthetic_acceptance_is_said(lab: SimpleNamespace) -> None:
    found = judged(lab, good(lab), evidence=drafting(), speculates=True, synthetic="synth_len: 2.5")
    assert [v["code"] for v in found] == ["synthetic_acceptance"]
    assert "synth_len: 2.5" in found[0]["evidence"]


@pytest.mark.parametrize(
    ("fields", "judged"),
    [
        ({"generated": 400.0}, True),
        ({"generated": 150.0}, False),  # within what counting may differ by
        ({"generated": None}, False),
        ({"restless": True}, True),
    ],
)
def test_someone_elses_traffic(lab: SimpleNamespace, fields: dict[str, Any], judged: bool) -> None:
    found = verdicts(lab, good(lab), evidence=speaking(**fields))
    assert found == ({"foreign_traffic": "warn"} if judged else {})


def test_counters_of_some_replicas_only(lab: SimpleNamespace) -> None:
    found = verdicts(lab, good(lab), evidence=speaking(generated=500.0, received=1000, expected=1000))
    assert found == {"counters_broken": "warn"}


def good(lab: SimpleNamespace, n: int = 40, **fields: Any) -> list[Sent]:
    """Requests spread evenly over time, 75 ms apart and 300 ms long: four at a time."""
    return [_at(lab, i, 75.0 * i, **fields) for i in range(n)]


def _at(lab: SimpleNamespace, index: int, begin: float, **fields: Any) -> Sent:
    sent: Sent = lab.sent(index, (begin + 100, begin + 200, begin + 300), sent=begin, **fields)
    return sent


def test_a_sound_point_has_none(lab: SimpleNamespace) -> None:
    assert verdicts(lab, good(lab)) == {}


def test_interrupted(lab: SimpleNamespace) -> None:
    assert verdicts(lab, good(lab), cut_short="stopped") == {"interrupted": "invalid"}


def test_errors(lab: SimpleNamespace) -> None:
    def with_failures(n: int) -> list[Sent]:
        return [*good(lab, 99), *(lab.sent(200 + i, (), output=None, outcome=Outcome.HTTP_5XX) for i in range(n))]

    assert "errors" not in verdicts(lab, with_failures(1))  # 1 of 100
    assert verdicts(lab, with_failures(2))["errors"] == "invalid"
    assert "errors" not in verdicts(lab, with_failures(2), error_rate=0.02)
    cancelled = [*good(lab), lab.sent(200, (), outcome=Outcome.CANCELLED)]
    assert "errors" not in verdicts(lab, cancelled)


def test_one_failure_of_our_own_machine_voids_a_point(lab: SimpleNamespace) -> None:
    sent = [*good(lab, 999), lab.sent(2000, (), output=None, outcome=Outcome.CLIENT_RESOURCE)]
    assert verdicts(lab, sent, error_rate=0.5)["errors"] == "invalid"


@pytest.mark.parametrize(("n", "severity"), [(0, "invalid"), (9, "invalid"), (10, "warn"), (35, "warn"), (36, None)])
def test_too_few(lab: SimpleNamespace, n: int, severity: str | None) -> None:
    assert verdicts(lab, good(lab, n)).get("too_few") == severity


def test_answers_of_one_token_are_too_few_to_know_a_speed_by(lab: SimpleNamespace) -> None:
    assert verdicts(lab, [lab.sent(i, (75 * i + 9,), requested=1, sent=75 * i) for i in range(40)]) == {
        "too_few": "invalid"
    }


@pytest.mark.parametrize(("lag", "severity"), [(1.0, None), (1.1, "warn"), (10.0, "warn"), (10.1, "invalid")])
@pytest.mark.parametrize("which", ["client_lag_ms_p99", "loop_lag_ms_p99"])
def test_client_bound(lab: SimpleNamespace, lag: float, severity: str | None, which: str) -> None:
    # A ttft of 100 ms: warn above 1 ms, invalid above 10.
    assert verdicts(lab, good(lab), client={which: lag}).get("client_bound") == severity


def test_client_bound_looks_at_the_gaps_between_fragments_as_well(lab: SimpleNamespace) -> None:
    # A ttft of 2 s allows 20 ms; a gap of 8 ms between fragments allows 2.
    slow = [lab.sent(i, [75 * i + 2000 + 8 * k for k in range(4)], sent=75 * i) for i in range(40)]
    assert "client_bound" not in verdicts(lab, slow, client={"loop_lag_ms_p99": 2.0})
    assert verdicts(lab, slow, client={"loop_lag_ms_p99": 2.1})["client_bound"] == "warn"
    assert "client_bound" not in verdicts(lab, slow, client={"client_lag_ms_p99": 2.1})


def test_client_bound_goes_by_whole_replies_where_none_is_streamed(lab: SimpleNamespace) -> None:
    whole = [lab.sent(i, (75 * i + 300,), sent=75 * i, streamed=False) for i in range(40)]
    late = {"client": {"client_lag_ms_p99": 31.0}, "streamed": False}
    assert verdicts(lab, whole, **late)["client_bound"] == "invalid"


@pytest.mark.parametrize(
    ("shares", "cause", "remedy"),
    [
        ({"cpu_wait_fraction": 0.78, "cpu_fraction": 0.18}, "waited for a core 78%", "other programs"),
        ({"cpu_wait_fraction": 0.05, "cpu_fraction": 0.97}, "used 97% of a core", "--workers"),
        ({"cpu_wait_fraction": None, "cpu_fraction": 0.2}, "", "--concurrency"),
    ],
)
def test_client_bound_says_why(lab: SimpleNamespace, shares: dict[str, Any], cause: str, remedy: str) -> None:
    found = judged(lab, good(lab), client={"loop_lag_ms_p99": 50.0, **shares})
    (verdict,) = (v for v in found if v["code"] == "client_bound")
    assert "loop_lag p99 50.0 ms beside a ttft p50 of 100.0 ms" in verdict["evidence"]
    assert cause in verdict["evidence"]
    assert remedy in verdict["remedy"]


def test_client_bound_has_a_floor(lab: SimpleNamespace) -> None:
    quick = [lab.sent(i, (75 * i + 10, 75 * i + 200, 75 * i + 300), sent=75 * i) for i in range(40)]
    # A ttft of 10 ms: still 1 ms and 5 ms.
    assert "client_bound" not in verdicts(lab, quick, client={"client_lag_ms_p99": 1.0, "loop_lag_ms_p99": None})
    assert verdicts(lab, quick, client={"client_lag_ms_p99": 5.0})["client_bound"] == "warn"
    assert verdicts(lab, quick, client={"client_lag_ms_p99": 5.1})["client_bound"] == "invalid"


def bursty(lab: SimpleNamespace, per_burst: int, bursts: int) -> list[Sent]:
    """Bursts 100 ms apart, their fragments 10 µs apart."""
    arrivals = [100 + 100 * b + k / 100 for b in range(bursts) for k in range(per_burst)]
    return [
        lab.sent(i, [75 * i + a for a in arrivals], sent=75 * i, requested=len(arrivals), ended=75 * i + 300)
        for i in range(40)
    ]


@pytest.mark.parametrize(
    ("per_burst", "bursts", "drafts", "severity"),
    [
        (1, 16, None, None),
        (4, 4, None, "warn"),  # undeclared speculation, or a proxy
        (4, 4, 3, None),  # 3 drafted tokens and the verified one
        (4, 4, 2, "warn"),
        (16, 4, None, "invalid"),  # more than any drafter gives
        (16, 3, 4, "invalid"),
        (4, 40, None, None),  # 1 / 39 of tpot
    ],
)
def test_buffered(lab: SimpleNamespace, per_burst: int, bursts: int, drafts: int | None, severity: str | None) -> None:
    found = verdicts(lab, bursty(lab, per_burst, bursts), draft_tokens=drafts)
    assert found.get("buffered") == severity
    # A client late by nearly as much as lies between bursts can still tell; by more, it says what it cannot.
    points = bursty(lab, per_burst, bursts)
    late = [
        [v for v in judged(lab, points, draft_tokens=drafts, client={"loop_lag_ms_p99": ms}) if v["code"] == "buffered"]
        for ms in (70.0, 140.0)
    ]
    assert [v["severity"] for v in late[0]] == ([severity] if severity else [])
    (verdict,) = late[1]
    assert verdict["severity"] == (severity or "warn")
    assert "this client was" in verdict["evidence"] and "140.0 ms" in verdict["evidence"]
    assert "client" in verdict["remedy"]


@pytest.mark.parametrize(("whole", "severity"), [(2, None), (3, "invalid"), (40, "invalid")])
def test_replies_in_one_piece_are_buffered(lab: SimpleNamespace, whole: int, severity: str | None) -> None:
    pieces = [lab.sent(100 + i, (75 * i + 300,), sent=75 * i, output=3, text_bytes=12) for i in range(whole)]
    assert verdicts(lab, [*good(lab), *pieces][whole:]).get("buffered") == severity


@pytest.mark.parametrize(
    ("gap_us", "wait_ms", "fragments", "drafts", "severity"),
    [
        (50, 1000, 96, None, "invalid"),  # 96 tokens in 5 ms after a second: held back, then sent on one by one
        (50, 1000, 96, 8, "invalid"),
        (50, 1000, 9, 8, None),  # one step's tokens
        (200, 1000, 96, None, None),  # a fast server and a long prompt
        (50, 20, 96, None, None),  # a very fast server
    ],
)
def test_replies_held_back_and_sent_on_evenly_are_buffered(
    lab: SimpleNamespace, gap_us: int, wait_ms: int, fragments: int, drafts: int | None, severity: str | None
) -> None:
    def reply(i: int) -> Sent:
        begin = i * wait_ms / 4
        arrivals = [begin + wait_ms + k * gap_us / 1000 for k in range(fragments)]
        return lab.sent(i, arrivals, sent=begin, requested=fragments)

    found = verdicts(lab, [reply(i) for i in range(40)], draft_tokens=drafts)
    assert found.get("buffered") == severity


@pytest.mark.parametrize(("cached", "severity"), [(50, None), (100, "warn"), (300, "invalid")])
def test_cache_hits(lab: SimpleNamespace, cached: int, severity: str | None) -> None:
    # Of 1000 tokens; 32 are forgiven, so 50 are 1.8 %, 100 6.8 %, 300 26.8 %.
    sent = good(lab, input_tokens=1000, cached_tokens=cached)
    assert verdicts(lab, sent).get("cache_hits") == severity


def test_a_cache_block_of_template_is_no_cache_hit(lab: SimpleNamespace) -> None:
    assert "cache_hits" not in verdicts(lab, good(lab, input_tokens=100, cached_tokens=32))


def test_a_shared_system_prompt_is_no_cache_hit(lab: SimpleNamespace) -> None:
    sent = good(lab, input_tokens=1000, cached_tokens=500)
    assert "cache_hits" not in verdicts(lab, sent, common_bytes=20)  # of 40 bytes: half of every prompt


@pytest.mark.parametrize(("growth", "found"), [(0.0, False), (0.04, False), (0.3, True), (-0.3, True)])
def test_drifting(lab: SimpleNamespace, growth: float, found: bool) -> None:
    n = 100
    sent = []
    for i in range(n):
        gap = 100 * (1 + growth * i / n)
        sent.append(lab.sent(i, (75 * i + 100, 75 * i + 100 + gap, 75 * i + 100 + 2 * gap), sent=75 * i))
    assert verdicts(lab, sent) == ({"drifting": "warn"} if found else {})


@pytest.mark.parametrize(("asked", "found"), [(3, False), (4, True), (2, True)])
def test_osl_mismatch(lab: SimpleNamespace, asked: int, found: bool) -> None:
    assert verdicts(lab, good(lab, requested=asked)) == ({"osl_mismatch": "warn"} if found else {})


def test_hidden_tokens(lab: SimpleNamespace) -> None:
    # 100 tokens billed, 12 bytes streamed, and usage does not say where the rest went.
    assert verdicts(lab, good(lab, output=100, requested=100)) == {"hidden_tokens": "invalid"}
    # Where usage names them, they are subtracted.
    named = good(lab, output=100, requested=100, reasoning_tokens=97)
    assert verdicts(lab, named) == {}


def test_mixed_tokens(lab: SimpleNamespace) -> None:
    assert verdicts(lab, [*good(lab), _at(lab, 99, 0, output=None)]) == {"mixed_tokens": "invalid"}


def test_emptying(lab: SimpleNamespace) -> None:
    assert verdicts(lab, good(lab), emptying=0.05) == {}
    assert verdicts(lab, good(lab), emptying=0.2) == {"emptying": "warn"}


def test_rate_limited(lab: SimpleNamespace) -> None:
    refused = [_at(lab, 100 + i, 75.0 * i, outcome=Outcome.RATE_LIMITED, counted=False) for i in range(4)]
    assert verdicts(lab, [*good(lab), *refused]) == {"rate_limited": "warn"}


def test_estimated_tokens(lab: SimpleNamespace) -> None:
    assert verdicts(lab, good(lab, output=None)) == {"estimated_tokens": "warn"}


@pytest.mark.parametrize(("spread", "found"), [(0.0, True), (5.0, True), (75.0, False)])
def test_lockstep(lab: SimpleNamespace, spread: float, found: bool) -> None:
    # Ten waves of four requests of 300 ms, the starts of a wave `spread` ms apart.
    sent = [_at(lab, 4 * wave + slot, 300 * wave + spread * slot) for wave in range(10) for slot in range(4)]
    assert ("lockstep" in verdicts(lab, sent)) == found


def test_lockstep_means_nothing_for_two(lab: SimpleNamespace) -> None:
    sent = [_at(lab, 2 * wave + slot, 300 * wave) for wave in range(20) for slot in range(2)]
    assert "lockstep" not in verdicts(lab, sent, concurrency=2)


def test_reused_prompts(lab: SimpleNamespace) -> None:
    assert verdicts(lab, good(lab, prompt_id="p")) == {}  # its salt makes each another
    assert verdicts(lab, good(lab, prompt_id="p", salt="")) == {"reused_prompts": "warn"}


def test_backend_changed(lab: SimpleNamespace) -> None:
    one = good(lab, model="m", system_fingerprint="f1")
    assert verdicts(lab, one) == {}
    assert verdicts(lab, [*one, _at(lab, 99, 0, model="m", system_fingerprint="f2")]) == {"backend_changed": "warn"}
    assert verdicts(lab, one, earlier=Earlier(frozenset({("other", "")}))) == {"backend_changed": "warn"}
    assert backends_of(lab.requests(*one)) == {("m", "f1")}


def test_quick_repeats_are_cache_hits(lab: SimpleNamespace) -> None:
    def asked(i: int, ttft: float, prompt: str) -> Sent:
        begin = 75.0 * i
        chunks = (begin + ttft, begin + ttft + 100, begin + ttft + 200)
        sent: Sent = lab.sent(i, chunks, sent=begin, prompt_id=prompt, salt="")
        return sent

    new = [asked(i, 100, f"p{i}") for i in range(30)]
    quick = [asked(30 + i, 10, f"p{i}") for i in range(30)]
    as_slow = [asked(30 + i, 90, f"p{i}") for i in range(30)]
    assert verdicts(lab, [*new, *quick])["cache_hits"] == "invalid"
    assert verdicts(lab, [*new, *quick[:5]])["cache_hits"] == "warn"
    assert "cache_hits" not in verdicts(lab, [*new, *as_slow])


def test_the_same_prompts_in_a_later_point_are_reused(lab: SimpleNamespace) -> None:
    assert verdicts(lab, good(lab), earlier=Earlier(unsalted_points=1)) == {"reused_prompts": "warn"}


def test_prompts_of_the_check_for_equal_answers_are_no_earlier_point(lab: SimpleNamespace) -> None:
    (found,) = judged(lab, good(lab), earlier=Earlier(asked_unsalted=True))
    assert (found["code"], found["severity"]) == ("reused_prompts", "warn")
    assert "the check for equal answers sent" in found["evidence"]
    assert "earlier points" not in found["evidence"]


def capped(max_batch: int, concurrency: int, **engine: int) -> dict[str, str]:
    """Codes of a point in virtual time on a server with so many slots."""
    given: dict[str, int] = {"prefill_ns_per_token": 20_000, "prefill_base_ns": 0, "decode_base_ns": 4_800_000}
    config = EngineConfig(
        **(given | engine),
        decode_ns_per_sequence=200_000,
        max_batch=max_batch,
        kv_capacity_tokens=10**7,
        prefill_budget_tokens=8192,
    )
    document = {
        "arms": {"a": {"url": "http://127.0.0.1:1", "model": "m"}},
        "workload": {"use": "chat-short", "max_tokens": 64},
        "load": {"concurrency": [concurrency], "requests": 6 * concurrency},
    }
    (point,) = virtual_sweep(load_sweep(None, document, {}), {"a": config})
    return {v["code"]: v["severity"] for v in point["verdicts"]}


@pytest.mark.parametrize(("slots", "users", "found"), [(16, 32, True), (16, 20, True), (8, 64, True), (64, 64, False)])
def test_server_capped(slots: int, users: int, found: bool) -> None:
    assert (capped(slots, users).get("server_capped") == "warn") == found


def test_heavy_prefill_is_no_cap() -> None:
    assert "server_capped" not in capped(64, 32, prefill_ns_per_token=400_000)
