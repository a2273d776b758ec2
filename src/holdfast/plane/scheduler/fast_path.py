"""The fast path: a new job is inserted and dispatched in one transaction, without a message to a scheduler.

Promises: a job is accepted as without the fast path, and durable when the call returns. The fast path is taken only if
a slot is free, no job waits for it, and the job's own lock is acquired; its fence is written with the job. Otherwise
the job is inserted and waits in its queue: after contention, in a full pool or topic, with a lease store that does not
answer. A large batch takes no fast path: a scheduler decides about many jobs together.

An attempt in vain costs more than a plain insert. So after one the pool is left alone for a while, and twice as long
each time, until an attempt succeeds: under a load that fills the pool, hardly anything is tried.

Clock: the monotonic one, for when to try again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from holdfast.plane.db.batcher import Failed
from holdfast.plane.jobs.insert import New
from holdfast.plane.jobs.store import Changed
from holdfast.plane.model.job_states import JobQueue
from holdfast.plane.model.records import Job
from holdfast.plane.scheduler.placement import Placement
from holdfast.types import MS, NS

FIRST_NS: Final = 20 * MS
LONGEST_NS: Final = NS
POOLS_MAX: Final = 10_000
"""So many are remembered; the names of pools are chosen by users."""

BATCH_MAX: Final = 16
"""More jobs in one call are not about latency."""

_End: TypeAlias = tuple[Job, bool] | Failed


class FastPath:
    """Inserts jobs for one process: on the fast path where it is open, else as `JobStore.submit_all`."""

    def __init__(self, placement: Placement, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._placement = placement
        self._store = placement.store
        self._state = FastPathState()
        self.tally: Counter[str] = Counter()  # jobs by path

    async def submit_all(self, news: Sequence[New]) -> list[_End]:
        """Insert jobs that were checked; see `JobStore.submit_all`."""
        now_ns = self._store.clock.now().mono
        fast = [at for at, new in enumerate(news) if self._may(new, now_ns)]
        ends: dict[int, _End] = await self._try(news, fast) if 0 < len(fast) <= BATCH_MAX else {}
        rest = [at for at in range(len(news)) if at not in ends]
        if rest:
            self.tally["long_way"] += len(rest)
            plain = await self._store.submit_all([news[at] for at in rest])
            ends.update((at, _ours(news[at], end)) for at, end in zip(rest, plain, strict=True))
        return [ends[at] for at in range(len(news))]

    def _may(self, new: New, now_ns: int) -> bool:
        """Whether the fast path may be tried.

        It is for jobs that can go now, on a bus that delivers promptly. Not for ids that a caller has chosen: such an
        id may be another job's, whose lock must not be touched.
        """
        if not (
            self._enabled
            and new.in_line
            and new.wanted.id is None
            and self._placement.can_insert
            and self._store.bus.prompt
        ):
            return False
        return self._state.allows(_queue_of(new), now_ns)

    async def _try(self, news: Sequence[New], fast: Sequence[int]) -> dict[int, _End]:
        """The jobs that were inserted, dispatched or waiting. The others were not, or the outcome is unknown."""
        ends: dict[int, _End] = {}
        for at, made in zip(fast, await self._placement.insert([news[at] for at in fast]), strict=True):
            job = made.after if isinstance(made, Changed) else None
            if job is not None:
                ends[at] = job, True
            if isinstance(made, Changed) and job is not made.before:
                self._state.succeeded(_queue_of(news[at]))
                self.tally["straight"] += 1
            else:
                self._state.failed(_queue_of(news[at]), self._store.clock.now().mono)
                self.tally["no_place"] += job is not None
        return ends


class _Pause(NamedTuple):
    pause_ns: int
    until_ns: int


class FastPathState:
    """For which queues the fast path is open. Pure: times are nanoseconds of any clock that does not go back."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}

    def allows(self, queue: str, now_ns: int) -> bool:
        """Whether to try."""
        pause = self._pauses.get(queue)
        return pause is None or now_ns >= pause.until_ns

    def succeeded(self, queue: str) -> None:
        """A job took the fast path."""
        self._pauses.pop(queue, None)

    def failed(self, queue: str, now_ns: int) -> None:
        """A job did not. Several that were tried together count once."""
        pause = self._pauses.pop(queue, None)
        if pause is not None and now_ns < pause.until_ns:
            self._pauses[queue] = pause
            return
        pause_ns = FIRST_NS if pause is None else min(2 * pause.pause_ns, LONGEST_NS)
        if len(self._pauses) >= POOLS_MAX:
            self._pauses.pop(next(iter(self._pauses)))  # the oldest
        self._pauses[queue] = _Pause(pause_ns, now_ns + pause_ns)


def _queue_of(new: New) -> str:
    """The queue of a job: of its pool, or of a topic with slots of its own, which tells nothing about other topics."""
    pool: str = new.values["pool"]
    return pool if new.values["queue"] != JobQueue.TOPIC else f"{pool} {new.values['topic']}"


def _ours(new: New, end: _End) -> _End:
    """A job that was inserted on the fast path with an unknown outcome is ours: no other caller has its id."""
    if isinstance(end, Failed) or new.wanted.id is not None or end[0].id != new.identity:
        return end
    return end[0], True
