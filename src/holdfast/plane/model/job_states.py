"""The life of a job: one table of states and legal moves, and what each move brings with it. Pure.

    pending ─▶ scheduled ─▶ dispatched ─▶ running ─▶ succeeded | failed | cancelled | timeout | output_quarantined
       │                                     └─▶ retrying ─▶ scheduled …
       └─▶ approval_required ─▶ pending | denied

Promises: a move that is not in the table is refused with `invalid transition <from> -> <to>`; a terminal state is never
left, except for a success whose output turns out to be unfit; each entry into `scheduled` counts as an attempt, and
an attempt that is recalled before a worker has started it does not count. The diagram in the documentation is generated
from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from holdfast.core.str_enum import TextEnum
from holdfast.errors import HoldfastError


class JobState(TextEnum):
    """Where a job is in its life."""

    PENDING = "PENDING"  # accepted; waits for the scheduler
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"  # waits for a person
    SCHEDULED = "SCHEDULED"  # the scheduler has decided; an attempt has begun
    DISPATCHED = "DISPATCHED"  # handed to the workers of a pool
    RUNNING = "RUNNING"  # a worker has it, under a lease of its own
    RETRYING = "RETRYING"  # an attempt failed and another is due
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    DENIED = "DENIED"
    OUTPUT_QUARANTINED = "OUTPUT_QUARANTINED"  # it succeeded, and its output must not be used

    @property
    def terminal(self) -> bool:
        """Whether the job has ended. What is not terminal counts against its tenant's limit."""
        return self in TERMINAL


class JobQueue(TextEnum):
    """The queue that a job waits in. While a worker has the job: the queue that it came from."""

    POOL = "pool"  # of its pool
    TOPIC = "topic"  # of its topic, which has fewer slots than the pool, or no worker
    DELAYED = "delayed"  # none, until the job is due


WITH_WORKERS: Final = frozenset({JobState.SCHEDULED, JobState.DISPATCHED, JobState.RUNNING})
"""The states that count against the limits."""


S = JobState

TERMINAL: Final = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED, S.TIMEOUT, S.DENIED, S.OUTPUT_QUARANTINED})
ACTIVE: Final = frozenset(JobState) - TERMINAL

_SENT: Final = (S.SCHEDULED, S.DISPATCHED)  # on its way to workers, and not begun as far as is known
_ENDS: Final = (S.SUCCEEDED, S.FAILED, S.CANCELLED, S.TIMEOUT)

MOVES: Final[Mapping[JobState | None, frozenset[JobState]]] = {
    None: frozenset({S.PENDING, S.APPROVAL_REQUIRED, S.SCHEDULED, S.DISPATCHED, S.RUNNING, S.FAILED, S.CANCELLED}),
    S.PENDING: frozenset(
        {S.APPROVAL_REQUIRED, S.SCHEDULED, S.DISPATCHED, S.RUNNING, S.DENIED, S.RETRYING, *_ENDS},
    ),
    S.APPROVAL_REQUIRED: frozenset({S.PENDING, S.SCHEDULED, S.DISPATCHED, S.RUNNING, S.DENIED, *_ENDS}),
    S.SCHEDULED: frozenset(
        {S.SCHEDULED, S.DISPATCHED, S.RUNNING, S.DENIED, S.OUTPUT_QUARANTINED, S.RETRYING, *_ENDS},
    ),
    S.DISPATCHED: frozenset({S.SCHEDULED, S.RUNNING, S.OUTPUT_QUARANTINED, S.RETRYING, *_ENDS}),
    S.RUNNING: frozenset({S.RUNNING, S.OUTPUT_QUARANTINED, S.RETRYING, *_ENDS}),
    S.RETRYING: frozenset({S.SCHEDULED, S.DISPATCHED, S.RUNNING, S.RETRYING, *_ENDS}),
    S.SUCCEEDED: frozenset({S.OUTPUT_QUARANTINED}),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
    S.TIMEOUT: frozenset(),
    S.DENIED: frozenset(),
    S.OUTPUT_QUARANTINED: frozenset(),
}


class InvalidTransition(HoldfastError):
    """The job cannot go from where it is to where it was sent. Nothing was changed; trying again will not help."""

    def __init__(self, before: JobState | None, after: JobState, why: str = "") -> None:
        super().__init__(f"invalid transition {before or '(none)'} -> {after}{why and f': {why}'}")
        self.before = before
        self.after = after


class Move(NamedTuple):
    """What a legal move brings with it."""

    before: JobState | None
    after: JobState
    attempt: int  # the number of attempts that have begun, after the move
    ends: bool  # the deadline falls away, and the tenant gets its place back


def legal(before: JobState | None, after: JobState) -> bool:
    """Whether the table allows it."""
    return after in MOVES[before]


def move(before: JobState | None, after: JobState, attempt: int, *, taken_back: bool = False) -> Move:
    """One step in the life of a job, or `InvalidTransition`. `attempt` is the number of attempts begun so far.

    `taken_back`: no worker has started the last attempt, and none will. Never a running one.
    """
    if not legal(before, after) or (taken_back and (before not in _SENT or after is not S.RETRYING)):
        raise InvalidTransition(before, after)
    begun = attempt + 1 if after is S.SCHEDULED and before is not S.SCHEDULED else attempt - taken_back
    return Move(before, after, begun, after.terminal and (before is None or not before.terminal))


def duplicate_end(before: JobState, after: JobState) -> bool:
    """Whether a refused move was a second end of one job, which is counted: it says that two sides acted on it."""
    return before.terminal and after.terminal and not legal(before, after)
