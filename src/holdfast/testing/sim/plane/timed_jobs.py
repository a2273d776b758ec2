"""Schedules of a simulated plane: what they are, and what became of their due times.

One submits a job for each due time, and catches up everything; its due times must all be there. The others skip what
overlaps or is late; of theirs, none may be there twice.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from operator import ge
from typing import Any, Final, NamedTuple

from holdfast.plane.schedules.model import DUE_LABEL, SCHEDULE_LABEL, ScheduleSpec, made_spec, moment_text, spec_of
from holdfast.plane.schedules.rules import CatchUp
from holdfast.plane.schedules.store import Schedules
from holdfast.types import NS

EXACT: Final = "exact"
AUTHOR: Final = "schedule author"
CATCH_UP_NS: Final = 60 * NS  # after the last fault, within which every due time has its job

Query: Any = Callable[..., list[tuple[Any, ...]]]


class TimedJobs(NamedTuple):
    """The due times of one schedule."""

    schedule: str
    seen: Sequence[str]  # one for each job that was submitted at a due time
    expected: Sequence[str] | None  # None: some may have no job


def specs(number: int) -> list[ScheduleSpec]:
    """The first is exact."""
    usual: dict[str, Any] = {"topic": "chore", "payload": {"work_ms": 10}}
    exact = made_spec(EXACT, every=2, overlap="allow", catch_up="all", **usual)
    policies = [("skip", "queue")[each % 2] for each in range(1, number)]
    loose = [made_spec(f"loose-{each}", every=3, jitter=1, overlap=each, **usual) for each in policies]
    return [exact, *loose]


async def create(schedules: Schedules, number: int) -> None:
    """Create the schedules of a world."""
    for spec in specs(number):
        await schedules.put(spec, actor=AUTHOR)


def pause(query: Query) -> None:
    """As an operator does at the end, so that the plane comes to rest."""
    query("UPDATE plane_schedule SET paused = 1, paused_ns = 0, queued_ns = NULL, submit_ns = NULL")


def timed_jobs(query: Query) -> list[TimedJobs]:
    """What became of the due times."""
    seen: Mapping[str, list[str]] = defaultdict(list)
    for (text,) in query("SELECT labels FROM plane_job WHERE submitted_by = ? ORDER BY id", AUTHOR):
        labels = json.loads(text)
        seen[labels[SCHEDULE_LABEL]].append(labels[DUE_LABEL])
    found = []
    for name, text, begin_ns, done_ns in query("SELECT name, spec, created_ns, done_ns FROM plane_schedule"):
        spec = spec_of("default", name, json.loads(text))
        due = takewhile(partial(ge, done_ns), spec.timetable().following(begin_ns))
        expected = [moment_text(each) for each in due] if spec.catch_up is CatchUp.ALL else None
        found.append(TimedJobs(name, seen[name], expected))
    return found
