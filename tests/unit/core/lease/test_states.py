"""The life of a lease: the table exhaustively, time by example, and every history with Hypothesis."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease import states as lease
from holdfast.core.lease.states import TABLE, Event, LeasePhase, LeaseState
from holdfast.core.lease.timing import Timing, settle
from holdfast.types import MS, NS, Instant, LossReason, elapsed_ns

START = Instant(10**15, 10**15, 10**18)


def after(ns: int, since: Instant = START) -> Instant:
    return Instant(since.mono + ns, since.boot + ns, since.wall + ns)


LOSSES = {
    Event.REFUSED: LossReason.STOLEN,
    Event.EXPIRED: LossReason.EXPIRED,
    Event.MAX_HOLD: LossReason.MAX_HOLD,
    Event.STALLED: LossReason.STALLED,
    Event.REVOKED: LossReason.REVOKED,
    Event.FORKED: LossReason.FORKED,
}


# The table.


@pytest.mark.parametrize(("state", "event"), list(product(LeasePhase, Event)))
def test_every_state_knows_every_event_and_the_table_is_what_the_design_says(state: LeasePhase, event: Event) -> None:
    target = TABLE[state][event]
    if state in (LeasePhase.LOST, LeasePhase.RELEASED):
        assert target is state
    elif event in LOSSES:
        assert target is LeasePhase.LOST
    else:
        wanted = {
            Event.RENEWED: LeasePhase.HELD,
            Event.UNKNOWN: LeasePhase.DOUBTFUL,
            Event.RELEASED: LeasePhase.RELEASED,
        }
        assert target is wanted[event]


@pytest.mark.parametrize(("event", "reason"), LOSSES.items())
def test_a_loss_carries_its_reason_from_held_and_from_doubtful(event: Event, reason: LossReason) -> None:
    held = lease.granted(START)
    doubtful = lease.unknown(held, settle(), after(10 * NS))
    for state in (held, doubtful):
        lost = lease.ended(state, event)
        assert (lost.phase, lost.reason, lost.live) == (LeasePhase.LOST, reason, False)


@pytest.mark.requires("R124")
def test_a_lost_lease_is_never_released_and_a_released_one_never_lost() -> None:
    lost = lease.ended(lease.granted(START), Event.REFUSED)
    released = lease.ended(lease.granted(START), Event.RELEASED)
    assert released.reason is None
    for event in Event:
        assert lease.ended(lost, event) == lost
        assert lease.ended(released, event) == released
    late = after(10**6 * NS)
    for final in (lost, released):
        assert lease.renewed(final, late) == final
        assert lease.unknown(final, settle(), late) == final
        assert lease.judge(final, settle(), late) == final
        assert lease.progressed(final, late) == final
        assert lease.remaining_ns(final, settle(), START) == 0


def test_the_diagram_is_drawn_from_the_table() -> None:
    drawn = lease.mermaid()
    assert drawn.startswith("stateDiagram-v2\n")
    for state, moves in TABLE.items():
        for event, target in moves.items():
            if target is not state:
                lines = [line for line in drawn.splitlines() if line.strip().startswith(f"{state} --> {target}:")]
                assert len(lines) == 1
                assert event in lines[0].split(": ")[1].split(", ")


# Renewal.


@pytest.mark.requires("R15", "R123", "R127")
def test_a_confirmed_renewal_resets_everything() -> None:
    timing = settle(failures=3)
    doubtful = lease.unknown(lease.granted(START), timing, after(10 * NS))
    assert (doubtful.phase, doubtful.failures) == (LeasePhase.DOUBTFUL, 1)
    fresh = lease.renewed(doubtful, after(11 * NS))
    assert (fresh.phase, fresh.failures, fresh.failed_period) == (LeasePhase.HELD, 0, 0)
    assert fresh.confirmed == after(11 * NS)
    assert fresh.granted == START


def test_a_renewal_counts_from_before_it_was_sent() -> None:
    timing = settle()
    state = lease.renewed(lease.granted(START), after(10 * NS))  # the answer may have taken any time
    assert lease.remaining_ns(state, timing, after(12 * NS)) == timing.valid_ns() - 2 * NS


def test_a_late_answer_to_an_earlier_renewal_does_not_turn_time_back() -> None:
    state = lease.renewed(lease.granted(START), after(10 * NS))
    assert lease.renewed(state, after(5 * NS)).confirmed == after(10 * NS)


@pytest.mark.requires("R7", "R127")
def test_a_refusal_is_an_immediate_loss_and_not_one_strike_of_several() -> None:
    lost = lease.ended(lease.granted(START), Event.REFUSED)
    assert (lost.phase, lost.reason) == (LeasePhase.LOST, LossReason.STOLEN)


@pytest.mark.requires("R119", "R123")
def test_the_attempts_of_one_period_are_one_failure_and_the_budget_ends_the_lease() -> None:
    timing = settle(ttl=60, renew_every=10, failures=3)
    state = lease.granted(START)
    for at_s, failures in ((10, 1), (11, 1), (19, 1), (20, 2), (29, 2)):
        state = lease.unknown(state, timing, after(at_s * NS))
        assert (state.phase, state.failures) == (LeasePhase.DOUBTFUL, failures)
    state = lease.unknown(state, timing, after(30 * NS))
    assert (state.phase, state.reason) == (LeasePhase.LOST, LossReason.UNCONFIRMED)


def test_a_budget_of_one_ends_the_lease_at_the_first_failure() -> None:
    lost = lease.unknown(lease.granted(START), settle(failures=1), after(NS))
    assert (lost.phase, lost.reason) == (LeasePhase.LOST, LossReason.UNCONFIRMED)


@given(st.lists(st.integers(0, 200), min_size=1, max_size=30), st.integers(1, 8))
def test_failures_are_never_more_than_periods_and_never_pass_the_budget(moments: list[int], budget: int) -> None:
    timing = settle(ttl=60, renew_every=10, failures=budget)
    state = lease.granted(START)
    for moment in sorted(moments):
        state = lease.unknown(state, timing, after(moment * NS))
    periods = {moment // 10 for moment in moments}
    assert state.failures == min(budget, len(periods))
    assert (state.phase is LeasePhase.LOST) == (len(periods) >= budget)


# Time.


@pytest.mark.requires("R117", "R119")
def test_time_alone_ends_a_lease_at_the_loss_age_and_not_before() -> None:
    timing = settle()
    state = lease.granted(START)
    age = timing.loss_age_ns()
    assert lease.judge(state, timing, after(age - 1)).phase is LeasePhase.HELD
    lost = lease.judge(state, timing, after(age))
    assert (lost.phase, lost.reason) == (LeasePhase.LOST, LossReason.EXPIRED)


def test_a_lease_that_ran_out_while_renewals_failed_is_unconfirmed() -> None:
    timing = settle()
    doubtful = lease.unknown(lease.granted(START), timing, after(10 * NS))
    assert lease.judge(doubtful, timing, after(timing.ttl_ns)).reason is LossReason.UNCONFIRMED


def test_a_suspended_or_stepped_host_finds_its_lease_lost() -> None:
    timing, state = settle(), lease.granted(START)
    suspended = Instant(START.mono, START.boot + 60 * NS, START.wall)
    stepped = Instant(START.mono, START.boot, START.wall + 60 * NS)
    stepped_back = Instant(START.mono + NS, START.boot + NS, START.wall - 60 * NS)
    assert lease.judge(state, timing, suspended).phase is LeasePhase.LOST
    assert lease.judge(state, timing, stepped).phase is LeasePhase.LOST
    assert lease.judge(state, timing, stepped_back).phase is LeasePhase.HELD


def test_a_slow_store_makes_the_holder_let_go_earlier() -> None:
    timing, state = settle(), lease.granted(START)
    moment = after(timing.loss_age_ns() - NS)
    assert lease.judge(state, timing, moment).phase is LeasePhase.HELD
    assert lease.judge(state, timing, moment, tail_ns=3 * NS).phase is LeasePhase.LOST


def test_max_hold_counts_from_the_grant_whatever_was_renewed() -> None:
    timing = settle(ttl=10, max_hold=25)
    state = lease.granted(START)
    for at_s in (5, 10, 15, 20, 24):
        state = lease.renewed(state, after(at_s * NS))
    assert lease.judge(state, timing, after(25 * NS - 1)).phase is LeasePhase.HELD
    assert lease.judge(state, timing, after(25 * NS)).reason is LossReason.MAX_HOLD


def test_a_stalled_work_loses_its_lease_and_progress_keeps_it() -> None:
    timing = settle(ttl=60, stall_after=5)
    state = lease.granted(START)
    assert lease.judge(state, timing, after(5 * NS)).reason is LossReason.STALLED
    state = lease.progressed(state, after(4 * NS))
    assert lease.judge(state, timing, after(9 * NS - 1)).phase is LeasePhase.HELD
    assert lease.judge(state, timing, after(9 * NS)).reason is LossReason.STALLED


timings = st.builds(
    settle,
    ttl=st.floats(0.1, 100),
    auto_renew=st.booleans(),
    failures=st.integers(1, 5),
    max_hold=st.none() | st.floats(0.01, 300),
    stall_after=st.none() | st.floats(0.01, 300),
)
gaps = st.integers(0, 60 * NS)
tails = st.integers(0, NS)


@given(timings, gaps, gaps, tails)
def test_the_time_until_the_loss_is_exact(timing: Timing, first: int, second: int, tail_ns: int) -> None:
    state = lease.progressed(lease.renewed(lease.granted(START), after(first)), after(first // 2))
    now = after(first + second)
    left = lease.loss_in_ns(state, timing, now, tail_ns)
    assert lease.judge(state, timing, after(left, now), tail_ns).phase is LeasePhase.LOST
    if left:
        assert lease.judge(state, timing, after(left - 1, now), tail_ns).live
    else:
        assert lease.judge(state, timing, now, tail_ns).phase is LeasePhase.LOST


@given(timings, gaps, gaps, tails)
def test_a_lease_is_lost_while_the_store_is_still_bound_to_keep_it(
    timing: Timing, first: int, second: int, tail_ns: int
) -> None:
    state = lease.renewed(lease.granted(START), after(first))
    now = after(first + second)
    if lease.judge(state, timing, now, tail_ns).live:
        assert lease.remaining_ns(state, timing, now) > 0
        assert elapsed_ns(after(first), now) < timing.ttl_ns
    assert 0 <= lease.remaining_ns(state, timing, now) < timing.ttl_ns


@given(timings, gaps, tails)
def test_one_renewal_takes_a_third_of_what_remains_and_two_seconds_at_the_most(
    timing: Timing, gap: int, tail_ns: int
) -> None:
    state, now = lease.granted(START), after(gap)
    limit = lease.renew_timeout_ns(state, timing, now, tail_ns)
    assert MS <= limit <= 2 * NS
    assert limit == MS or limit * 3 <= lease.loss_in_ns(state, timing, now, tail_ns)


@given(timings, gaps, st.integers(0, 2**16 - 1))
@pytest.mark.requires("R114", "R118")
def test_a_held_lease_is_renewed_after_its_interval_and_a_doubtful_one_soon(
    timing: Timing, gap: int, draw: int
) -> None:
    held = lease.granted(START)
    wait = lease.renewal_in_ns(held, timing, after(gap), draw)
    assert wait == max(0, timing.renew_every_ns - gap)
    doubtful = held._replace(phase=LeasePhase.DOUBTFUL, failures=1)
    wait = lease.renewal_in_ns(doubtful, timing, after(gap), draw)
    step = timing.renew_every_ns // 8
    assert step // 2 <= wait <= step // 2 + step


@given(timings, gaps, tails)
def test_the_warning_comes_before_the_loss_by_age(timing: Timing, gap: int, tail_ns: int) -> None:
    state, now = lease.granted(START), after(gap)
    age = timing.loss_age_ns(tail_ns) - gap
    assert lease.warn_in_ns(state, timing, now, tail_ns) <= age


events = st.one_of(
    st.tuples(st.just("renewed"), gaps),
    st.tuples(st.just("unknown"), gaps),
    st.tuples(st.just("judge"), gaps),
    st.tuples(st.just("progressed"), gaps),
    st.tuples(st.sampled_from(list(LOSSES)), gaps),
    st.tuples(st.just(Event.RELEASED), gaps),
)


@given(timings, st.lists(events, max_size=20))
def test_in_every_history_the_end_is_final_and_a_loss_has_a_reason(
    timing: Timing, history: list[tuple[str, int]]
) -> None:
    state, now = lease.granted(START), START
    for kind, gap in history:
        before, now = state, after(gap, now)
        state = _apply(state, timing, kind, now)
        if not before.live:
            assert state == before
        assert (state.phase is LeasePhase.LOST) == (state.reason is not None)
        assert (state.phase is LeasePhase.DOUBTFUL) <= (state.failures > 0)
        assert state.granted == START
        assert elapsed_ns(before.confirmed, state.confirmed) >= 0


def _apply(state: LeaseState, timing: Timing, kind: str, now: Instant) -> LeaseState:
    if kind == "renewed":
        return lease.renewed(state, now)
    if kind == "unknown":
        return lease.unknown(state, timing, now)
    if kind == "judge":
        return lease.judge(state, timing, now)
    if kind == "progressed":
        return lease.progressed(state, now)
    return lease.ended(state, Event(kind))
