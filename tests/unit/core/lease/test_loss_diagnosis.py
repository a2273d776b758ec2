"""Why a lease was lost: the cause that the facts show, in words, and nothing that they do not show."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease.loss_diagnosis import RenewalRequest, StoreFailure, cause, facts, sentences
from holdfast.core.lease.states import granted, renewed
from holdfast.core.lease.timing import settle
from holdfast.types import NS, Instant, LossReason

TTL = 30 * NS


def lost_at(mono: float, *, suspended: float = 0, stepped: float = 0, **more: Any) -> dict[str, Any]:
    """The facts of a lease that was granted at 0, renewed at 10, and lost when the monotonic clock showed `mono`."""
    boot = mono + suspended
    now = Instant(round(mono * NS), round(boot * NS), round((boot + stepped) * NS))
    state = renewed(granted(Instant(0, 0, 0)), Instant(10 * NS, 10 * NS, 10 * NS))
    return facts(state, settle(ttl=30), now, **more)


def asked(at: float, took: float, *, answered: bool) -> RenewalRequest:
    return RenewalRequest(round(at * NS), round(took * NS), answered)


GOOD = asked(10, 0.002, answered=True)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (lost_at(36.7, renewals=[GOOD, asked(20, 2, answered=False)]), "the store did not confirm a renewal in time"),
        (lost_at(60, renewals=[GOOD]), "no renewal was sent: the process was paused or starved, or its keeper hung"),
        (lost_at(12, suspended=3480, renewals=[GOOD]), "the host was suspended for 3480 s"),
        (lost_at(12, stepped=3600, renewals=[GOOD]), "the wall clock was set forward by 3600 s"),
        (
            lost_at(37, renewals=[GOOD, asked(20, 17, answered=True)]),
            "renewals were sent, and the last one was not confirmed in time",
        ),
    ],
)
def test_the_cause_is_the_one_that_the_facts_show(known: dict[str, Any], words: str) -> None:
    assert words in cause(LossReason.UNCONFIRMED, known)


@pytest.mark.parametrize("reason", [LossReason.STOLEN, LossReason.MAX_HOLD, LossReason.STALLED, LossReason.REVOKED])
def test_a_reason_that_says_it_all_is_the_cause(reason: LossReason) -> None:
    assert cause(reason, lost_at(12)) == cause(reason, {})


def test_a_lease_that_is_not_renewed_just_runs_out() -> None:
    known = facts(granted(Instant(0, 0, 0)), settle(ttl=30, auto_renew=False), Instant(*[30 * NS] * 3))
    assert cause("expired", known) == "its time was over: this lease is not renewed"


def test_the_story_is_told_with_its_figures() -> None:
    known = lost_at(
        48.7,
        renewals=[GOOD, asked(20, 2, answered=False), asked(23, 2, answered=False)],
        failure=StoreFailure(25 * NS, "Timeout: no answer"),
        breaker_open=True,
        keeper_lag_ns=NS,
        tail_ns=2 * NS,
    )
    told = sentences("unconfirmed", known)
    assert told[0] == "the store did not confirm a renewal in time"
    assert told[1] == "held for 48.7 s; last confirmed 38.7 s before, of at most 25.7 s (TTL 30 s)"
    assert told[2] == "noticed 13 s after the deadline: the process did not run when it came"
    assert told[3] == "renewals since: 28.7 s before (no answer after 2 s), 25.7 s before (no answer after 2 s)"
    assert told[4:] == [
        "the keeper was 1 s behind",
        "the store's last error, 23.7 s before: Timeout: no answer",
        "the store was taken to be down",
    ]


def test_a_clock_that_was_set_back_is_mentioned() -> None:
    assert any("set back by 60 s" in each for each in sentences("expired", lost_at(40, stepped=-60)))


anything = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)


@given(st.none() | st.text(max_size=9) | st.sampled_from(LossReason), st.data())
def test_facts_from_a_file_may_be_anything(reason: str | None, data: st.DataObject) -> None:
    names = sorted({*lost_at(12, failure=StoreFailure(0, "x")), "renewals"})
    known = data.draw(st.dictionaries(st.sampled_from(names), anything))
    assert all(sentences(reason, known))


@pytest.mark.requires("R25")
@pytest.mark.parametrize(
    ("known", "words"),
    [
        (lost_at(60, renewals=[GOOD], starved_ns=45 * NS), "the process did not run for 45 s: it was stopped"),
        (
            lost_at(60, renewals=[GOOD], starved_ns=45 * NS, collection_ns=44 * NS),
            "the garbage collector stopped the process for 44 s",
        ),
        (  # a request that was on its way when the process was stopped
            lost_at(60, renewals=[GOOD, asked(20, 40, answered=False)], starved_ns=39 * NS),
            "the process did not run for 39 s",
        ),
        (  # a short pause explains nothing while the store does not answer
            lost_at(37, renewals=[GOOD, asked(20, 2, answered=False)], starved_ns=NS),
            "the store did not confirm a renewal in time",
        ),
    ],
)
def test_a_pause_of_the_process_is_told_from_a_store_that_does_not_answer(known: dict[str, Any], words: str) -> None:
    assert words in cause(LossReason.UNCONFIRMED, known)


@pytest.mark.requires("R25")
def test_what_kept_the_process_from_running_is_said() -> None:
    known = lost_at(60, renewals=[GOOD], starved_ns=45 * NS, collection_ns=2 * NS, loop_lag_ns=12 * NS)
    said = sentences(LossReason.UNCONFIRMED, known)
    assert "threads of the process woke up to 45 s late" in said
    assert "the longest garbage collection since took 2 s" in said
    assert "the event loop was blocked for 12 s or more" in said
    quiet = sentences(LossReason.UNCONFIRMED, lost_at(60, renewals=[GOOD], loop_lag_ns=0))
    assert not any(word in " ".join(quiet) for word in ("woke", "garbage", "event loop"))
    assert "loop_lag_ns" not in lost_at(60), "a program without a loop has nothing to say of one"


def test_an_error_of_any_length_stays_a_short_fact() -> None:
    known = lost_at(60, failure=StoreFailure(0, "x" * 10_000))
    assert len(known["store_error"]) == 500
