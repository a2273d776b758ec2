"""Whether what a worker says still counts: every state, every attempt, every order of fences."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from holdfast.plane.jobs.rules import (
    CurrentAttempt,
    ReportedAttempt,
    ReportStanding,
    standing_of_end,
    standing_of_start,
)
from holdfast.plane.model.job_states import JobState, legal

WITH_WORKERS = {JobState.SCHEDULED, JobState.DISPATCHED, JobState.RUNNING}
CASES = list(itertools.product(JobState, (1, 2, 3), (None, 4, 5, 6)))


@pytest.mark.parametrize(("state", "attempt", "stored"), CASES)
def test_a_report_counts_for_the_attempt_under_way_and_the_newest_fence_only(
    state: JobState, attempt: int, stored: int | None
) -> None:
    worth = standing_of_end(CurrentAttempt(state, attempt, stored), ReportedAttempt(2, 5))
    if state.terminal:
        assert worth is ReportStanding.OVER
    elif attempt != 2 or (stored is not None and stored > 5):
        assert worth is ReportStanding.STALE
    else:
        assert worth is (ReportStanding.CURRENT if state in WITH_WORKERS else ReportStanding.REPEATED)


@pytest.mark.parametrize(("state", "attempt", "stored"), CASES)
def test_a_start_that_counts_is_a_legal_move_and_the_same_start_again_is_none(
    state: JobState, attempt: int, stored: int | None
) -> None:
    job = CurrentAttempt(state, attempt, stored)
    worth = standing_of_start(job, ReportedAttempt(2, 5))
    if state is JobState.RUNNING and attempt == 2 and stored == 5:
        assert worth is ReportStanding.REPEATED
    else:
        assert worth is standing_of_end(job, ReportedAttempt(2, 5))
    if worth is ReportStanding.CURRENT:
        assert legal(state, JobState.RUNNING)
        assert all(legal(state, end) for end in (JobState.SUCCEEDED, JobState.FAILED, JobState.RETRYING))


@pytest.mark.parametrize(("state", "attempt", "stored"), CASES)
@pytest.mark.parametrize("worth", [standing_of_end, standing_of_start])
def test_what_is_said_of_another_job_of_the_same_id_never_counts(
    worth: Callable[[CurrentAttempt, ReportedAttempt], ReportStanding],
    state: JobState,
    attempt: int,
    stored: int | None,
) -> None:
    job = CurrentAttempt(state, attempt, stored, made_ns=8)
    assert worth(job, ReportedAttempt(2, 5, made_ns=7)) is ReportStanding.STALE
    assert worth(job, ReportedAttempt(2, 5, made_ns=8)) is worth(job, ReportedAttempt(2, 5))
