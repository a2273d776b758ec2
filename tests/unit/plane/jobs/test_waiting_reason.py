"""Why a job waits: one reason for each job that does, and none for others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.plane.jobs.waiting_reason import WaitCode, WaitFacts, waiting_reason
from holdfast.plane.model.job_states import JobState
from holdfast.types import NS

NOW = 1_800_000_000 * NS
SERVED = WaitFacts(JobState.PENDING, "mail", "default", "acme", NOW, takers=1, pool_slots=8)
GONE = replace(SERVED, takers=0)


@pytest.mark.parametrize(
    ("facts", "code", "text"),
    [
        (replace(SERVED, state=JobState.APPROVAL_REQUIRED), "approval", "decision of a person"),
        (replace(GONE, not_before_ns=NOW + NS), "not_due", "2027-01-15T08:00:01+00:00"),
        (replace(GONE, state=JobState.RETRYING, not_before_ns=NOW + NS), "retry", "2027-01-15T08:00:01+00:00"),
        (GONE, "no_worker", "no worker serves topic mail"),
        (replace(GONE, last_served_ns=NOW - NS), "workers_gone", "2027-01-15T07:59:59+00:00"),
        (replace(GONE, draining=1, last_served_ns=NOW), "workers_draining", "pool default"),
        (replace(GONE, blocked=1, last_served_ns=NOW), "workers_blocked", "block all slots"),
        (replace(GONE, served_by=("eu", "asia")), "other_pool", "pool asia, eu does"),
        (replace(GONE, state=JobState.DISPATCHED), "no_worker", "topic mail"),
        (replace(SERVED, tenant_used=3, tenant_slots=3, pool_used=8), "tenant_full", "tenant acme has 3 of 3"),
        (replace(SERVED, topic_used=2, topic_slots=2, pool_used=8), "topic_full", "2 of 2 slots for topic mail"),
        (replace(SERVED, pool_used=8), "pool_full", "8 of 8 slots of pool default"),
        (replace(SERVED, not_before_ns=NOW), "queued", "queue of pool default"),
        (replace(SERVED, state=JobState.DISPATCHED), "assigned", "none has reported its start"),
    ],
)
def test_a_job_that_waits_says_for_what(facts: WaitFacts, code: str, text: str) -> None:
    reason = waiting_reason(facts)
    assert reason is not None
    assert (reason.code, text in reason.text) == (WaitCode(code), True), reason


@given(
    st.sampled_from(JobState),
    st.integers(-1, NOW * 2),
    st.lists(st.integers(0, 3), min_size=9, max_size=9),
    st.booleans(),
)
def test_every_job_has_one_reason_unless_it_runs_or_is_finished(
    state: JobState, not_before_ns: int, numbers: list[int], limited: bool
) -> None:
    takers, draining, blocked, pool_used, pool_slots, topic_used, topic_slots, tenant_used, tenant_slots = numbers
    facts = replace(
        SERVED,
        state=state,
        not_before_ns=not_before_ns,
        takers=takers,
        draining=draining,
        blocked=blocked,
        pool_used=pool_used,
        pool_slots=pool_slots,
        topic_used=topic_used,
        topic_slots=topic_slots if limited else None,
        tenant_used=tenant_used,
        tenant_slots=tenant_slots if limited else None,
    )
    assert (waiting_reason(facts) is None) == (state.terminal or state is JobState.RUNNING)
