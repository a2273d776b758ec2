"""Prefetch: whether the workers of a pool are sent more jobs than they have slots, and which of those are unstarted.

Between the end of one attempt and the start of the next there is a round trip to the scheduler. For jobs of minutes
that does not matter; with jobs of a millisecond, workers wait most of the time. A few jobs that are already on their
way hide the trip. The price: a prefetched job is not in the queue any more, so a newer job of a higher priority, or of
another tenant, comes after it. So a pool is sent nothing ahead unless all of its recent attempts were brief. That ends
with the first attempt that was not brief, with the first job of a topic that is not known to be brief, and when nothing
has finished for a while. Jobs that were prefetched by then are taken back (`dispatcher`).

**Unstarted jobs** were sent to workers a while ago, and no worker has reported a start. Reports take a moment to
arrive, and much longer at a scheduler that was paused or has a backlog. Then attempts are over whose jobs look
unstarted; a job that is put back into the queue then runs twice, and its first result does not count.

Promises: a job counts as unstarted only if no report of a worker was unread when it was found; or if all reports that
were unread then have been handled, and none of the jobs that were found with it has started meanwhile. If reports stay
unread for `WATCH_NS`, only the latter counts. Does not promise that no worker starts it a moment later: that worker
then checks whether it is stale.

Clock: the wall clock for when jobs were sent; the monotonic one for how long they are watched. `Prefetch` is pure: its
times are nanoseconds of any clock that does not go back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.plane.db.statements import sql
from holdfast.plane.jobs.store import JobStore
from holdfast.plane.model.messages import RESULT, SCHEDULER, STARTED
from holdfast.plane.model.records import BRIEF_NS
from holdfast.types import MS, NS

IN_A_ROW: Final = 32
AHEAD: Final = 6
"""For each slot of a pool. The next job waits for six brief attempts, which take up to 60 ms.

With fewer, each batch of the scheduler and each request to a store contains only a few jobs.
"""

FRESH_NS: Final = 250 * MS
"""How long a report counts. Two dozen brief attempts fit in."""

TOPICS_MAX: Final = 10_000
"""So many are remembered; names are chosen by users."""


class Prefetch:
    """Which pools of one scheduler have brief attempts only."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._missing: dict[str, int] = {}  # how many brief attempts in a row each pool still lacks
        self._finished_ns: dict[str, int] = {}  # when an attempt of each pool last finished
        self._brief: set[tuple[str, str]] = set()  # topics, by pool, whose last attempt was brief

    def finished(self, pool: str, topic: str, took_ns: int | None, now_ns: int) -> None:
        """An attempt has ended, after so long; None: unknown."""
        if took_ns is None or not 0 <= took_ns < BRIEF_NS:
            self._missing[pool] = IN_A_ROW
            self._brief.discard((pool, topic))
            return
        self._missing[pool] = max(0, self._missing.get(pool, IN_A_ROW) - 1)
        self._finished_ns[pool] = now_ns
        if len(self._brief) < TOPICS_MAX:
            self._brief.add((pool, topic))

    def dispatched(self, pool: str, topic: str) -> None:
        """A job is on its way to a pool. Unless it is brief, the jobs behind it would wait for it."""
        if (pool, topic) not in self._brief:
            self._missing[pool] = IN_A_ROW

    def ahead(self, pool: str, slots: int, now_ns: int) -> int:
        """How many jobs may be sent to a pool beyond its slots."""
        if not self._enabled or self._missing.get(pool, IN_A_ROW) or now_ns - self._finished_ns[pool] > FRESH_NS:
            return 0
        return AHEAD * slots


UNSTARTED_NS: Final = NS
"""A prefetched job that has not started by then is taken back. It should have taken 60 ms."""

WATCH_NS: Final = 5 * NS

_UNBEGUN: Final = sql("pool_not_started")


class _Watched(NamedTuple):
    """Jobs of a pool that may have started."""

    jobs: frozenset[str]
    unread: Mapping[str, int]  # by subject, the number of the last report that was unread when they were found
    since_ns: int


class UnstartedJobs:
    """Finds the unstarted jobs of one scheduler."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._watched: dict[tuple[str, str | None], _Watched] = {}

    def watches(self, pool: str) -> bool:
        """Whether it is not known yet for some jobs of a pool; then call `find` again soon."""
        return any(name == pool for name, _ in self._watched)

    async def find(self, pool: str, most: int, until_ns: int, topic: str | None = None) -> Sequence[str]:
        """Jobs that were sent before a time and have not started, the newest first.

        `topic`: only jobs of this one.
        """
        here = pool, topic
        values = {"pool": pool, "topic": topic, "until_ns": until_ns, "most": most}
        rows = await self._store.database.read(lambda tx: tx.query(_UNBEGUN, values), one_view=False, lasting=False)
        before = self._watched.pop(here, None)
        jobs = [row["id"] for row in rows]
        # Read after the jobs: a worker that has started one of them has reported it by now, or is about to start it.
        unread = await self._unread() if jobs else {}
        if not unread:
            return jobs
        now_ns = self._store.clock.now().mono
        if before is None or not before.jobs <= set(jobs):
            last = {subject: waiting[1] for subject, waiting in unread.items()}
            self._watched[here] = _Watched(frozenset(jobs), last, now_ns)
            return []
        late = any(subject in unread and unread[subject][0] <= last for subject, last in before.unread.items())
        if late and now_ns - before.since_ns < WATCH_NS:
            self._watched[here] = before
            return []
        return [job for job in jobs if job in before.jobs]

    async def _unread(self) -> dict[str, tuple[int, int]]:
        """Which unread of workers wait to be heard, by subject: the places of the first and of the last."""
        waiting = {subject: await self._store.bus.span(subject, SCHEDULER) for subject in (STARTED, RESULT)}
        return {subject: span for subject, span in waiting.items() if span is not None}
