"""Whether what a worker says about an attempt still counts. Pure.

A worker speaks under the fence of its own lease. It is believed when it speaks of the attempt that is under way, and
no worker with a newer fence has spoken of it. Whoever was paused, and comes back after another has begun, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast.core.fencing import accepts
from holdfast.core.jobs import JobState


class Standing(StrEnum):
    """What a report is worth."""

    CURRENT = "current"  # it counts
    REPEATED = "repeated"  # it has been said, and has been heard
    STALE = "stale"  # of an earlier attempt, or under a fence that has been overtaken
    OVER = "over"  # the job has ended


@dataclass(slots=True, unsafe_hash=True)
class Attempt:
    """The attempt that a job is at."""

    state: JobState
    attempt: int
    run_fence: int | None


_UNDER_WAY = frozenset({JobState.SCHEDULED, JobState.DISPATCHED, JobState.RUNNING})


def standing(job: Attempt, attempt: int, run_fence: int) -> Standing:
    """What a worker's report that an attempt has ended is worth."""
    if job.state.terminal:
        return Standing.OVER
    if attempt != job.attempt or not accepts(job.run_fence, run_fence):
        return Standing.STALE
    # The attempt is the latest, and no longer under way: its end has been heard.
    return Standing.CURRENT if job.state in _UNDER_WAY else Standing.REPEATED


def standing_of_start(job: Attempt, attempt: int, run_fence: int) -> Standing:
    """What a worker's report that it has begun is worth. After the end of its attempt it says nothing new."""
    worth = standing(job, attempt, run_fence)
    if worth is Standing.CURRENT and job.state is JobState.RUNNING and run_fence == job.run_fence:
        return Standing.REPEATED
    return worth
