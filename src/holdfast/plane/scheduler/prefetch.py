"""Whether the work of a pool is over at once, of late: then its workers may be sent more than they can run. Pure.

Between the end of one attempt and the begin of the next there is the way to the scheduler and back. Where attempts take
minutes nobody notices; where they take a millisecond the workers wait for most of the time. A few attempts that are on
their way already hide it. They are the price as well: what was sent is not in line any more, so a newcomer of a higher
priority, or of another tenant, comes after it. So nothing is sent ahead of time unless all that was heard of a pool
lately was over at once. It ends with the first attempt that is not, with the first one that is sent of a topic that is
not known to be, and when nothing has been heard for a while. What was sent ahead by then is taken back (`dispatcher`).

Times are nanoseconds of any clock that does not go back.

Jobs that were sent to the workers of a pool a while ago, and of which nobody has said that it has begun them.

What a worker says is heard a moment later, and much later by a scheduler that stood still or has fallen behind. Then
attempts are over whose jobs look as if nobody had begun them; one that is put back in line is run a second time, and
what came of the first time counts no more.

Promises: a job is called unbegun only when no word of a worker was waiting to be heard when it was found; or when all
that waited then has been heard, and none of those that were found with it has turned out to have begun meanwhile. If
words wait for so long that they may never be heard (`WATCH_NS`), only the latter counts. Does not promise that nobody
begins it a moment later: a worker that comes to it then asks whether it is still wanted.

Clock: the wall clock, of which jobs carry the time when they were sent; the monotonic one, for how long it is watched.
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
"""For each place of a pool: whoever comes after them waits for six brief attempts, which is 60 ms.

With fewer the scheduler decides about a few at a time, and each request to a store is for a few.
"""

FRESH_NS: Final = 250 * MS
"""For so long what was heard says something about now. Twice a dozen brief attempts fit in."""

TOPICS_MAX: Final = 10_000
"""So many are remembered; names are chosen by people."""


class Pace:
    """What one scheduler has heard."""

    def __init__(self) -> None:
        self._missing: dict[str, int] = {}  # how many brief attempts in a row each pool still lacks
        self._heard_ns: dict[str, int] = {}  # when each pool was last heard of
        self._brief: set[tuple[str, str]] = set()  # topics, by pool, whose last attempt was over at once

    def heard(self, pool: str, topic: str, took_ns: int | None, now_ns: int) -> None:
        """An attempt has ended, after so long; None: nobody knows."""
        if took_ns is None or not 0 <= took_ns < BRIEF_NS:
            self._missing[pool] = IN_A_ROW
            self._brief.discard((pool, topic))
            return
        self._missing[pool] = max(0, self._missing.get(pool, IN_A_ROW) - 1)
        self._heard_ns[pool] = now_ns
        if len(self._brief) < TOPICS_MAX:
            self._brief.add((pool, topic))

    def sent(self, pool: str, topic: str) -> None:
        """An attempt is on its way to a pool. Unless it will be over at once, those behind it would wait for it."""
        if (pool, topic) not in self._brief:
            self._missing[pool] = IN_A_ROW

    def ahead(self, pool: str, places: int, now_ns: int) -> int:
        """How many attempts may be on their way to a pool beyond those that it has places for."""
        if self._missing.get(pool, IN_A_ROW) or now_ns - self._heard_ns[pool] > FRESH_NS:
            return 0
        return AHEAD * places


UNBEGUN_NS: Final = NS
"""After which what was sent ahead of time, and was not begun, is taken back. It should have taken 60 ms."""

WATCH_NS: Final = 5 * NS

_UNBEGUN: Final = sql("queue_unbegun")


class _Watched(NamedTuple):
    """Jobs of a pool that may have been begun."""

    jobs: frozenset[str]
    words: Mapping[str, int]  # by subject, the place of the last one that waited when they were found
    since_ns: int


class Unbegun:
    """What one scheduler has found."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._watched: dict[tuple[str, str | None], _Watched] = {}

    def watches(self, pool: str) -> bool:
        """Whether there are jobs in a pool of which it is not known yet; then ask again soon."""
        return any(name == pool for name, _ in self._watched)

    async def find(self, pool: str, most: int, until_ns: int, topic: str | None = None) -> Sequence[str]:
        """Jobs that were sent before a time, and that nobody has begun; those that were sent last come first.

        `topic`: only jobs of this one.
        """
        here = pool, topic
        values = {"pool": pool, "topic": topic, "until_ns": until_ns, "most": most}
        rows = await self._store.database.read(lambda tx: tx.query(_UNBEGUN, values), one_view=False, lasting=False)
        before = self._watched.pop(here, None)
        jobs = [row["id"] for row in rows]
        # Read after the jobs: whoever has begun one of them has spoken before this, or is about to begin it.
        words = await self._words() if jobs else {}
        if not words:
            return jobs
        now_ns = self._store.clock.now().mono
        if before is None or not before.jobs <= set(jobs):
            last = {subject: waiting[1] for subject, waiting in words.items()}
            self._watched[here] = _Watched(frozenset(jobs), last, now_ns)
            return []
        unheard = any(subject in words and words[subject][0] <= last for subject, last in before.words.items())
        if unheard and now_ns - before.since_ns < WATCH_NS:
            self._watched[here] = before
            return []
        return [job for job in jobs if job in before.jobs]

    async def _words(self) -> dict[str, tuple[int, int]]:
        """Which words of workers wait to be heard, by subject: the places of the first and of the last."""
        waiting = {subject: await self._store.bus.span(subject, SCHEDULER) for subject in (STARTED, RESULT)}
        return {subject: span for subject, span in waiting.items() if span is not None}
