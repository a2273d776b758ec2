"""What holders' records prove: real violations are found and explained, and what is only possible is not claimed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.history.events import EventKind, Record
from holdfast.core.history.invariants import check
from holdfast.types import NS


def seen(
    kind: EventKind, at: float, fence: int, began: float | None = None, until: float | None = None, **m: Any
) -> Record:
    times = [None if each is None else round(each * NS) for each in (began, until)]
    return Record(kind, round(at * NS), "k", fence=fence, began_ns=times[0], until_ns=times[1], **m)


def granted(fence: int, at: float, **more: Any) -> Record:
    return seen(EventKind.GRANTED, at, fence, at - 0.1, at + 27, owner=f"owner-{fence}", **more)


def released(fence: int, at: float, began: float) -> Record:
    return seen(EventKind.RELEASED, at, fence, began)


def lost(fence: int, at: float, until: float, reason: str = "expired") -> Record:
    return seen(EventKind.LOST, at, fence, at - 30, until, reason=reason, ok=False)


def rules(*history: Record, skew: float = 0) -> list[str]:
    return [violation.rule for violation in check(history, round(skew * NS))]


@pytest.mark.parametrize(
    "history",
    [
        [granted(1, 10), released(1, 20, 19.9), granted(2, 15), released(2, 17, 16.9)],
        [granted(1, 10), released(1, 20, 19.9), granted(2, 15), lost(2, 40, 42)],
        [granted(1, 10), lost(1, 60, 36.7), granted(2, 30), released(2, 50, 49)],
        [granted(1, 10), seen(EventKind.RELEASE_REFUSED, 20, 1, 19.9, ok=False), granted(2, 15), released(2, 17, 16.9)],
        [
            granted(1, 10),
            released(1, 99, 98),
            granted(2, 30),
            released(2, 31, 30.9),
            granted(3, 50),
            released(3, 51, 50.9),
        ],
    ],
)
def test_two_that_certainly_held_one_key_together_are_found(history: list[Record]) -> None:
    found = check(history)
    assert {violation.rule for violation in found} == {"C4"}
    assert "held twice" in found[0].text
    assert "owner-1" in found[0].text
    assert "owner-2" in found[0].text
    assert found[0].first is not None
    assert found[0].second is not None
    assert rules(*history, skew=100) == []


@pytest.mark.parametrize(
    "history",
    [
        # The answer to a release comes after the next grant: that is how it should be.
        [granted(1, 10), released(1, 20, 15), granted(2, 16), released(2, 30, 29)],
        # A paused holder notices its loss late; its deadline was in time.
        [granted(1, 10), lost(1, 90, 36.7), granted(2, 40), released(2, 50, 49)],
        # No end is recorded: it may have been released immediately.
        [granted(1, 10), granted(2, 11), released(2, 12, 11.9)],
        # An operator broke it in between.
        [granted(1, 10), seen(EventKind.FORCED, 12, 2), granted(3, 13), released(3, 15, 14), lost(1, 16, 37, "stolen")],
        # What was seen at the store, and what has no times, is left to other rules.
        [
            seen(EventKind.GRANTED, 10, 1),
            seen(EventKind.RELEASED, 20, 1),
            seen(EventKind.GRANTED, 15, 2),
            seen(EventKind.RELEASED, 30, 2),
        ],
    ],
)
def test_what_is_not_certain_is_not_claimed(history: list[Record]) -> None:
    assert check(history) == []


def test_a_key_that_the_store_gave_away_early_is_explained() -> None:
    (found,) = check([granted(1, 10), granted(2, 15), released(2, 17, 16.9), lost(1, 20, 37, "stolen")])
    assert found.rule == "C4"
    assert "gave the key away early, unless it was released by force where no ledger is kept" in found.text


@given(st.lists(st.tuples(st.floats(0.2, 5), st.floats(0.1, 5), st.booleans()), max_size=30))
def test_leases_that_follow_each_other_break_no_rule(turns: list[tuple[float, float, bool]]) -> None:
    history, now = [], 10.0
    for fence, (pause, hold, clean) in enumerate(turns, 1):
        now += pause
        history.append(granted(fence, now))
        now += hold
        history.append(released(fence, now + 1, now) if clean else lost(fence, now + 9, now))
    assert check(history) == []


def test_clocks_that_are_apart_are_allowed_for() -> None:
    history = [granted(7, 10), seen(EventKind.GRANTED, 10.3, 6, 10.2)]
    assert rules(*history) == ["C2"]
    assert rules(*history, skew=0.5) == []


def write(fence: int, began: float, at: float, *, ok: bool = True, **more: Any) -> Record:
    return seen(EventKind.WRITE, at, fence, began, ok=ok, resource="row 1", **more)


def test_a_stale_write_that_was_accepted_is_found_in_what_writers_saw() -> None:
    (found,) = check([write(6, 1, 2), write(5, 3, 4)])
    assert (found.rule, found.text) == ("C5", "a write with a lower fence was accepted later")
    assert rules(write(6, 1, 3), write(5, 2, 4)) == []  # concurrent: the lower one may have come first
    assert rules(write(6, 1, 2), replace(write(5, 3, 4), resource="row 2")) == []
    assert rules(write(6, 1, 2), write(5, 3, 4, ok=False, facts={"seen": 6})) == []
    assert rules(write(6, 1, 2), write(7, 3, 4)) == []


def test_a_refusal_without_a_newer_fence_is_found_in_what_writers_saw() -> None:
    assert rules(write(5, 1, 2, ok=False, facts={"seen": 5})) == ["C7"]
    assert rules(write(5, 1, 2, ok=False)) == []  # what the resource had met is not recorded
