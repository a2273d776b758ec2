"""When a schedule submits a job: due times, overlap, catch-up after an outage, and which version of an app declares it.

Promises:

- A due time is decided once: as fired, skipped, missed or queued. `done_ns` is the last decided due time. It never
  decreases, so a clock that is set back decides nothing again.
- The jitter of a due time depends on the schedule and the due time alone, so every replica computes the same instant.
- A decision reads a bounded number of due times, however long the outage was.

Does not promise that a schedule fires while the clock is behind `done_ns`: after a step back it stands still until the
clock has passed the last decided due time.

Clock: none. Times are nanoseconds of Unix time, passed in.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count, islice, pairwise
from typing import Final, NamedTuple, Protocol

from holdfast.types import NS

GRACE_NS: Final = 60 * NS
"""A due time that is older than this is late: catch-up `none` drops it, and an alert may fire."""

ON_TIME_MAX: Final = 1000
"""The number of due times that one decision counts. A longer outage counts as so many missed due times."""

DECLARED_NS: Final = 90 * NS
"""For how long a version of an app counts as running after its last sign."""

REPEAT_DECLARATION_NS: Final = 20 * NS

_WINDOW_NS: Final = 3600 * NS


class Overlap(StrEnum):
    """What happens at a due time while the last job of the schedule has not finished."""

    SKIP = "skip"  # the due time is skipped
    QUEUE = "queue"  # one due time waits for the end of the job; further ones are skipped
    ALLOW = "allow"  # the job is submitted


class CatchUp(StrEnum):
    """What happens with due times that passed while no plane ran, or the loop was late."""

    NONE = "none"  # they are missed
    LATEST = "latest"  # the latest one is fired, the others are missed
    ALL = "all"  # the latest `catch_up_max` are fired, in their order


class Timetable(Protocol):
    """The due times of a schedule."""

    def following(self, after_ns: int) -> Iterator[int]:
        """The due times after that instant, in their order."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """A due time at each multiple of an interval since 1970, moved by an offset: it does not drift."""

    interval_ns: int
    offset_ns: int = 0

    def following(self, after_ns: int) -> Iterator[int]:
        """See `Timetable`."""
        passed = (after_ns - self.offset_ns) // self.interval_ns
        return count((passed + 1) * self.interval_ns + self.offset_ns, self.interval_ns)


@dataclass(frozen=True, slots=True)
class DuePolicy:
    """How due times become jobs."""

    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LATEST
    catch_up_max: int = 100
    jitter_ns: int = 0
    seed: str = ""  # of the jitter: tenant and name

    @property
    def fired_max(self) -> int:
        """The number of due times that one decision may fire, besides a queued one."""
        return self.catch_up_max if self.catch_up is CatchUp.ALL else 1

    def submits_ns(self, due_ns: int) -> int:
        """When the job of a due time is submitted: up to `jitter_ns` later."""
        if not self.jitter_ns:
            return due_ns
        digest = hashlib.blake2b(f"{self.seed}@{due_ns}".encode(), digest_size=8).digest()
        return due_ns + int.from_bytes(digest, "big") % (self.jitter_ns + 1)


class Decided(NamedTuple):
    """The state of a schedule between two decisions."""

    done_ns: int  # the last decided due time
    queued_ns: int | None = None  # a due time that waits for the end of the last job


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, in one transaction."""

    state: Decided
    next_ns: int | None  # the next due time
    fired: tuple[int, ...] = ()  # due times whose jobs are submitted, oldest first
    skipped: int = 0
    missed: int = 0
    late_ns: int = 0  # by how much the oldest fired or dropped due time was late


@dataclass(slots=True)
class _Draft:
    fired: list[int] = field(default_factory=list)
    skipped: int = 0
    running: bool = False
    queued_ns: int | None = None

    def admit(self, due_ns: int, overlap: Overlap) -> None:
        """Fire, queue or skip one due time."""
        if overlap is Overlap.ALLOW or not self.running:
            self.fired.append(due_ns)
            self.running = True
        elif overlap is Overlap.QUEUE and self.queued_ns is None:
            self.queued_ns = due_ns
        else:
            self.skipped += 1


def decide(timetable: Timetable, policy: DuePolicy, state: Decided, *, now_ns: int, running: bool) -> Decision:
    """Decide all due times up to now. `running`: the last job of the schedule has not finished."""
    draft = _Draft(running=running)
    if state.queued_ns is not None:
        draft.admit(state.queued_ns, policy.overlap)
    candidates, total = _ripe(timetable, policy, state.done_ns, now_ns)
    done_ns = candidates[-1] if candidates else state.done_ns
    oldest = min([*draft.fired, *candidates], default=now_ns)
    late_ns = max(0, now_ns - policy.submits_ns(oldest))
    kept = candidates
    if policy.catch_up is CatchUp.NONE:
        kept = [each for each in candidates if now_ns - policy.submits_ns(each) <= GRACE_NS]
    for each in kept:
        draft.admit(each, policy.overlap)
    return Decision(
        Decided(done_ns, draft.queued_ns),
        next(timetable.following(done_ns), None),
        tuple(draft.fired),
        draft.skipped,
        total - len(kept),
        late_ns,
    )


def begin(timetable: Timetable, now_ns: int, done_ns: int | None = None) -> Decision:
    """The state of a schedule that is created, changed or resumed now: due times up to now are not its own."""
    done = now_ns if done_ns is None else max(now_ns, done_ns)
    return Decision(Decided(done), next(timetable.following(done), None))


def upcoming(timetable: Timetable, done_ns: int, most: int) -> list[int]:
    """The next due times."""
    return list(islice(timetable.following(done_ns), most))


def shortest_gap_ns(timetable: Timetable, after_ns: int, most: int = 64) -> int | None:
    """The shortest time between two of the next due times; None: there are fewer than two."""
    found = upcoming(timetable, after_ns, most)
    return min((late - early for early, late in pairwise(found)), default=None)


def _ripe(timetable: Timetable, policy: DuePolicy, done_ns: int, now_ns: int) -> tuple[list[int], int]:
    """The latest undecided due times whose jobs are to be submitted by now, and the number of all of them."""
    latest: deque[int] = deque(maxlen=policy.fired_max)
    for total, due_ns in enumerate(timetable.following(done_ns)):
        if policy.submits_ns(due_ns) > now_ns:
            return list(latest), total
        if total == ON_TIME_MAX:
            return _latest(timetable, policy, done_ns, now_ns), total
        latest.append(due_ns)
    return list(latest), len(latest)


def _latest(timetable: Timetable, policy: DuePolicy, done_ns: int, now_ns: int) -> list[int]:
    """The same without reading all of them: from windows before now, each longer than the one before."""
    window_ns = _WINDOW_NS + policy.jitter_ns
    while True:  # ends when the window covers all
        start_ns = max(done_ns, now_ns - window_ns)
        latest: deque[int] = deque(maxlen=policy.fired_max)
        for due_ns in timetable.following(start_ns):
            if policy.submits_ns(due_ns) > now_ns:
                break
            latest.append(due_ns)
        if len(latest) == policy.fired_max or start_ns == done_ns:
            return list(latest)
        window_ns *= 8


# Versions of an app that declare different schedules.


class DeclaredVersion(NamedTuple):
    """One set of declared schedules of an app, by its digest, and when processes with it were first and last seen."""

    digest: str
    first_ns: int
    seen_ns: int


def version_in_effect(versions: Iterable[DeclaredVersion], now_ns: int) -> str | None:
    """The digest of the version that decides: the newest one that still runs.

    While two versions run side by side, restarts of the older one change nothing. A version that was gone for
    `DECLARED_NS` counts as new when it comes back, so a rollback takes effect.
    """
    alive = [each for each in versions if now_ns - each.seen_ns <= DECLARED_NS]
    newest = max(alive, key=lambda each: (each.first_ns, each.digest), default=None)
    return None if newest is None else newest.digest
