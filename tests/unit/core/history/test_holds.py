"""Holds of a key from its records: who had it, until when, how it ended, and who came next."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.holds import HeldAt, HoldEnd, held_at, holds, lost


def seen(kind: EventKind, at: int, fence: int | None = None, owner: str = "a", **more: Any) -> Record:
    return Record(kind, at, "k", owner=owner, fence=fence, **more)


def test_a_hold_ends_as_its_record_says() -> None:
    found = holds(
        [
            seen(EventKind.GRANTED, 10, 1, until_ns=40),
            seen(EventKind.RELEASED, 20, 1),
            seen(EventKind.GRANTED, 30, 2, "b", until_ns=60),
            seen(EventKind.UNCONFIRMED, 50, 2, "b"),
            seen(EventKind.LOST, 90, 2, "b", until_ns=60, reason="unconfirmed", ok=False),
            seen(EventKind.GRANTED, 70, 3, "c", until_ns=100),
            seen(EventKind.FORCED, 80, 4, "ops", detail="stuck"),
            seen(EventKind.LOST, 95, 3, "c", until_ns=100, reason="stolen", ok=False),
            seen(EventKind.GRANTED, 110, 5, "d", until_ns=140),
            seen(EventKind.RELEASE_REFUSED, 150, 5, "d", ok=False),
            seen(EventKind.GRANTED, 160, 6, "e", until_ns=190),
            seen(EventKind.RELEASE_FAILED, 170, 6, "e", ok=False),
            seen(EventKind.GRANTED, 200, 7, "f", until_ns=230),
        ]
    )
    assert [(hold.owner, hold.end, hold.until_ns) for hold in found] == [
        ("a", HoldEnd.RELEASED, 20),
        ("b", HoldEnd.LOST, 60),
        ("c", HoldEnd.FORCED, 80),
        ("d", HoldEnd.REFUSED, 150),
        ("e", HoldEnd.UNANSWERED, 170),
        ("f", HoldEnd.UNKNOWN, None),
    ]
    assert [hold.next and hold.next.owner for hold in found] == ["b", "c", "d", "e", "f", None]
    assert found[1].unconfirmed == 1
    assert found[2].ended is not None
    assert found[2].ended.reason == "stolen"


def test_who_held_it_at_a_moment_is_answered_as_far_as_it_is_known() -> None:
    found = holds(
        [
            seen(EventKind.GRANTED, 10, 1, until_ns=40),
            seen(EventKind.RELEASED, 20, 1),
            seen(EventKind.GRANTED, 30, 2, "b", until_ns=60),
            seen(EventKind.GRANTED, 100, 3, "c", until_ns=130),
        ]
    )

    def at(moment: int) -> list[tuple[HeldAt, str]]:
        return [(held, hold.owner) for held, hold in held_at(found, moment)]

    assert at(9) == []
    assert at(10) == [(HeldAt.YES, "a")]
    assert at(20) == []
    assert at(30) == [(HeldAt.YES, "b")]
    assert at(60) == [(HeldAt.PERHAPS, "b")]  # it may have been renewed; its end is not recorded
    assert at(100) == [(HeldAt.YES, "c")]
    assert at(130) == [(HeldAt.PERHAPS, "c")]


def test_a_degraded_hold_has_no_fence_and_ends_with_its_promotion_or_its_loss() -> None:
    found = holds(
        [
            seen(EventKind.FELL_BACK, 10),
            seen(EventKind.PROMOTED, 20, 5),
            seen(EventKind.EXERCISED, 30, None, "b"),
            seen(EventKind.LOST, 40, None, "b", reason="revoked", ok=False),
        ]
    )
    assert [(hold.fence, hold.exercise, hold.end, hold.until_ns) for hold in found] == [
        (None, False, HoldEnd.PROMOTED, 20),
        (5, False, HoldEnd.UNKNOWN, None),
        (None, True, HoldEnd.LOST, 40),
    ]


@given(
    st.lists(
        st.builds(
            seen,
            st.sampled_from(EventKind),
            st.integers(0, 100),
            st.none() | st.integers(0, 5),
            st.sampled_from("ab"),
            until_ns=st.none() | st.integers(0, 100),
        ),
        max_size=30,
    )
)
def test_any_history_has_holds_that_do_not_end_before_they_begin(history: list[Record]) -> None:
    for hold in holds(history):
        assert hold.until_ns is None or hold.until_ns >= hold.since_ns
        assert hold.at(hold.since_ns - 1) is HeldAt.NO


def test_a_degraded_hold_ends_when_it_is_let_go_and_the_next_one_is_another() -> None:
    found = holds(
        [
            seen(EventKind.FELL_BACK, 10, None),
            seen(EventKind.LET_GO, 20, None),
            seen(EventKind.FELL_BACK, 30, None),
            seen(EventKind.PROMOTED, 40, 1),
            seen(EventKind.RELEASED, 50, 1),
            seen(EventKind.EXERCISED, 60, None),
        ]
    )
    assert [(hold.fence, hold.end, hold.until_ns) for hold in found] == [
        (None, HoldEnd.RELEASED, 20),
        (None, HoldEnd.PROMOTED, 40),
        (1, HoldEnd.RELEASED, 50),
        (None, HoldEnd.UNKNOWN, None),
    ]
    assert held_at(found, 25) == []


def test_every_loss_knows_who_took_over_and_when() -> None:
    other = Record(EventKind.GRANTED, 5, "other", owner="z", fence=1)
    history = [
        seen(EventKind.GRANTED, 70, 3, "c"),  # of another process, whose file is read later or earlier
        other,
        seen(EventKind.GRANTED, 10, 1, "a", until_ns=40),
        seen(EventKind.LOST, 60, 1, "a", until_ns=40, reason="unconfirmed", ok=False),
        seen(EventKind.FORCED, 80, 4, "ops"),
        seen(EventKind.LOST, 90, 3, "c", until_ns=100, reason="stolen", ok=False),
    ]
    found = lost(history)
    assert [(hold.owner, hold.loss and hold.loss.reason, hold.free_for_ns) for hold in found] == [
        ("a", "unconfirmed", 30),
        ("c", "stolen", None),
    ]
    assert found[0].next is not None
    assert (found[0].next.owner, found[0].next.fence) == ("c", 3)
    assert lost([other]) == []
