"""The closed loop against a scripted endpoint, in virtual time."""

from __future__ import annotations

import gc
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoints.outcomes import Outcome
from sweeps.load import ClosedLoop, LoadPlan, Sent
from sweeps.prompts import FILLER, MEASURE, WARMUP

S = 1_000_000_000


@st.composite
def plans(draw: st.DrawFn) -> LoadPlan:
    seconds = draw(st.none() | st.floats(0.5, 6))
    requests = draw(st.integers(2, 30) if seconds is None else st.none() | st.integers(2, 30))
    return LoadPlan(
        concurrency=draw(st.integers(1, 9)),
        seconds=seconds,
        requests=requests,
        exact=requests is not None and draw(st.booleans()),
        warmup=draw(st.none() | st.integers(0, 12)),
    )


@given(plan=plans(), lengths=st.lists(st.floats(0.05, 3), min_size=1, max_size=9), tokens=st.integers(1, 5))
def test_the_laws_of_the_closed_loop(lab: SimpleNamespace, plan: LoadPlan, lengths: list[float], tokens: int) -> None:
    ran = lab.drive(plan, lambda n: lab.Reply(lengths[n % len(lengths)], tokens))
    sent, window = ran.sent, ran.result.window
    assert ran.result.cut_short is None
    assert max(level for _, level in ran.transport.levels) <= plan.concurrency
    assert len(sent) == ran.transport.calls
    assert [s.planned.index for s in sent] == list(range(len(sent)))
    t0, t1 = window.t0_ns, window.t1_ns
    if plan.seconds is None:
        assert len(ran.counted) == plan.requests
        assert len(ran.phase(FILLER)) <= plan.concurrency
        assert t1 >= ran.counted[-1].exchange.issued_ns
    else:
        assert t1 >= t0 + int(plan.seconds * S)
        assert len(ran.counted) >= (plan.requests or 0)
        if plan.requests is None:
            inside = [s for s in sent if s.phase != WARMUP and t0 <= s.exchange.issued_ns < t1]
            assert ran.counted == inside
    assert all(s.exchange.issued_ns <= t0 for s in ran.phase(WARMUP))
    assert all(s.exchange.issued_ns >= t0 for s in ran.counted)
    assert all(s.exchange.outcome is Outcome.OK for s in ran.counted)
    assert all(s.due_ns <= s.exchange.issued_ns <= s.exchange.ended_ns for s in sent)
    assert not (plan.exact and [s for s in ran.phase(FILLER) if s.exchange.issued_ns > t1])
    assert all((s.phase == MEASURE) == s.counted for s in sent)
    if plan.warmup is not None and plan.warmup < plan.concurrency:
        assert t0 == ran.counted[0].exchange.issued_ns
        assert len(ran.phase(WARMUP)) == plan.warmup


def test_slots_start_as_the_first_request_gets_its_tokens(lab: SimpleNamespace) -> None:
    ran = lab.drive(LoadPlan(4, None, 8), lab.Reply(8.0, 8), max_tokens=8)
    starts: dict[int, float] = {}
    for s in ran.sent:
        starts.setdefault(s.slot, s.exchange.issued_ns / S)
    assert starts == {0: 0, 1: 2, 2: 4, 3: 6}  # 1/4, 2/4, 3/4 of eight seconds


def test_slots_start_at_the_end_of_a_first_request_that_ends_early(lab: SimpleNamespace) -> None:
    # 3 of the 8 tokens that were asked for: slot 1 starts at the second, slots 2 and 3 at the end.
    ran = lab.drive(LoadPlan(4, None, 8), lab.Reply(3.0, 3), max_tokens=8)
    starts: dict[int, float] = {}
    for s in ran.sent:
        starts.setdefault(s.slot, s.exchange.issued_ns / S)
    assert starts == {0: 0, 1: 2, 2: 3, 3: 3}


def test_a_first_request_that_fails_lets_the_others_start(lab: SimpleNamespace) -> None:
    first = lab.Reply(1.0, 0, Outcome.HTTP_5XX)
    ran = lab.drive(LoadPlan(3, None, 6), lambda n: first if n == 0 else lab.Reply())
    assert len(ran.counted) == 6


def test_t0_is_when_the_last_slot_has_finished_a_warmup_request(lab: SimpleNamespace) -> None:
    # Starts at 0, 1, 2, 3 s (4 s for the first request); slot 2 takes 10 s, so t0 = 2 + 10.
    ran = lab.drive(LoadPlan(4, 5.0, None), lambda n: lab.Reply(10.0 if n == 2 else 4.0))
    assert ran.seconds[0] == 12
    assert ran.result.window.slot == 2
    assert "every slot" in ran.result.window.t0_reason


@pytest.mark.parametrize(("late", "opens"), [(2, True), (3, False)])
def test_95_percent_of_the_slots_suffice_after_three_lengths(lab: SimpleNamespace, late: int, opens: bool) -> None:
    # 40 slots of 4 s; 38 or 37 of them finish. The last start is at 3.9 s, so t0 is the first end from 15.9 s on.
    plan = LoadPlan(40, 10.0, None, deadline_s=500)
    ran = lab.drive(plan, lambda n: lab.Reply(4.0, 40, hangs=5 <= n < 5 + late), max_tokens=40)
    if not opens:
        assert ran.result.window.t0_ns is None
        assert "deadline" in ran.result.cut_short
        return
    assert 15.9 <= ran.seconds[0] <= 16.0
    assert ran.result.window.t0_reason.startswith("38 of 40")
    # They are given up when three lengths have passed after t1, long before the deadline, and the point is whole.
    assert ran.result.cut_short is None
    assert ran.result.ended_ns / S == pytest.approx(ran.seconds[1] + 12, abs=0.2)
    assert any("2 uncounted requests" in note for note in ran.result.notes)
    assert [ran.sent[n].exchange.outcome for n in (5, 6)] == [Outcome.CANCELLED] * 2
    assert all(s.exchange.outcome is Outcome.OK for s in ran.counted)


def test_t0_waits_for_the_last_start(lab: SimpleNamespace) -> None:
    # The first request lasts 40 s, the others 0.1: at 38.4 s 38 of 40 slots are done, but the last starts at 39.
    ran = lab.drive(LoadPlan(40, 5.0, None), lambda n: lab.Reply(0.1 if n else 40.0, 40), max_tokens=40)
    assert 39.3 <= ran.seconds[0] < 40


@pytest.mark.parametrize("exact", [False, True])
def test_a_hung_warmup_request_does_not_hold_a_point_by_requests(lab: SimpleNamespace, exact: bool) -> None:
    plan = LoadPlan(20, None, 60, exact=exact, deadline_s=500)
    ran = lab.drive(plan, lambda n: lab.Reply(4.0, 20, hangs=n == 7), max_tokens=20)
    assert ran.result.cut_short is None
    assert ran.result.ended_ns / S < 60
    assert len(ran.counted) == 60


def test_equal_lengths_in_lockstep_give_whole_cycles(lab: SimpleNamespace) -> None:
    ran = lab.drive(LoadPlan(8, 10.3, None), lab.Reply(1.0), streams=False)
    t0, t1 = ran.seconds
    assert t1 - t0 == 11
    ran = lab.drive(LoadPlan(8, None, 41), lab.Reply(1.0), streams=False)
    t0, t1 = ran.seconds
    assert (t1 - t0) == round(t1 - t0)


def test_t1_may_be_the_very_instant_at_which_the_seconds_are_up(lab: SimpleNamespace) -> None:
    ran = lab.drive(LoadPlan(1, 10.0, None), lab.Reply(1.0))
    assert ran.seconds == (1, 11)
    assert len(ran.counted) == 10


@pytest.mark.parametrize(("plan", "t1"), [(LoadPlan(1, 10.0, None), 12), (LoadPlan(1, None, 10), 11)])
def test_t1_comes_at_most_a_median_later(lab: SimpleNamespace, plan: LoadPlan, t1: float) -> None:
    # t0 = 1. The request issued at 10 s lasts 50: by seconds time is up at 11, by requests it is the tenth, at 10.
    ran = lab.drive(plan, lambda n: lab.Reply(50.0 if n == 10 else 1.0))
    assert ran.seconds == pytest.approx((1, t1), abs=1e-6)
    assert ran.result.window.t1_reason == "one median request length had passed"
    assert ran.counted[-1].exchange.ended_ns == 60 * S  # followed to its end all the same
    assert any(note.startswith("1 counted requests ran on") for note in ran.result.notes)


def test_t1_waits_for_the_slot_that_set_t0(lab: SimpleNamespace) -> None:
    # Slots start at 0 and 0.5 s, so slot 1 sets t0 = 1.5. Time is up at 4.7; slot 0 ends at 5.0, slot 1 at 5.5.
    ran = lab.drive(LoadPlan(2, 3.2, None), lab.Reply(1.0))
    assert ran.seconds == (1.5, 5.5)
    assert ran.result.window.slot == 1


def test_a_timer_that_fires_early_does_not_put_t1_off(lab: SimpleNamespace) -> None:
    # Event loops may round timers down. Time is up at 31 s, amid a request of 60 s; t1 is a median (1 s) later.
    ran = lab.drive(LoadPlan(1, 30.0, None), lambda n: lab.Reply(1.0 if n == 0 else 60.0), early=0.0005)
    assert ran.seconds == pytest.approx((1, 32), abs=0.001)


def test_requests_issued_at_t1_do_not_count(lab: SimpleNamespace) -> None:
    ran = lab.drive(LoadPlan(4, 3.0, None), lab.Reply(1.0), streams=False)
    t0, t1 = ran.result.window.t0_ns, ran.result.window.t1_ns
    again = [s for s in ran.sent if s.exchange.issued_ns == t1]
    assert again
    assert not any(s.counted or s.needed for s in again)
    assert ran.loop.counted == ran.loop.counted_ended == len(ran.counted)
    assert all(t0 <= s.exchange.issued_ns < t1 for s in ran.counted)


def test_a_request_that_began_at_t1_and_ended_before_it_was_known_does_not_count(lab: SimpleNamespace) -> None:
    # Two slots in lockstep. At 5 s slot 0 is first to end and sends the tenth request, which ends at once; then slot 1,
    # which set t0, ends: t1 is 5 s.
    ran = lab.drive(LoadPlan(2, 3.0, None), lambda n: lab.Reply(0.0 if n == 9 else 1.0, 1), streams=False)
    assert ran.seconds == (2, 5)
    late = ran.sent[9]
    assert late.exchange.issued_ns == late.exchange.ended_ns == 5 * S
    assert (late.counted, late.phase) == (False, FILLER)


def test_filler_keeps_the_load_up_until_the_counted_ones_have_ended(lab: SimpleNamespace) -> None:
    lengths = [1.0, 1.7, 2.3, 0.9, 3.1]
    ran = lab.drive(LoadPlan(5, 8.0, None), lambda n: lab.Reply(lengths[n % 5]))
    t0 = ran.result.window.t0_ns
    last = max(s.exchange.ended_ns for s in ran.counted)
    assert _levels_between(ran.transport.levels, t0, last) == {5}
    assert ran.phase(FILLER)
    assert all(s.exchange.issued_ns >= ran.result.window.t1_ns for s in ran.phase(FILLER))


def test_by_requests_at_most_c_fillers(lab: SimpleNamespace) -> None:
    # The first of two counted requests runs 40 s beside requests of 1 s: the fillers are used up long before.
    ran = lab.drive(LoadPlan(3, None, 6), lambda n: lab.Reply(2.8 if n == 5 else 1.0))
    assert 0 < len(ran.phase(FILLER)) <= 3


def test_after_three_lengths_only_counted_requests_run_on(lab: SimpleNamespace) -> None:
    ran = lab.drive(LoadPlan(4, 6.0, None), lambda n: lab.Reply(30.0 if n == 12 else 1.0))
    t1 = ran.result.window.t1_ns
    slow = next(s for s in ran.counted if s.planned.index == 12)
    assert slow.exchange.outcome is Outcome.OK
    assert _levels_between(ran.transport.levels, t1, t1 + 3 * S - 1) == {4}
    assert _levels_between(ran.transport.levels, t1 + 3 * S + 1, slow.exchange.ended_ns) == {1}
    assert [note for note in ran.result.notes if "without load beside them" in note]
    assert ran.result.cut_short is None
    assert ran.result.ended_ns == slow.exchange.ended_ns
    assert {s.phase for s in ran.sent if s.exchange.outcome is Outcome.CANCELLED} <= {FILLER}


def test_exact_sends_no_filler_and_says_nothing_of_load(lab: SimpleNamespace) -> None:
    ran = lab.drive(LoadPlan(4, None, 10, exact=True), lambda n: lab.Reply(30.0 if n == 12 else 1.0))
    assert len(ran.counted) == 10
    assert not ran.phase(FILLER)
    assert ran.result.notes == []


@pytest.mark.parametrize("warmup", [0, 3])
def test_warmup_below_c_is_none(lab: SimpleNamespace, warmup: int) -> None:
    ran = lab.drive(LoadPlan(4, None, 10, warmup=warmup), lab.Reply(1.0))
    first = ran.counted[0]
    assert first.planned.index == warmup
    assert ran.result.window.t0_ns == first.exchange.issued_ns
    assert len(ran.phase(WARMUP)) == warmup
    assert any(f"a warmup of {warmup} for 4 slots" in note for note in ran.result.notes)
    assert "no warmup" in ran.result.window.t0_reason


def test_a_longer_warmup_is_kept_to(lab: SimpleNamespace) -> None:
    ran = lab.drive(LoadPlan(4, None, 10, warmup=21), lab.Reply(1.0))
    ended = [s for s in ran.phase(WARMUP) if s.exchange.ended_ns <= ran.result.window.t0_ns]
    assert len(ended) == 21


def test_a_hung_request_after_a_whole_window_costs_only_itself(lab: SimpleNamespace) -> None:
    ran = lab.drive(LoadPlan(4, 6.0, None, deadline_s=100), lambda n: lab.Reply(hangs=n == 12))
    assert ran.result.cut_short is None
    assert ran.outcomes().count("deadline") == 1
    assert ran.counted[12 - ran.counted[0].planned.index].exchange.outcome is Outcome.DEADLINE
    assert ran.result.ended_ns == 100 * S
    assert ran.result.notes[-1] == "1 requests had not ended at the point's deadline"


def test_filler_under_way_at_the_deadline_is_cancelled(lab: SimpleNamespace) -> None:
    # t0 = 1.75, t1 = 7.75; at 9.2 s all counted ones but the hung one have ended.
    ran = lab.drive(LoadPlan(4, 6.0, None, deadline_s=9.2), lambda n: lab.Reply(hangs=n == 12))
    ended = [s for s in ran.sent if s.exchange.outcome is not Outcome.OK]
    assert sorted((s.phase, str(s.exchange.outcome)) for s in ended) == [(FILLER, "cancelled")] * 3 + [
        (MEASURE, "deadline")
    ]


def test_a_deadline_before_the_window_is_whole_cuts_the_point_short(lab: SimpleNamespace) -> None:
    ran = lab.drive(LoadPlan(4, 60.0, None, deadline_s=20), lab.Reply())
    assert ran.result.cut_short == "the point's deadline passed before its window was complete"
    assert ran.result.window.t1_ns is None
    assert ran.result.ended_ns == 20 * S
    assert ran.outcomes().count("deadline") == 4


@pytest.mark.parametrize(("concurrency", "tries"), [(1, 20), (16, 32)])
def test_a_point_that_never_succeeds_is_given_up(lab: SimpleNamespace, concurrency: int, tries: int) -> None:
    ran = lab.drive(LoadPlan(concurrency, 600.0, None), lab.Reply(0.0, 0, Outcome.REFUSED))
    assert ran.result.cut_short == f"{tries} requests in a row failed and none succeeded"
    assert ran.outcomes().count("refused") == tries


def test_a_slot_that_fails_at_once_pauses_longer_and_longer(lab: SimpleNamespace) -> None:
    # One success, so that 20 failures do not end the point. They come 50, 100, 200, 400, 800, 1000, 1000 ms apart.
    ran = lab.drive(LoadPlan(1, 40.0, None), lambda n: lab.Reply(1.0) if n == 0 else lab.Reply(0.0, 0, Outcome.RESET))
    failed = [s.exchange.issued_ns for s in ran.sent[1:]]
    gaps = [round((b - a) / 1e6) for a, b in pairwise(failed)]
    assert gaps[:7] == [50, 100, 200, 400, 800, 1000, 1000]
    assert ran.result.cut_short is None
    assert all(s.due_ns == s.exchange.issued_ns for s in ran.sent)  # the pause is no lag of ours


def test_failures_count_as_ended_warmup_and_stay_in_the_result(lab: SimpleNamespace) -> None:
    ran = lab.drive(LoadPlan(4, None, 20), lambda n: lab.Reply(0.5, 0, Outcome.HTTP_5XX) if n % 3 == 1 else lab.Reply())
    assert len(ran.counted) == 20
    assert ran.loop.failed == ran.outcomes().count("http_5xx") > 0


def test_stop_ends_a_point_at_once(lab: SimpleNamespace) -> None:
    ran = lab.drive(LoadPlan(4, 60.0, None), lab.Reply(1.0), stop_after=10.5)
    assert ran.result.cut_short == "asked to stop"
    assert ran.result.ended_ns == 10.5 * S
    assert ran.outcomes().count("cancelled") == 4
    assert ran.transport.in_flight == 0


def test_limits_used_up_cut_an_unfinished_point_short(lab: SimpleNamespace) -> None:
    ran = lab.drive(
        LoadPlan(4, 60.0, None), lab.Reply(1.0), limits=lambda loop: "used up" if loop.issued >= 30 else None
    )
    assert ran.result.cut_short == "used up"
    assert len(ran.sent) == 30


def test_limits_used_up_by_filler_do_not_spoil_a_whole_window(lab: SimpleNamespace) -> None:
    ran = lab.drive(
        LoadPlan(4, 6.0, None),
        lambda n: lab.Reply(2.5 if n == 25 else 1.0),
        limits=lambda loop: "used up" if loop.window.t1_ns is not None else None,
    )
    assert ran.result.cut_short is None
    assert not [s for s in ran.phase(FILLER) if s.exchange.issued_ns > ran.result.window.t1_ns]
    assert "used up: no more filler was sent" in ran.result.notes
    assert all(s.exchange.outcome is Outcome.OK for s in ran.counted)


def test_requests_that_have_ended_are_not_remembered(lab: SimpleNamespace) -> None:
    # 4 slots, 2000 requests: alive are at most those under way, and those of one median length of which t1 must tell.
    alive: list[int] = []

    def look(loop: ClosedLoop) -> str | None:
        if loop.issued % 250 == 0:
            alive.append(sum(isinstance(thing, Sent) for thing in gc.get_objects()) - before)
        return None

    gc.collect()
    before = sum(isinstance(thing, Sent) for thing in gc.get_objects())
    ran = lab.drive(LoadPlan(4, 500.0, None), lab.Reply(1.0), limits=look, remember=False)
    assert ran.loop.issued > 2000
    assert len(alive) >= 8
    assert max(alive) <= 12


def test_an_internal_error_ends_the_point_with_a_traceback(lab: SimpleNamespace) -> None:
    def script(n: int) -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        lab.drive(LoadPlan(2, None, 10), script)


def _levels_between(levels: list[tuple[int, int]], begin: int, end: int) -> set[int]:
    """In-flight counts at the end of each instant in [begin, end), and the one that held at `begin`."""
    at: dict[int, int] = dict(levels)
    held = [level for ns, level in at.items() if ns <= begin][-1]
    return {held} | {level for ns, level in at.items() if begin < ns < end}
