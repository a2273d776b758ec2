"""The timeline of a job: changes and emitted values in one order, for readers that come at any time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.plane.jobs.timeline import EmittedValue, Entry, TimelinePlace, merged
from holdfast.plane.model.job_states import JobState as S
from holdfast.plane.model.records import JobEvent

START = TimelinePlace()


def event(after: S, attempt: int) -> JobEvent:
    return JobEvent("j", 1, 0, None, after, attempt, None, "scheduler")


def value(attempt: int, number: int) -> EmittedValue:
    return EmittedValue(attempt, 10 * attempt, number, 0, f"{attempt}.{number}")


HISTORY = [
    *(event(S.PENDING, 0), event(S.DISPATCHED, 1), event(S.RUNNING, 1), event(S.RETRYING, 1)),
    *(event(S.DISPATCHED, 2), event(S.RUNNING, 2), event(S.SUCCEEDED, 2)),
]
VALUES = [value(1, 1), value(1, 2), value(2, 1), value(2, 2), value(2, 3)]


def read(
    events: list[JobEvent], values: list[EmittedValue], page: int, after: TimelinePlace
) -> list[tuple[Entry, str]]:
    """All pages from a place on."""
    found: list[tuple[Entry, str]] = []
    while True:
        left = [each for each in values if (each.fence, each.number) > after[1:]]
        entries = merged(after, events, left[:page], more=len(left) > page)
        found += [(each.entry, each.place.text) for each in entries]
        if not entries:
            return found
        after = entries[-1].place


def test_the_values_of_an_attempt_come_before_the_change_that_ended_it() -> None:
    entries = [entry for entry, _ in read(HISTORY, VALUES, 100, START)]
    shown = [each.after.name if isinstance(each, JobEvent) else each.value for each in entries]
    assert shown == [
        *("PENDING", "DISPATCHED", "RUNNING", "1.1", "1.2", "RETRYING"),
        *("DISPATCHED", "RUNNING", "2.1", "2.2", "2.3", "SUCCEEDED"),
    ]


@given(st.integers(1, 7))
def test_pages_of_any_size_have_the_same_entries(page: int) -> None:
    assert read(HISTORY, VALUES, page, START) == read(HISTORY, VALUES, 100, START)


def test_a_reader_that_continues_behind_any_entry_gets_the_rest() -> None:
    whole = read(HISTORY, VALUES, 2, START)
    for at, (_, place) in enumerate(whole):
        assert read(HISTORY, VALUES, 2, TimelinePlace.parsed("after", place)) == whole[at + 1 :]


def ended_attempt(events: list[JobEvent]) -> int:
    """The last attempt whose end is among the changes."""
    return max((each.attempt for each in events if each.after is S.RETRYING or each.after.terminal), default=0)


def test_a_live_reader_gets_each_entry_once_however_the_writes_interleave() -> None:
    """A worker stores the values of an attempt before its end; apart from that, they become visible at any time."""
    for seen in itertools.combinations_with_replacement(range(len(VALUES) + 1), len(HISTORY)):
        steps = list(enumerate(seen, 1))
        if any(each.attempt <= ended_attempt(HISTORY[:n]) for n, values in steps for each in VALUES[values:]):
            continue
        place = START
        got: list[Entry] = []
        for changes, values in steps:
            left = [each for each in VALUES[:values] if (each.fence, each.number) > place[1:]]
            entries = merged(place, HISTORY[:changes], left, more=False)
            got += [each.entry for each in entries]
            place = entries[-1].place if entries else place
        assert [each for each in got if isinstance(each, EmittedValue)] == VALUES
        assert [each for each in got if isinstance(each, JobEvent)] == HISTORY
        assert got.index(HISTORY[3]) > got.index(VALUES[1])
        assert got[-1] is HISTORY[-1]


@pytest.mark.parametrize("text", ["1", "1.2", "1.2.3.4", "a.b.c", "-1.0.0", "1.2.٣", f"{'9' * 19}.0.{2**64}", "1..2"])
def test_a_place_that_none_was_given_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        TimelinePlace.parsed("after", text)
    assert refused.value.field == "after"


def test_a_place_survives_its_text() -> None:
    assert TimelinePlace.parsed("after", TimelinePlace(3, 2**62, 7).text) == TimelinePlace(3, 2**62, 7)
    assert TimelinePlace.parsed("after", "") == START
