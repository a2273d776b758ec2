"""Whether what a worker says about an attempt still counts. Pure.

A worker speaks under the fence of its own lease. It is believed when it speaks of the attempt that is under way, and
no worker with a newer fence has spoken of it. Whoever was paused, and comes back after another has begun, is refused;
and so is one that comes back after its job was forgotten, and speaks of another that has the same id now.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast.core.lease.fencing import accepts
from holdfast.plane.model.job_states import JobState


class Standing(StrEnum):
    """What a report is worth."""

    CURRENT = "current"  # it counts
    REPEATED = "repeated"  # it has been said, and has been heard
    STALE = "stale"  # of an earlier attempt, or another job, or under a fence that has been overtaken
    OVER = "over"  # the job has ended


@dataclass(slots=True, unsafe_hash=True)
class Attempt:
    """The attempt that a job is at."""

    state: JobState
    attempt: int
    run_fence: int | None
    made_ns: int = 0  # when the job was made


@dataclass(slots=True, unsafe_hash=True)
class Word:
    """What a worker speaks of, and under which fence."""

    attempt: int
    run_fence: int
    made_ns: int = 0  # as it was told when the job was made; 0: it was not


_UNDER_WAY = frozenset({JobState.SCHEDULED, JobState.DISPATCHED, JobState.RUNNING})


def standing(job: Attempt, said: Word) -> Standing:
    """What a worker's report that an attempt has ended is worth."""
    if said.made_ns not in (0, job.made_ns):
        return Standing.STALE
    if job.state.terminal:
        return Standing.OVER
    if said.attempt != job.attempt or not accepts(job.run_fence, said.run_fence):
        return Standing.STALE
    # The attempt is the latest, and no longer under way: its end has been heard.
    return Standing.CURRENT if job.state in _UNDER_WAY else Standing.REPEATED


def standing_of_start(job: Attempt, said: Word) -> Standing:
    """What a worker's report that it has begun is worth. After the end of its attempt it says nothing new."""
    worth = standing(job, said)
    if worth is Standing.CURRENT and job.state is JobState.RUNNING and said.run_fence == job.run_fence:
        return Standing.REPEATED
    return worth
