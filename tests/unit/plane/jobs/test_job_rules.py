"""What the scheduler decides about a job, about the end of an attempt, and about time limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.plane.jobs.rules import (
    ELSEWHERE_BASE_NS,
    ELSEWHERE_MAX_NS,
    POSTPONED_MAX,
    AttemptEnd,
    Dispatch,
    End,
    JobCode,
    JobFacts,
    Nothing,
    Retry,
    StateLimits,
    Wait,
    after_attempt,
    decide,
    elsewhere_ns,
    overdue,
)
from holdfast.plane.model.job_states import MOVES, JobQueue, JobState, legal
from holdfast.types import NS

NOW = 1_000 * NS
NEW = JobFacts(JobState.PENDING, attempt=0, max_attempts=3, not_before_ns=0, deadline_ns=None)

LOOKS = st.builds(
    JobFacts,
    state=st.sampled_from(JobState),
    attempt=st.integers(0, 5),
    max_attempts=st.integers(1, 5),
    not_before_ns=st.integers(0, 2 * NOW),
    deadline_ns=st.none() | st.integers(0, 2 * NOW),
)


def test_a_new_job_with_a_live_worker_is_dispatched() -> None:
    assert decide(NEW, now_ns=NOW, known_topic=True, live_workers=1) == Dispatch()


@pytest.mark.parametrize(
    ("job", "known", "workers", "code"),
    [
        (replace(NEW, deadline_ns=NOW), True, 1, JobCode.DEADLINE),
        (NEW, False, 1, JobCode.UNKNOWN_TOPIC),
        (replace(NEW, attempt=3), True, 1, JobCode.MAX_ATTEMPTS),
        (NEW, True, 0, JobCode.NO_WORKER),
        (replace(NEW, not_before_ns=NOW + 1), True, 1, JobCode.NOT_YET),
    ],
)
def test_a_job_that_cannot_be_dispatched_says_why(job: JobFacts, known: bool, workers: int, code: JobCode) -> None:
    decision = decide(job, now_ns=NOW, known_topic=known, live_workers=workers)
    assert isinstance(decision, End | Wait)
    assert decision.code is code


@given(LOOKS, st.booleans(), st.integers(0, 3))
def test_every_job_has_a_decision_that_its_state_allows(job: JobFacts, known: bool, workers: int) -> None:
    decision = decide(job, now_ns=NOW, known_topic=known, live_workers=workers)
    if job.state.terminal or job.state in (JobState.DISPATCHED, JobState.RUNNING, JobState.APPROVAL_REQUIRED):
        assert isinstance(decision, Nothing)
    elif isinstance(decision, End):
        assert legal(job.state, decision.state)
    elif isinstance(decision, Dispatch):
        assert legal(job.state, JobState.SCHEDULED)
        assert job.attempt < job.max_attempts or job.state is JobState.RETRYING  # then it was judged before
        assert workers > 0
    else:
        assert isinstance(decision, Wait)
        assert (decision.delay_ns == 0) == (decision.code is JobCode.NO_WORKER)
        assert 0 <= decision.delay_ns <= job.not_before_ns


def test_a_job_in_the_queue_of_its_topic_is_not_overdue_however_long_it_waits_for_another_attempt() -> None:
    """A worker that serves the topic may come at any time; only a deadline says otherwise."""
    limits, long_ns = StateLimits(), 30 * 86_400 * NS
    waiting = replace(NEW, state=JobState.RETRYING, attempt=1, queue=JobQueue.TOPIC)
    found = [
        overdue(job, updated_ns=0, timeout_ns=None, now_ns=long_ns, limits=limits)
        for job in (waiting, replace(waiting, deadline_ns=1), replace(waiting, queue=JobQueue.POOL))
    ]
    assert [None if end is None else end.code for end in found] == [None, JobCode.DEADLINE, JobCode.STATE_TIMEOUT]


def test_a_failed_attempt_is_tried_again_until_the_attempts_are_used_up() -> None:
    running = replace(NEW, state=JobState.RUNNING, attempt=1)
    failed = AttemptEnd(ok=False, error="boom")
    assert after_attempt(running, failed, now_ns=NOW, backoff_ns=NS) == Retry(NS, "boom")
    last = after_attempt(replace(running, attempt=3), failed, now_ns=NOW, backoff_ns=NS)
    assert last == End(JobState.FAILED, JobCode.MAX_ATTEMPTS, "attempt 3 of 3: boom", dead=True)


def test_a_worker_can_ask_for_a_delay_and_can_say_that_trying_again_is_pointless() -> None:
    running = replace(NEW, state=JobState.RUNNING, attempt=1)
    later = after_attempt(running, AttemptEnd(ok=False, error="x", retry_after_ns=7 * NS), now_ns=NOW, backoff_ns=NS)
    assert later == Retry(7 * NS, "postponed: x", postponed=True)
    fatal = after_attempt(running, AttemptEnd(ok=False, error="x", retryable=False), now_ns=NOW, backoff_ns=NS)
    assert fatal == End(JobState.FAILED, JobCode.FATAL, "x", dead=True)
    lost = after_attempt(
        running, AttemptEnd(ok=False, error="x", retryable=False, lost=True), now_ns=NOW, backoff_ns=NS
    )
    assert lost == End(JobState.FAILED, JobCode.LOST, "x", dead=True)


def test_no_attempt_is_planned_that_cannot_begin_before_the_deadline() -> None:
    running = replace(NEW, state=JobState.RUNNING, attempt=1, deadline_ns=NOW + NS)
    ended = after_attempt(running, AttemptEnd(ok=False, error="x"), now_ns=NOW, backoff_ns=NS)
    assert isinstance(ended, End)
    assert (ended.state, ended.code) == (JobState.TIMEOUT, JobCode.DEADLINE)


@given(LOOKS, st.booleans(), st.booleans())
def test_whatever_an_attempt_ends_in_is_a_state_that_a_running_job_can_reach(
    job: JobFacts, ok: bool, retryable: bool
) -> None:
    ended = after_attempt(job, AttemptEnd(ok, "x", retryable), now_ns=NOW, backoff_ns=NS)
    target = ended.state if isinstance(ended, End) else JobState.RETRYING
    assert target in MOVES[JobState.RUNNING]


def test_limits_under_which_a_replay_would_never_happen_are_found() -> None:
    assert StateLimits().problems() == []
    wrong = StateLimits(replay_ns=60 * NS, scheduled_ns=60 * NS, running_ns=0)
    assert wrong.problems() == [
        "SCHEDULED is timed out after 60 s but replayed only after 60 s",
        "the limit of RUNNING is not above zero",
    ]


@pytest.mark.parametrize("state", [JobState.SCHEDULED, JobState.DISPATCHED, JobState.RUNNING, JobState.RETRYING])
def test_no_state_but_pending_lasts_for_ever(state: JobState) -> None:
    job, limits = replace(NEW, state=state), StateLimits()
    limit = limits.limit_ns(state)
    assert limit is not None
    assert overdue(job, updated_ns=NOW, timeout_ns=None, now_ns=NOW + limit, limits=limits) is None
    ended = overdue(job, updated_ns=NOW, timeout_ns=None, now_ns=NOW + limit + 1, limits=limits)
    assert ended == End(JobState.TIMEOUT, JobCode.STATE_TIMEOUT, f"timeout: {state} >{limit / NS:g}s", dead=True)


def test_a_job_says_how_long_it_may_run_and_a_retry_counts_from_when_it_is_due() -> None:
    running = replace(NEW, state=JobState.RUNNING)
    ended = overdue(running, updated_ns=NOW, timeout_ns=NS, now_ns=NOW + 2 * NS, limits=StateLimits())
    assert ended is not None
    retrying = replace(NEW, state=JobState.RETRYING, not_before_ns=NOW + 7200 * NS)
    assert overdue(retrying, updated_ns=NOW, timeout_ns=None, now_ns=NOW + 7300 * NS, limits=StateLimits()) is None


@given(LOOKS)
def test_a_deadline_ends_every_job_that_is_not_over(job: JobFacts) -> None:
    late = 3 * NOW
    ended = overdue(job, updated_ns=late, timeout_ns=None, now_ns=late, limits=StateLimits())
    if job.deadline_ns is not None and not job.state.terminal:
        assert ended == End(JobState.TIMEOUT, JobCode.DEADLINE, "timeout: deadline expired", dead=False)
        assert legal(job.state, JobState.TIMEOUT)


def test_an_attempt_that_no_worker_has_begun_is_sent_again_and_costs_nothing_also_if_it_was_the_last() -> None:
    sent = replace(NEW, state=JobState.DISPATCHED, attempt=3, max_attempts=3)
    returned = AttemptEnd(ok=False, error="no place", begun=False)
    assert after_attempt(sent, returned, now_ns=NOW, backoff_ns=NS) == Retry(NS, "no place", taken_back=True)
    begun = replace(sent, state=JobState.RUNNING)
    ended = after_attempt(begun, returned, now_ns=NOW, backoff_ns=NS)
    assert isinstance(ended, End)
    assert ended.code is JobCode.MAX_ATTEMPTS


def test_postponements_do_not_count_until_there_are_a_thousand() -> None:
    running = replace(NEW, state=JobState.RUNNING, attempt=8, max_attempts=1)
    later, failed = AttemptEnd(ok=False, error="x", retry_after_ns=NS), AttemptEnd(ok=False, error="x")
    again = after_attempt(running, later, now_ns=NOW, backoff_ns=0, postponed=7)
    assert again == Retry(NS, "postponed: x", postponed=True)
    over = after_attempt(running, failed, now_ns=NOW, backoff_ns=0, postponed=7)
    assert over == End(JobState.FAILED, JobCode.MAX_ATTEMPTS, "x", dead=True)
    often = replace(running, attempt=POSTPONED_MAX + 1)
    enough = after_attempt(often, later, now_ns=NOW, backoff_ns=0, postponed=POSTPONED_MAX)
    assert enough == End(JobState.FAILED, JobCode.MAX_ATTEMPTS, "x", dead=True)
    counted = after_attempt(replace(often, max_attempts=2), later, now_ns=NOW, backoff_ns=0, postponed=POSTPONED_MAX)
    assert counted == Retry(NS, "x")
    late = after_attempt(replace(running, deadline_ns=NOW + 1), later, now_ns=NOW, backoff_ns=0, postponed=7)
    assert isinstance(late, End)
    assert late.state is JobState.TIMEOUT


def test_what_no_worker_could_take_is_sent_again_less_and_less_often() -> None:
    waits = [elsewhere_ns(looks, 0) for looks in range(40)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (ELSEWHERE_BASE_NS, ELSEWHERE_MAX_NS)
    assert elsewhere_ns(0, 7) == ELSEWHERE_BASE_NS + 7


def test_a_job_that_was_taken_back_has_the_time_limit_of_a_new_one() -> None:
    back = replace(NEW, state=JobState.RETRYING, taken_back=True)
    for limits, over in ((StateLimits(), False), (StateLimits(pending_ns=60 * NS), True)):
        ended = overdue(back, updated_ns=NOW, timeout_ns=None, now_ns=NOW + 10**6 * NS, limits=limits)
        assert (ended is not None) == over
