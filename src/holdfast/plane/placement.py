"""One look at one job that waits: it is handed to the workers of its pool, sent away for a while, or ended.

Promises: the state and the message to the workers are one transaction, under the job's lock and fence; so a job is
never marked as dispatched without its message, nor sent without being marked, and there is nothing to roll back. A
second look at the same job changes nothing. A job that cannot go now is left where the next look will find it: in line,
if it waits for a place, and in that of the pool whose workers take its topic; aside, if it waits for a place of its
topic (`topicplaces`); with a delayed message of its own, if it waits for a time.

Clock: the wall clock, for time limits only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Final, TypeAlias

from holdfast.aio import many
from holdfast.aio.locks import Locks
from holdfast.core.dispatching import NO_WORKER_SPREAD_NS, Code, Dispatch, End, Later, Nothing, decide
from holdfast.core.jobs import JobState
from holdfast.core.pace import Pace
from holdfast.core.retry import RetryDelays
from holdfast.errors import RetryLater
from holdfast.guards.bearer import CarriedFence
from holdfast.plane import subjects
from holdfast.plane.endings import ending, look_of
from holdfast.plane.families import RETRY_DELAYS, SCHEDULER_JOB, LockFamily
from holdfast.plane.gathering import Failed
from holdfast.plane.jobintake import New
from holdfast.plane.joblock import JobLockStatistics
from holdfast.plane.jobstore import Changed, JobStore, Writing
from holdfast.plane.lockedchanges import Deciding, LockedChanges
from holdfast.plane.model import Change, Job, Message
from holdfast.plane.slots import WITH_WORKERS, PoolFull, TenantFull
from holdfast.plane.topicplaces import ASIDE_NS, TopicFull
from holdfast.plane.unbegun import UNBEGUN_NS, Unbegun
from holdfast.plane.workers import View, Workers
from holdfast.types import NS

TOPIC_GRACE_NS: Final = 30 * NS
_WAITING: Final = frozenset({JobState.PENDING, JobState.RETRYING})
_Full: TypeAlias = TenantFull | PoolFull | TopicFull
_LOOKS_MAX: Final = 5  # from the fifth vain look on, the delay does not grow any more


class Placed(StrEnum):
    """What became of a look."""

    DISPATCHED = "dispatched"
    POOL_FULL = "pool_full"  # it waits in line
    TENANT_FULL = "tenant_full"  # it waits in line
    TOPIC_FULL = "topic_full"  # it waits aside
    ASIDE = "aside"  # there is no place of its topic; it waits aside from now on
    MOVED = "moved"  # there is no place for it; it waits in the line of another pool, which serves its topic now
    NO_WORKER = "no_worker"  # nobody alive can take it; it waits in line, or for a time
    NOT_YET = "not_yet"  # it waits for its time
    ENDED = "ended"
    NOTHING = "nothing"  # it is with a worker, over, or waits for a person
    MISSING = "missing"  # there is no such job


class Placement:
    """Looks at jobs, for the handlers and the dispatcher of one scheduler."""

    def __init__(
        self,
        store: JobStore,
        locks: Locks,
        workers: Workers,
        *,
        delays: RetryDelays = RETRY_DELAYS,
        topic_grace_ns: int = TOPIC_GRACE_NS,
        actor: str = "scheduler",
        family: LockFamily = SCHEDULER_JOB,
    ) -> None:
        """`topic_grace_ns`: how long a job may wait for the first worker that announces its topic.

        `family`: the job's lock.
        """
        self.store = store
        self.locks = locks
        self.workers = workers
        self.actor = actor
        self.lock_statistics = JobLockStatistics()
        self.family = family
        self._changes = LockedChanges(store, locks, family, delays, self.lock_statistics)
        self._topic_grace_ns = topic_grace_ns
        self.pace = Pace()
        self.unbegun = Unbegun(store)

    async def place(self, job_id: str, *, timeout: float | None = None) -> Placed:
        """Look at one job. `RetryLater` when its lock cannot be had within `timeout` (by default two seconds)."""
        look = _OneLook(self, await self.workers.view())
        try:
            changed = await self.change(job_id, look.deciding, timeout=timeout)
        except (TenantFull, PoolFull, TopicFull) as full:
            return await self._full(job_id, look, full, timeout=timeout)
        return self._noted(look.placed(changed), changed)

    async def try_all(self, jobs: Sequence[str]) -> list[Placed | RetryLater]:
        """Look at jobs that stand in line. Of one whose lock cannot be had at once: why, and for how long."""
        view = await self.workers.view()
        looks = [_OneLook(self, view) for _ in jobs]
        wanted = [(job, look.deciding) for job, look in zip(jobs, looks, strict=True)]
        ends = await self._changes.try_all(wanted, coming=True)
        full = [at for at, end in enumerate(ends) if isinstance(end, Failed) and isinstance(end.error, TopicFull)]
        left = dict(zip(full, await self._aside([(jobs[at], looks[at]) for at in full]), strict=True))
        placed: list[Placed | RetryLater] = []
        for at, (job, look, end) in enumerate(zip(jobs, looks, ends, strict=True)):
            if at in left:
                placed.append(left[at])
            elif isinstance(end, Changed):
                placed.append(self._noted(look.placed(end), end))
            elif isinstance(end.error, TenantFull | PoolFull):
                placed.append(await self._still_full(job, look, end.error))
            elif isinstance(end.error, RetryLater):
                placed.append(end.error)
            else:
                raise end.error
        return placed

    @property
    def makes(self) -> bool:
        """Whether jobs can be handed out by the transaction that makes them."""
        return many.takes_many(self.locks)

    async def make(self, news: Sequence[New]) -> list[Changed | Failed]:
        """Make jobs, and hand out at once those for which there is a place while nobody waits. What became of each.

        `after` is with workers, or in line. `Failed`: nothing was made, or it is not known whether it was.
        """
        view = await self.workers.view()
        return await self._changes.make([(new, _OneLook(self, view).deciding) for new in news])

    async def _aside(self, full: Sequence[tuple[str, _OneLook]]) -> list[Placed]:
        """Let jobs whose topic is full stand aside, together, or else they would be found again and again."""
        ends = await self.change_all([(job, look.waiting) for job, look in full]) if full else ()
        return [
            Placed.ASIDE if isinstance(end, Changed) and end.after is not None else Placed.TOPIC_FULL for end in ends
        ]

    async def _still_full(self, job_id: str, look: _OneLook, full: _Full) -> Placed | RetryLater:
        try:
            return await self._full(job_id, look, full, timeout=0.0)
        except RetryLater as later:
            return later

    async def _full(self, job_id: str, look: _OneLook, full: _Full, *, timeout: float | None) -> Placed:
        """It waits in line, where the dispatcher of the pool that serves its topic finds it when its turn has come."""
        of_topic = isinstance(full, TopicFull)
        if look.timed or look.moves or of_topic:
            changed = await self.change(job_id, look.waiting, timeout=timeout)
            if changed.after is not None and (look.moves or of_topic):
                return Placed.MOVED if look.moves else Placed.ASIDE
        if of_topic:
            return Placed.TOPIC_FULL
        return Placed.TENANT_FULL if isinstance(full, TenantFull) else Placed.POOL_FULL

    def _noted(self, placed: Placed, changed: Changed) -> Placed:
        if placed is Placed.DISPATCHED and changed.after is not None:
            self.pace.sent(changed.after.pool, changed.after.topic)
        return placed

    async def take_back(self, pool: str, most: int) -> int:
        """Put jobs that were sent to a pool a while ago, and that nobody there has begun, back in line. How many.

        They cost no attempt. A worker that gets the message after all asks whether it is still wanted. Of some it may
        be too early to say whether somebody has begun them (`unbegun`): they are left for the next time.
        """
        until_ns = self.store.clock.now().wall - UNBEGUN_NS
        unbegun = await self.unbegun.find(pool, most, until_ns)

        def back(job: Job) -> Writing | None:
            if job.state is not JobState.DISPATCHED or job.pool != pool or job.updated_ns > until_ns:
                return None
            reason = "taken back: nobody has begun it, and its pool has more to do than it has places"
            code = str(Code.TAKEN_BACK)
            place_ns = min(0, job.not_before_ns)  # in the line that it came from
            change = Change(
                JobState.RETRYING, reason=reason, code=code, not_before_ns=place_ns, actor=self.actor, taken_back=True
            )
            return Writing([change])

        ends = await self.change_all([(job, lambda _: back) for job in unbegun])
        return sum(isinstance(end, Changed) and end.after is not None for end in ends)

    async def line_up(self, job_id: str) -> None:
        """Let a job that came back from a worker stand in line now, if it still waits for its time. Only a favour."""
        view = await self.workers.view()

        def now(job: Job) -> Writing | None:
            waits = job.state is JobState.RETRYING and job.code == Code.TAKEN_BACK and job.not_before_ns > 0
            return Writing(not_before_ns=_line_ns(view, job.pool, job.topic)) if waits else None

        with contextlib.suppress(RetryLater):
            changed = await self.change(job_id, lambda _: now, timeout=0.0)
            if changed.after is not None:
                self.store.slots.freed(changed.after.pool)

    async def change(self, job_id: str, deciding: Deciding, *, timeout: float | None = None) -> Changed:
        """Change a job under its lock, as every handler of this scheduler does; see `lockedchanges`."""
        return await self._changes.change(job_id, deciding, timeout=timeout)

    async def change_all(self, wanted: Sequence[tuple[str, Deciding]]) -> list[Changed | Failed]:
        """The same for jobs that differ, without waiting for their locks. What became of each."""
        return await self._changes.try_all(wanted, coming=False)

    @property
    def delays(self) -> RetryDelays:
        """For how long work is given back."""
        return self._changes.delays

    def use_delays(self, delays: RetryDelays) -> None:
        """Switch them, at once: jitter on, or off again."""
        self._changes.delays = delays

    def capacity(self, view: View, pool: str) -> int:
        """How many jobs the workers of a pool may have between them: those that they can run, or some more."""
        found = view.pool(pool)
        return found.capacity + self.pace.ahead(pool, found.capacity, self.store.clock.now().mono)

    def topic_places(self, view: View, pool: str) -> dict[str, int]:
        """The same for those topics of which they can run fewer at once than of others."""
        now_ns = self.store.clock.now().mono
        return {
            topic: places + self.pace.ahead(pool, places, now_ns) for topic, places in view.pool(pool).places.items()
        }

    async def redispatch(self, job_id: str, *, run_fence: int | None = None, timeout: float | None = None) -> bool:
        """Send the attempt of a job that no worker has begun once more, under a newer fence; False: it has moved on.

        For a message that was lost. The attempt is the same, and so is its time limit. If the first message turns up
        after all, the workers' own lease keeps the two apart. `run_fence`: of a run that nobody is at any more, and of
        which nothing more will be heard; then that is what is sent once more, if it is still the newest.
        """

        def again(fence: CarriedFence, job: Job) -> Writing | None:
            if run_fence is not None and (job.state, job.run_fence) != (JobState.RUNNING, run_fence):
                return None
            if run_fence is None and job.state not in (JobState.SCHEDULED, JobState.DISPATCHED):
                return None
            changes = [Change(JobState.DISPATCHED, actor=self.actor)] if job.state is JobState.SCHEDULED else []
            return Writing(changes, lambda after: [subjects.dispatched(after, fence)])

        changed = await self.change(job_id, lambda fence: partial(again, fence), timeout=timeout)
        return changed.after is not None

    def knows(self, view: View, job: Job, now_ns: int) -> bool:
        """Whether the topic of a job has ever been announced, or may be any moment."""
        return job.topic in view.known_topics or now_ns < self.topic_due_ns(job)

    def topic_due_ns(self, job: Job) -> int:
        """When a job whose topic nobody has announced is given up."""
        return job.created_ns + self._topic_grace_ns


class _OneLook:
    """The decision about one job: computed inside the transaction, perhaps more than once."""

    def __init__(self, placement: Placement, view: View) -> None:
        store = placement.store
        self._placement = placement
        self._view = view
        self.timed = False  # it has a time of its own, and does not wait in line
        self.moves = False  # workers of another pool take its topic, and none of its own
        self._pool = ""  # where they are
        self._line_ns = 0  # in which line it waits there
        self._now_ns = store.clock.now().wall
        self._jitter = store.entropy.below(NO_WORKER_SPREAD_NS)
        self._decided: Nothing | Dispatch | Later | End = Nothing("not looked at")

    def deciding(self, fence: CarriedFence) -> Callable[[Job], Writing | None]:
        """The decision under a fence."""
        return partial(self._decide, fence)

    def _decide(self, fence: CarriedFence, job: Job) -> Writing | None:
        now_ns, view, placement = self._now_ns, self._view, self._placement
        self.timed = job.not_before_ns > 0
        # A job may have come before the first worker that announced its topic, and that may be in another pool. One
        # whose pool was asked for waits for a worker there, whoever else would take it.
        stays = job.state in WITH_WORKERS or subjects.POOL_LABEL in job.labels
        pool = self._pool = job.pool if stays else view.pool_for(job.topic, job.pool)
        self.moves = pool != job.pool
        self._line_ns = _line_ns(view, pool, job.topic)
        self._decided = decided = decide(
            look_of(job),
            now_ns=now_ns,
            known_topic=placement.knows(view, job, now_ns),
            live_workers=view.pool(pool).workers_for(job.topic),
            looks=min(job.version - 1, _LOOKS_MAX),
            jitter=self._jitter,
        )
        if isinstance(decided, Dispatch):
            actor = placement.actor
            there = job.state in WITH_WORKERS  # and has its place
            line_ns = min(0, job.not_before_ns) if there else self._line_ns
            sent = Change(JobState.DISPATCHED, not_before_ns=line_ns, actor=actor)
            changes = [Change(JobState.SCHEDULED, pool=pool, actor=actor), sent]
            capacity = None if there else placement.capacity(view, pool)
            places = placement.topic_places(view, pool)[job.topic] if line_ns and not there else None
            return Writing(
                changes, lambda after: [subjects.dispatched(after, fence)], capacity=capacity, topic_places=places
            )
        if isinstance(decided, End):
            return ending(job, decided, fence, actor=placement.actor)
        return self._later(job, decided) if isinstance(decided, Later) else None

    def waiting(self, _: CarriedFence) -> Callable[[Job], Writing | None]:
        """The decision that it waits, which is the same under every fence."""
        return self.in_line

    def in_line(self, job: Job) -> Writing | None:
        """The decision that a job which found no place waits in line from now on, of the pool that serves its topic."""
        aside = self._line_ns < 0 <= job.not_before_ns
        if job.state not in _WAITING or not (self.timed or self.moves or aside):
            return None
        return Writing(not_before_ns=self._line_ns, pool=self._pool)

    def placed(self, changed: Changed) -> Placed:
        """What became of it."""
        if changed.before is None:
            return Placed.MISSING
        if isinstance(self._decided, Dispatch):
            return Placed.DISPATCHED
        if isinstance(self._decided, End):
            return Placed.ENDED
        if isinstance(self._decided, Later):
            return Placed.NOT_YET if self._decided.code is Code.NOT_YET else Placed.NO_WORKER
        return Placed.NOTHING

    def _later(self, job: Job, later: Later) -> Writing | None:
        """Where a job waits that cannot go now.

        For its time: out of the line, with a message that comes then. For the first worker of its pool: in line, where
        nobody is in its way, and whoever comes finds it. For a worker that takes its topic, in a pool that is at work:
        out of the line again, or it would stand at the head of it for ever and block its tenant.
        """
        if later.code is Code.NOT_YET:
            return Writing(tell=[_look_again(job, job.not_before_ns)])
        known = job.topic in self._view.known_topics
        due_ns = self._placement.topic_due_ns(job)
        if self._view.pool(job.pool).workers == 0:
            return self.in_line(job) if known else Writing(tell=[_look_again(job, due_ns)], not_before_ns=0)
        at_ns = self._now_ns + later.delay_ns
        at_ns = at_ns if known else min(at_ns, due_ns)
        return Writing(tell=[_look_again(job, at_ns)], not_before_ns=at_ns)


def _line_ns(view: View, pool: str, topic: str) -> int:
    """The `not_before_ns` of a job that waits for nothing but a place."""
    return ASIDE_NS if topic in view.pool(pool).places else 0


def _look_again(job: Job, at_ns: int) -> Message:
    """A message that comes when a job should be looked at again; its version makes each of them another message."""
    return replace(subjects.submitted(job.id, again=f"{at_ns}:{job.version}"), not_before_ns=at_ns)
