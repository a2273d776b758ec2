"""The quick sweep in front of the rules: it lets pass only what no rule could object to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.history import prefilter
from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.invariants import check

LEDGER = (
    *(
        EventKind.GRANTED,
        EventKind.RELEASED,
        EventKind.RELEASE_REFUSED,
        EventKind.RELEASE_FAILED,
        EventKind.LOST,
        EventKind.FORCED,
    ),
    *(
        EventKind.PROMOTED,
        EventKind.LET_GO,
        EventKind.FELL_BACK,
        EventKind.UNCONFIRMED,
        EventKind.WRITE,
        EventKind.READ,
        EventKind.DUPLICATE,
    ),
)


def seen(kind: EventKind, at: int, fence: int | None, key: str = "k", **more: Any) -> Record:
    return Record(kind, at, key, owner="a", fence=fence, **more)


def of(*records: Record) -> set[str] | None:
    return prefilter.suspects(records, {record.kind for record in records})


ORDINARY = (
    seen(EventKind.GRANTED, 10, 1, began_ns=9, until_ns=40),
    seen(EventKind.UNCONFIRMED, 15, 1),
    seen(EventKind.RELEASED, 20, 1, began_ns=18),
    seen(EventKind.GRANTED, 20, 2, began_ns=19, until_ns=60),
    seen(EventKind.RELEASE_FAILED, 30, 2, began_ns=29),
    seen(EventKind.GRANTED, 90, 7, began_ns=80, until_ns=120),
)


def test_a_key_that_is_granted_and_released_in_turn_is_ordinary() -> None:
    assert of(*ORDINARY) == set()


@pytest.mark.parametrize(
    "odd",
    [
        seen(EventKind.GRANTED, 95, 8),  # the lease before has not ended
        seen(EventKind.RELEASED, 95, 6),  # the end of another lease
        seen(EventKind.RELEASED, 95, 7, began_ns=96),  # a clock that was set back
        seen(EventKind.LOST, 95, 7),
        seen(EventKind.FORCED, 95, 8),
        seen(EventKind.WRITE, 95, 7),
    ],
)
def test_whatever_else_happens_to_a_key_makes_it_a_suspect(odd: Record) -> None:
    other = seen(EventKind.GRANTED, 99, 1, "other")
    assert of(*ORDINARY, odd, other) == {"k"}


@pytest.mark.parametrize("fence", [None, 0, -1, 6, 7])
def test_a_fence_that_does_not_rise_makes_a_suspect(fence: int | None) -> None:
    assert of(*ORDINARY, seen(EventKind.RELEASED, 95, 7), seen(EventKind.GRANTED, 96, fence)) == {"k"}


def test_a_history_in_which_the_store_was_watched_is_left_to_the_rules() -> None:
    assert of(*ORDINARY, seen(EventKind.HANDED, 95, 8)) is None
    assert of(*ORDINARY, Record(EventKind.HEALED, 99, "")) is None


records = st.builds(
    Record,
    kind=st.sampled_from(LEDGER),
    at_ns=st.integers(0, 30),
    key=st.sampled_from("kl"),
    owner=st.sampled_from("ab"),
    fence=st.none() | st.integers(0, 5),
    began_ns=st.none() | st.integers(0, 30),
    until_ns=st.none() | st.integers(0, 40),
    ok=st.booleans(),
)
turns = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.sampled_from("kl")), max_size=8)


@st.composite
def histories(draw: st.DrawFn) -> list[Record]:
    """Turns of holders, as they should be, with a few records thrown in that may be anything."""
    history, at = [], 0
    for fence, (wait, work, slip, key) in enumerate(draw(turns), 1):
        at += wait
        history.append(seen(EventKind.GRANTED, at, fence, key, began_ns=at - slip, until_ns=at + 20))
        at += work
        history.append(seen(EventKind.RELEASED, at, fence, key, began_ns=at - min(slip, work)))
    for record in draw(st.lists(records, max_size=3)):
        history.insert(draw(st.integers(0, len(history))), record)
    return history


@given(histories(), st.integers(0, 3))
def test_the_verdict_is_the_one_of_the_rules(history: list[Record], skew_ns: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefilter, "suspects", lambda records, kinds: None)
        by_the_rules = check(history, skew_ns)
    assert check(history, skew_ns) == by_the_rules
