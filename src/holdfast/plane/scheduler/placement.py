"""One look at one job that waits: it is handed to the workers of its pool, sent away for a while, or ended.

Promises: the state and the message to the workers are one transaction, under the job's lock and fence; so a job is
never marked as dispatched without its message, nor sent without being marked, and there is nothing to roll back. A
second look at the same job changes nothing. A job that cannot go now is left where the next look will find it:

- In line, if it waits for a place, and in that of the pool whose workers take its topic.
- In the queue of its topic (`topicplaces`), if it waits for a slot of that, or for a worker that serves it.
- With a delayed message, if it waits for a time.

Clock: the wall clock, for time limits only.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeAlias

from holdfast.aio import batch as many
from holdfast.aio.client import Locks
from holdfast.core.retry_delays import AnyDelays
from holdfast.errors import RetryLater
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.db.batcher import Failed
from holdfast.plane.db.bulk import script
from holdfast.plane.db.ports import Row, Tx
from holdfast.plane.fleet.registry import View, Workers
from holdfast.plane.jobs.insert import New
from holdfast.plane.jobs.locked_updates import Deciding, LockedChanges
from holdfast.plane.jobs.quotas import PoolFull, TenantFull
from holdfast.plane.jobs.rules import Code, Dispatch, End, Later, Nothing, decide
from holdfast.plane.jobs.store import Changed, JobStore, Writing
from holdfast.plane.jobs.termination import ending, look_of
from holdfast.plane.jobs.topic_limits import TopicFull
from holdfast.plane.locks.job_lock import JobLockStatistics
from holdfast.plane.locks.registry import RETRY_DELAYS, SCHEDULER_JOB, LockFamily
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import WITH_WORKERS, JobQueue, JobState
from holdfast.plane.model.records import Change, Job, Message
from holdfast.plane.scheduler.prefetch import UNBEGUN_NS, Pace, Unbegun

_WAITING: Final = frozenset({JobState.PENDING, JobState.RETRYING})
_Full: TypeAlias = TenantFull | PoolFull | TopicFull
_ADOPTED: Final = 256  # jobs of a topic that are moved at once


class Placed(StrEnum):
    """What became of a look."""

    DISPATCHED = "dispatched"
    POOL_FULL = "pool_full"  # it waits in line
    TENANT_FULL = "tenant_full"  # it waits in line
    TOPIC_FULL = "topic_full"  # it waits aside
    ASIDE = "aside"  # there is no place of its topic; it waits aside from now on
    MOVED = "moved"  # there is no place for it; it waits in the line of another pool, which serves its topic now
    NO_WORKER = "no_worker"  # no live worker serves its topic; it waits in the queue of that
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
        delays: AnyDelays = RETRY_DELAYS,
        topic_grace_ns: int | None = None,
        actor: str = "scheduler",
        family: LockFamily = SCHEDULER_JOB,
    ) -> None:
        """`topic_grace_ns`: how long a job may wait for the first worker that announces its topic; None: forever.

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

    async def take_back(self, pool: str, most: int, topic: str | None = None) -> int:
        """Put jobs that were sent to a pool a while ago, and that nobody there has begun, back in line. How many.

        `topic`: only jobs of this one.
        They cost no attempt. A worker that gets the message after all asks whether it is still wanted. Of some it may
        be too early to say whether somebody has begun them (`unbegun`): they are left for the next time.
        """
        until_ns = self.store.clock.now().wall - UNBEGUN_NS
        unbegun = await self.unbegun.find(pool, most, until_ns, topic)
        view = await self.workers.view()

        def back(job: Job) -> Writing | None:
            if job.state is not JobState.DISPATCHED or job.pool != pool or job.updated_ns > until_ns:
                return None
            reason = "taken back: no worker has begun it, and its workers have more to do than they have slots"
            code = str(Code.TAKEN_BACK)
            queue = _queue(view, pool, job.topic)
            change = Change(JobState.RETRYING, reason=reason, code=code, queue=queue, actor=self.actor, taken_back=True)
            return Writing([change])

        ends = await self.change_all([(job, lambda _: back) for job in unbegun])
        return sum(isinstance(end, Changed) and end.after is not None for end in ends)

    async def line_up(self, job_id: str) -> None:
        """Let a job that came back from a worker stand in line now, if it still waits for its time. Only a favour."""
        view = await self.workers.view()

        def now(job: Job) -> Writing | None:
            waits = job.state is JobState.RETRYING and job.code == Code.TAKEN_BACK and job.queue is JobQueue.DELAYED
            return Writing(queue=_queue(view, job.pool, job.topic)) if waits else None

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
    def delays(self) -> AnyDelays:
        """For how long work is given back."""
        return self._changes.delays

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
            return Writing(changes, lambda after: [_message(view, after, fence)])

        view = await self.workers.view()
        changed = await self.change(job_id, lambda fence: partial(again, fence), timeout=timeout)
        return changed.after is not None

    async def adopt(self, topic: str) -> int:
        """Move jobs that wait for a topic in pools that do not serve it to a pool that does. How many moved or went.

        For a topic that is served from now on. Jobs whose pool was asked for stay where they are.
        """
        moved, after = 0, ""
        while True:  # ends with the jobs: each page begins after the last
            serving = (await self.workers.view()).serving(topic)
            values = {"topic": topic, "pools": json.dumps(serving), "after": after, "most": _ADOPTED}
            jobs = [row["id"] for row in await self.store.database.read(partial(_elsewhere, values), lasting=False)]
            if serving and jobs:
                ends = await self.try_all(jobs)
                moved += sum(end in (Placed.MOVED, Placed.DISPATCHED, Placed.ASIDE) for end in ends)
                for pool in serving:
                    self.store.slots.freed(pool)
            if not serving or len(jobs) < _ADOPTED:
                return moved
            after = jobs[-1]

    def knows(self, view: View, job: Job, now_ns: int) -> bool:
        """Whether a job may go on waiting for its topic: it has been announced, or there is time for that."""
        due_ns = self.topic_due_ns(job)
        return due_ns is None or job.topic in view.known_topics or now_ns < due_ns

    def topic_due_ns(self, job: Job) -> int | None:
        """When a job whose topic no worker has announced fails; None: never."""
        return None if self._topic_grace_ns is None else job.created_ns + self._topic_grace_ns


class _OneLook:
    """The decision about one job: computed inside the transaction, perhaps more than once."""

    def __init__(self, placement: Placement, view: View) -> None:
        store = placement.store
        self._placement = placement
        self._view = view
        self.timed = False  # it has a time of its own, and does not wait in line
        self.moves = False  # workers of another pool take its topic, and none of its own
        self._pool = ""  # where they are
        self._queue = JobQueue.POOL  # in which queue it waits there
        self._now_ns = store.clock.now().wall
        self._decided: Nothing | Dispatch | Later | End = Nothing("not looked at")

    def deciding(self, fence: CarriedFence) -> Callable[[Job], Writing | None]:
        """The decision under a fence."""
        return partial(self._decide, fence)

    def _decide(self, fence: CarriedFence, job: Job) -> Writing | None:
        now_ns, view, placement = self._now_ns, self._view, self._placement
        self.timed = job.queue is JobQueue.DELAYED
        # A job may have come before the first worker that announced its topic, and that may be in another pool. One
        # whose pool was asked for waits for a worker there, whoever else would take it.
        stays = job.state in WITH_WORKERS or subjects.POOL_LABEL in job.labels
        pool = self._pool = job.pool if stays else view.pool_for(job.topic, job.pool)
        self.moves = pool != job.pool
        self._queue = _queue(view, pool, job.topic)
        self._decided = decided = decide(
            look_of(job),
            now_ns=now_ns,
            known_topic=placement.knows(view, job, now_ns),
            live_workers=view.pool(pool).workers_for(job.topic),
        )
        if isinstance(decided, Dispatch):
            actor = placement.actor
            there = job.state in WITH_WORKERS  # and has its place
            queue = self._queue
            if there:
                queue = JobQueue.TOPIC if job.queue is JobQueue.TOPIC else JobQueue.POOL
            sent = Change(JobState.DISPATCHED, queue=queue, actor=actor)
            changes = [Change(JobState.SCHEDULED, pool=pool, actor=actor), sent]
            capacity = None if there else placement.capacity(view, pool)
            scarce = queue is JobQueue.TOPIC and not there
            places = placement.topic_places(view, pool)[job.topic] if scarce else None
            return Writing(
                changes, lambda after: [_message(view, after, fence)], capacity=capacity, topic_places=places
            )
        if isinstance(decided, End):
            return ending(job, decided, fence, actor=placement.actor)
        return self._later(job, decided) if isinstance(decided, Later) else None

    def waiting(self, _: CarriedFence) -> Callable[[Job], Writing | None]:
        """The decision that it waits, which is the same under every fence."""
        return self.in_line

    def in_line(self, job: Job) -> Writing | None:
        """The decision that a job which found no place waits in line from now on, of the pool that serves its topic."""
        aside = self._queue is JobQueue.TOPIC and job.queue is not JobQueue.TOPIC
        if job.state not in _WAITING or not (self.timed or self.moves or aside):
            return None
        return Writing(queue=self._queue, pool=self._pool)

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

        For its time: in no queue, with a message that comes then. For a worker that serves its topic: in the queue of
        the topic, where it is in no other job's way. Dispatchers look there as soon as the topic is served.
        """
        if later.code is Code.NOT_YET:
            return Writing(not_before_ns=job.not_before_ns, tell=[_look_again(job, job.not_before_ns)])
        writing = self.in_line(job)
        due_ns = self._placement.topic_due_ns(job)
        if due_ns is None or job.topic in self._view.known_topics:
            return writing
        # It fails at that time, unless a worker announces the topic. The message of a job that waits already is there.
        told = writing is None and job.version > 1
        return None if told else replace(writing or Writing(), tell=[_look_again(job, due_ns)])


def _queue(view: View, pool: str, topic: str) -> JobQueue:
    """The queue of a job that waits for nothing but a slot, or for a worker that serves its topic."""
    found = view.pool(pool)
    return JobQueue.TOPIC if topic in found.places or not found.workers_for(topic) else JobQueue.POOL


def _message(view: View, job: Job, fence: CarriedFence) -> Message:
    """The assignment of a job, for the queue that its workers take from."""
    return subjects.dispatched(job, fence, by_topic=job.topic not in view.pool(job.pool).shared)


async def _elsewhere(values: Mapping[str, Any], tx: Tx) -> list[Row]:
    return await tx.query(script("queue_elsewhere", tx.dialect), values)


def _look_again(job: Job, at_ns: int) -> Message:
    """A message that comes when a job should be looked at again; its version makes each of them another message."""
    return replace(subjects.submitted(job.id, again=f"{at_ns}:{job.version}"), not_before_ns=at_ns)
