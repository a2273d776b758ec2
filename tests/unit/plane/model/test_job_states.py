"""The table of job states: every pair of states, and what each legal move brings with it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.plane.model.job_states import (
    ACTIVE,
    MOVES,
    TERMINAL,
    InvalidTransition,
    JobState,
    duplicate_end,
    legal,
    move,
)

S = JobState

# The same table again, written as people read it: one line for each state, with where it may go.
EXPECTED = {
    None: "PENDING APPROVAL_REQUIRED SCHEDULED DISPATCHED RUNNING FAILED CANCELLED",
    S.PENDING: "APPROVAL_REQUIRED SCHEDULED DISPATCHED RUNNING DENIED FAILED TIMEOUT SUCCEEDED CANCELLED RETRYING",
    S.APPROVAL_REQUIRED: "PENDING SCHEDULED DISPATCHED RUNNING DENIED FAILED TIMEOUT SUCCEEDED CANCELLED",
    S.SCHEDULED: "SCHEDULED DISPATCHED RUNNING DENIED FAILED TIMEOUT SUCCEEDED CANCELLED OUTPUT_QUARANTINED RETRYING",
    S.DISPATCHED: "SCHEDULED RUNNING SUCCEEDED FAILED CANCELLED TIMEOUT OUTPUT_QUARANTINED RETRYING",
    S.RUNNING: "RUNNING SUCCEEDED FAILED CANCELLED TIMEOUT OUTPUT_QUARANTINED RETRYING",
    S.RETRYING: "SCHEDULED DISPATCHED RUNNING RETRYING SUCCEEDED FAILED CANCELLED TIMEOUT",
    S.SUCCEEDED: "OUTPUT_QUARANTINED",
    S.FAILED: "",
    S.CANCELLED: "",
    S.TIMEOUT: "",
    S.DENIED: "",
    S.OUTPUT_QUARANTINED: "",
}

PAIRS = list(itertools.product([None, *JobState], JobState))


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=lambda state: str(state))
def test_every_pair_of_states_is_legal_or_refused_as_the_table_says(before: JobState | None, after: JobState) -> None:
    wanted = after.value in EXPECTED[before].split()
    assert legal(before, after) is wanted
    if wanted:
        assert move(before, after, 3).after is after
    else:
        with pytest.raises(InvalidTransition) as refused:
            move(before, after, 3)
        assert str(refused.value) == f"invalid transition {before or '(none)'} -> {after}"


def test_every_state_is_in_the_table_and_every_state_that_is_not_terminal_can_end() -> None:
    assert set(MOVES) == {None, *JobState}
    assert set(JobState) == ACTIVE | TERMINAL
    assert all(MOVES[state] & TERMINAL for state in ACTIVE)
    assert all(state.terminal for state in JobState if not MOVES[state] - TERMINAL)


@given(st.lists(st.sampled_from(JobState), max_size=30))
def test_a_terminal_state_is_left_only_for_quarantine_and_attempts_only_rise(wanted: list[JobState]) -> None:
    state: JobState | None = None
    attempt, ends = 0, 0
    for after in wanted:
        if not legal(state, after):
            continue
        made = move(state, after, attempt)
        assert made.attempt == attempt + (after is S.SCHEDULED and state is not S.SCHEDULED)
        if state is not None and state.terminal:
            assert (state, after) == (S.SUCCEEDED, S.OUTPUT_QUARANTINED)
        ends += made.ends
        state, attempt = after, made.attempt
    assert ends == (state is not None and state.terminal), "a job ends once"


@pytest.mark.parametrize(("before", "after"), list(itertools.product(sorted(TERMINAL), sorted(TERMINAL))))
def test_a_second_end_is_told_apart_from_other_refusals(before: JobState, after: JobState) -> None:
    assert duplicate_end(before, after) is not legal(before, after)
    assert not duplicate_end(S.RUNNING, after)


@pytest.mark.parametrize("before", [S.SCHEDULED, S.DISPATCHED])
def test_an_attempt_that_is_taken_back_before_it_begins_does_not_count(before: JobState) -> None:
    assert move(before, S.RETRYING, 3, taken_back=True).attempt == 2
    assert move(before, S.RETRYING, 3).attempt == 3
    assert move(S.RETRYING, S.SCHEDULED, 2).attempt == 3


@pytest.mark.parametrize(
    ("before", "after"), [(S.RUNNING, S.RETRYING), (S.PENDING, S.RETRYING), (S.DISPATCHED, S.FAILED)]
)
def test_nothing_else_can_be_taken_back(before: JobState, after: JobState) -> None:
    move(before, after, 1)
    with pytest.raises(InvalidTransition):
        move(before, after, 1, taken_back=True)
