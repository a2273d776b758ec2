"""Whether it is worth trying to hand a new job to the workers of a pool at once. Pure: no clock.

The short way costs more than standing in line if it turns out that there is no place. So after a try in vain it is left
alone for a while, and for twice as long each time, until one succeeds: under a load that fills the pool, hardly
anything is tried. Times are nanoseconds of any clock that does not go back.

New jobs on the short way: made and handed to workers by one transaction, without a look of the scheduler's.

Promises: what is accepted is accepted as on the long way, and durable when it is said. The short way is taken only if
there is a place with the workers, nobody waits for it, and the job's own lock is had, under whose fence all of it is
written. Whatever stands in its way, the job is made and waits in line: contention, a full pool or topic, a store of
leases that does not answer. A crowd goes the long way at once, where a scheduler decides about many together.

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
"""So many are remembered; pools come and go, and names are chosen by people."""


class _Vain(NamedTuple):
    pause_ns: int
    until_ns: int


class Shortcut:
    """What one process has found."""

    def __init__(self) -> None:
        self._vain: dict[str, _Vain] = {}

    def open(self, pool: str, now_ns: int) -> bool:
        """Whether to try."""
        vain = self._vain.get(pool)
        return vain is None or now_ns >= vain.until_ns

    def worked(self, pool: str) -> None:
        """A job of this pool went the short way."""
        self._vain.pop(pool, None)

    def in_vain(self, pool: str, now_ns: int) -> None:
        """One did not. Several that were on their way together are one finding."""
        vain = self._vain.pop(pool, None)
        if vain is not None and now_ns < vain.until_ns:
            self._vain[pool] = vain
            return
        pause_ns = FIRST_NS if vain is None else min(2 * vain.pause_ns, LONGEST_NS)
        if len(self._vain) >= POOLS_MAX:
            self._vain.pop(next(iter(self._vain)))  # the one that was noted first
        self._vain[pool] = _Vain(pause_ns, now_ns + pause_ns)


CROWD: Final = 16
"""More that come in one call are no matter of milliseconds."""

_End: TypeAlias = tuple[Job, bool] | Failed


class Straight:
    """The short way of one process, and the long way for whom it is not."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._store = placement.store
        self._shortcut = Shortcut()
        self.tally: Counter[str] = Counter()  # jobs by the way they went

    async def submit_all(self, news: Sequence[New]) -> list[_End]:
        """Make jobs that were checked; see `JobStore.submit_all`."""
        now_ns = self._store.clock.now().mono
        going = [at for at, new in enumerate(news) if self._may(new, now_ns)]
        ends: dict[int, _End] = await self._tried(news, going) if 0 < len(going) <= CROWD else {}
        rest = [at for at in range(len(news)) if at not in ends]
        if rest:
            self.tally["long_way"] += len(rest)
            plain = await self._store.submit_all([news[at] for at in rest])
            ends.update((at, _ours(news[at], end)) for at, end in zip(rest, plain, strict=True))
        return [ends[at] for at in range(len(news))]

    def _may(self, new: New, now_ns: int) -> bool:
        """Whether the short way may be tried.

        It is for jobs that would stand in line, and where what is said is heard at once. Not for ids that somebody has
        chosen: one that is taken is another job's, and its lock is not to be touched.
        """
        if not (new.in_line and new.wanted.id is None and self._placement.makes and self._store.bus.prompt):
            return False
        return self._shortcut.open(_way(new), now_ns)

    async def _tried(self, news: Sequence[New], going: Sequence[int]) -> dict[int, _End]:
        """Those that were made, with workers or in line. Of the others it is not known, or they were not."""
        ends: dict[int, _End] = {}
        for at, made in zip(going, await self._placement.make([news[at] for at in going]), strict=True):
            job = made.after if isinstance(made, Changed) else None
            if job is not None:
                ends[at] = job, True
            if isinstance(made, Changed) and job is not made.before:
                self._shortcut.worked(_way(news[at]))
                self.tally["straight"] += 1
            else:
                self._shortcut.in_vain(_way(news[at]), self._store.clock.now().mono)
                self.tally["no_place"] += job is not None
        return ends


def _way(new: New) -> str:
    """For whom the short way is open or not: all of a pool; a topic that has fewer places says nothing about others."""
    pool: str = new.values["pool"]
    return pool if new.values["queue"] != JobQueue.TOPIC else f"{pool} {new.values['topic']}"


def _ours(new: New, end: _End) -> _End:
    """One that had been made on the short way, although nobody could say so, was made by us: nobody else has its id."""
    if isinstance(end, Failed) or new.wanted.id is not None or end[0].id != new.identity:
        return end
    return end[0], True
