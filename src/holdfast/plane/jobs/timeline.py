"""The timeline of a job: its changes of state and the values that its function emitted, in one order. Pure.

Promises: changes are in the order in which they were written. The values of one attempt are in the order in which they
were emitted, and before the change that ended the attempt. A reader that continues after the place of an entry gets
each later entry once, however late it comes: entries are stored as long as the job.

Does not promise that a value follows the change to RUNNING: a brief attempt reports its start only with its end. A
value of an attempt that had lost its lease may come late, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from holdfast.errors import BadInput
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import TIME_MAX, JobEvent


@dataclass(frozen=True, slots=True)
class EmittedValue:
    """A value that a job function emitted. `fence` and `number` order the values of a job."""

    attempt: int
    fence: int  # of the worker's lease under which the attempt ran
    number: int  # within the attempt, from 1
    at_ns: int
    value: Any


class TimelinePlace(NamedTuple):
    """A place in the timeline, behind an entry: the changes before it, and the last value before it."""

    events: int = 0
    fence: int = 0
    number: int = 0

    @property
    def text(self) -> str:
        """As it is given to readers."""
        return f"{self.events}.{self.fence}.{self.number}"

    @classmethod
    def parsed(cls, field: str, text: str) -> TimelinePlace:
        """From the text, or `BadInput`. Empty: the beginning."""
        if not text:
            return cls()
        parts = text.split(".")
        if len(text) > 60 or len(parts) != 3 or not all(each.isascii() and each.isdecimal() for each in parts):
            raise BadInput(field, f"{text[:60]!r} is no place in the events of a job", "give the id of the last event")
        events, fence, number = (int(each) for each in parts)
        if max(events, fence, number) > TIME_MAX:
            raise BadInput(field, f"{text[:60]!r} is out of range", "give the id of the last event")
        return cls(events, fence, number)


Entry: TypeAlias = JobEvent | EmittedValue


class PlacedEntry(NamedTuple):
    """An entry of the timeline, and the place behind it."""

    entry: Entry
    place: TimelinePlace


def merged(
    after: TimelinePlace, events: Sequence[JobEvent], values: Sequence[EmittedValue], *, more: bool
) -> list[PlacedEntry]:
    """The entries after a place. `events`: the whole history; `values`: those after the place, in their order.

    `more`: there are further values, so a change that they may precede has to wait.
    """
    found: list[PlacedEntry] = []
    place, waiting = after, list(values)

    def take(value: EmittedValue) -> None:
        nonlocal place
        place = TimelinePlace(place.events, value.fence, value.number)
        found.append(PlacedEntry(value, place))

    for event in events[after.events :]:
        if event.after is JobState.RETRYING or event.after.terminal:
            while waiting and waiting[0].attempt <= event.attempt:
                take(waiting.pop(0))
            if more and not waiting:
                return found
        place = TimelinePlace(place.events + 1, place.fence, place.number)
        found.append(PlacedEntry(event, place))
    for value in waiting:
        take(value)
    return found
