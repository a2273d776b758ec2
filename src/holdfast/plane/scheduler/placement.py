"""Places one waiting job: dispatches it to the workers of a pool, lets it wait, or ends it.

Promises: the state and the message to the workers are one transaction, under the job's lock and fence; so a job is
never marked as dispatched without its message, nor sent without being marked, and there is nothing to roll back.
Placing a job twice changes nothing. A job that cannot go now waits where it will be found:

- in the queue of the pool whose workers serve its topic, if it waits for a slot of the pool;
- in the queue of its topic (`quotas`), if it waits for a slot of the topic, or for a worker that serves it;
- with a delayed message, if it waits for a time.

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
from holdfast.plane.db.ports import Row, Tx
from holdfast.plane.db.statements import script
from holdfast.plane.fleet.registry import View, Workers
from holdfast.plane.jobs.insert import New
from holdfast.plane.jobs.locked_updates import Deciding, LockedChanges
from holdfast.plane.jobs.quotas import PoolFull, TenantFull, TopicFull
from holdfast.plane.jobs.rules import Dispatch, End, JobCode, Nothing, Wait, decide
from holdfast.plane.jobs.store import Changed, JobStore, Writing
from holdfast.plane.jobs.updates import ending, facts_of
from holdfast.plane.locks.job_lock import JobLockStatistics
from holdfast.plane.locks.registry import RETRY_DELAYS, SCHEDULER_JOB, LockFamily
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import WITH_WORKERS, JobQueue, JobState
from holdfast.plane.model.records import Change, Job, Message
from holdfast.plane.scheduler.prefetch import UNSTARTED_NS, Prefetch, UnstartedJobs

_WAITING: Final = frozenset({JobState.PENDING, JobState.RETRYING})
_Full: TypeAlias = TenantFull | PoolFull | TopicFull
_ADOPTED: Final = 256  # jobs of a topic that are moved in one batch


class PlacementResult(StrEnum):
    """The outcome for one job."""

    DISPATCHED = "dispatched"
    POOL_FULL = "pool_full"  # it waits in the queue of its pool
    TENANT_FULL = "tenant_full"  # the same
    TOPIC_FULL = "topic_full"  # it waits in the queue of its topic
    TOPIC_QUEUED = "aside"  # the topic is full; it was moved to the queue of the topic
    MOVED = "moved"  # no slot is free; it was moved to the queue of another pool, which serves its topic now
    NO_WORKER = "no_worker"  # no live worker serves its topic; it waits in the queue of the topic
    NOT_YET = "not_yet"  # it waits for its time
    ENDED = "ended"
    NOTHING = "nothing"  # it is with a worker, finished, or waits for an approval
    MISSING = "missing"  # there is no such job


_GONE: Final = (PlacementResult.MOVED, PlacementResult.DISPATCHED, PlacementResult.TOPIC_QUEUED)


class Placement:
    """Places jobs for the handlers and the dispatcher of one scheduler."""

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
        prefetch: bool = True,
    ) -> None:
        """`topic_grace_ns`: how long a job may wait for the first worker that announces its topic; None: forever.

        `family`: the job's lock. `prefetch`: see the module of that name.
        """
        self.store = store
        self.locks = locks
        self.workers = workers
        self.actor = actor
        self.lock_statistics = JobLockStatistics()
        self.family = family
        self._changes = LockedChanges(store, locks, family, delays, self.lock_statistics)
        self._topic_grace_ns = topic_grace_ns
        self.prefetch = Prefetch(enabled=prefetch)
        self.unstarted = UnstartedJobs(store)

    async def place(self, job_id: str, *, timeout: float | None = None) -> PlacementResult:
        """Place one job. `RetryLater` if its lock is not acquired within `timeout` (by default two seconds)."""
        decision = _Decision(self, await self.workers.view())
        try:
            changed = await self.change(job_id, decision.deciding, timeout=timeout)
        except (TenantFull, PoolFull, TopicFull) as full:
            return await self._full(job_id, decision, full, timeout=timeout)
        return self._noted(decision.placed(changed), changed)

    async def place_all(self, jobs: Sequence[str]) -> list[PlacementResult | RetryLater]:
        """Place waiting jobs without waiting for their locks. `RetryLater`: its lock is held, or a store has failed."""
        view = await self.workers.view()
        decisions = [_Decision(self, view) for _ in jobs]
        wanted = [(job, decision.deciding) for job, decision in zip(jobs, decisions, strict=True)]
        ends = await self._changes.try_all(wanted, coming=True)
        full = [at for at, end in enumerate(ends) if isinstance(end, Failed) and isinstance(end.error, TopicFull)]
        left = dict(zip(full, await self._move_to_topics([(jobs[at], decisions[at]) for at in full]), strict=True))
        placed: list[PlacementResult | RetryLater] = []
        for at, (job, decision, end) in enumerate(zip(jobs, decisions, ends, strict=True)):
            if at in left:
                placed.append(left[at])
            elif isinstance(end, Changed):
                placed.append(self._noted(decision.placed(end), end))
            elif isinstance(end.error, TenantFull | PoolFull):
                placed.append(await self._still_full(job, decision, end.error))
            elif isinstance(end.error, RetryLater):
                placed.append(end.error)
            else:
                raise end.error
        return placed

    @property
    def can_insert(self) -> bool:
        """Whether a job can be inserted and dispatched in one transaction."""
        return many.takes_many(self.locks)

    async def insert(self, news: Sequence[New]) -> list[Changed | Failed]:
        """Insert jobs, and dispatch those for which a slot is free and no job waits. One answer each.

        `after` is with workers, or waits. `Failed`: the job was not inserted, or the outcome is unknown.
        """
        view = await self.workers.view()
        return await self._changes.make([(new, _Decision(self, view).deciding) for new in news])

    async def _move_to_topics(self, full: Sequence[tuple[str, _Decision]]) -> list[PlacementResult]:
        """Move jobs whose topic is full to the queues of their topics, or they would be found again and again."""
        ends = await self.change_all([(job, decision.waiting) for job, decision in full]) if full else ()
        return [
            PlacementResult.TOPIC_QUEUED
            if isinstance(end, Changed) and end.after is not None
            else PlacementResult.TOPIC_FULL
            for end in ends
        ]

    async def _still_full(self, job_id: str, decision: _Decision, full: _Full) -> PlacementResult | RetryLater:
        try:
            return await self._full(job_id, decision, full, timeout=0.0)
        except RetryLater as later:
            return later

    async def _full(self, job_id: str, decision: _Decision, full: _Full, *, timeout: float | None) -> PlacementResult:
        """Let it wait where the dispatcher of the pool that serves its topic finds it."""
        of_topic = isinstance(full, TopicFull)
        if decision.timed or decision.moves or of_topic:
            changed = await self.change(job_id, decision.waiting, timeout=timeout)
            if changed.after is not None and (decision.moves or of_topic):
                return PlacementResult.MOVED if decision.moves else PlacementResult.TOPIC_QUEUED
        if of_topic:
            return PlacementResult.TOPIC_FULL
        return PlacementResult.TENANT_FULL if isinstance(full, TenantFull) else PlacementResult.POOL_FULL

    def _noted(self, placed: PlacementResult, changed: Changed) -> PlacementResult:
        if placed is PlacementResult.DISPATCHED and changed.after is not None:
            self.prefetch.dispatched(changed.after.pool, changed.after.topic)
        return placed

    async def take_back(self, pool: str, most: int, topic: str | None = None) -> int:
        """Put unstarted jobs that were sent to a pool back into the queue. Returns how many.

        `topic`: only jobs of this one. They lose no attempt. A worker that gets the message after all checks whether
        it is stale. For some it may be too early to know (`UnstartedJobs`): they are left for the next time.
        """
        until_ns = self.store.clock.now().wall - UNSTARTED_NS
        unstarted = await self.unstarted.find(pool, most, until_ns, topic)
        view = await self.workers.view()

        def back(job: Job) -> Writing | None:
            if job.state is not JobState.DISPATCHED or job.pool != pool or job.updated_ns > until_ns:
                return None
            reason = "taken back: no worker has begun it, and its workers have more to do than they have slots"
            code = str(JobCode.TAKEN_BACK)
            queue = _queue(view, pool, job.topic)
            change = Change(JobState.RETRYING, reason=reason, code=code, queue=queue, actor=self.actor, taken_back=True)
            return Writing([change])

        ends = await self.change_all([(job, lambda _: back) for job in unstarted])
        return sum(isinstance(end, Changed) and end.after is not None for end in ends)

    async def enqueue(self, job_id: str) -> None:
        """Put a returned job into the queue now, if it still waits for its time. Best effort."""
        view = await self.workers.view()

        def now(job: Job) -> Writing | None:
            waits = job.state is JobState.RETRYING and job.code == JobCode.TAKEN_BACK and job.queue is JobQueue.DELAYED
            return Writing(queue=_queue(view, job.pool, job.topic)) if waits else None

        with contextlib.suppress(RetryLater):
            changed = await self.change(job_id, lambda _: now, timeout=0.0)
            if changed.after is not None:
                self.store.slots.freed(changed.after.pool)

    async def change(self, job_id: str, deciding: Deciding, *, timeout: float | None = None) -> Changed:
        """Update a job under its lock, as every handler of this scheduler does; see `locked_updates`."""
        return await self._changes.change(job_id, deciding, timeout=timeout)

    async def change_all(self, wanted: Sequence[tuple[str, Deciding]]) -> list[Changed | Failed]:
        """The same for several jobs, without waiting for their locks. One answer each."""
        return await self._changes.try_all(wanted, coming=False)

    @property
    def delays(self) -> AnyDelays:
        """The delays of nacked messages."""
        return self._changes.delays

    def capacity(self, view: View, pool: str) -> int:
        """How many jobs the workers of a pool may have: as many as their slots, or more with prefetch."""
        found = view.pool(pool)
        return found.capacity + self.prefetch.ahead(pool, found.capacity, self.store.clock.now().mono)

    def topic_slots(self, view: View, pool: str) -> dict[str, int]:
        """The same for each topic that has fewer slots than the pool."""
        now_ns = self.store.clock.now().mono
        return {
            topic: slots + self.prefetch.ahead(pool, slots, now_ns) for topic, slots in view.pool(pool).places.items()
        }

    async def redispatch(self, job_id: str, *, run_fence: int | None = None, timeout: float | None = None) -> bool:
        """Send the attempt of an unstarted job again, under a newer fence; False: the job has moved on.

        For a message that was lost. The attempt is the same, and so is its time limit. If the first message arrives
        after all, the workers' own lease separates the two. `run_fence`: of a run whose worker is gone for good; then
        that attempt is sent again, if this run is still the newest.
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
        """Move jobs that wait in pools without workers for a topic to a pool that serves it. Returns how many.

        For a topic that is served from now on. Jobs with a requested pool stay there.
        """
        moved, after = 0, ""
        while True:  # ends with the jobs: each page begins after the last
            serving = (await self.workers.view()).serving(topic)
            values = {"topic": topic, "pools": json.dumps(serving), "after": after, "most": _ADOPTED}
            jobs = [row["id"] for row in await self.store.database.read(partial(_elsewhere, values), lasting=False)]
            if serving and jobs:
                ends = await self.place_all(jobs)
                moved += sum(end in _GONE for end in ends)
                for pool in serving:
                    self.store.slots.freed(pool)
            if not serving or len(jobs) < _ADOPTED:
                return moved
            after = jobs[-1]

    def knows(self, view: View, job: Job, now_ns: int) -> bool:
        """Whether a job may continue waiting: its topic was announced, or there is time for that."""
        due_ns = self.topic_due_ns(job)
        return due_ns is None or job.topic in view.known_topics or now_ns < due_ns

    def topic_due_ns(self, job: Job) -> int | None:
        """When a job fails whose topic no worker has announced; None: never."""
        return None if self._topic_grace_ns is None else job.created_ns + self._topic_grace_ns


class _Decision:
    """The decision about one job: computed in the transaction, perhaps more than once."""

    def __init__(self, placement: Placement, view: View) -> None:
        store = placement.store
        self._placement = placement
        self._view = view
        self.timed = False  # it waits for a time, in no queue
        self.moves = False  # workers of another pool serve its topic, and none of its own
        self._pool = ""  # of these workers
        self._queue = JobQueue.POOL  # which queue it waits in there
        self._now_ns = store.clock.now().wall
        self._decided: Nothing | Dispatch | Wait | End = Nothing("not decided")

    def deciding(self, fence: CarriedFence) -> Callable[[Job], Writing | None]:
        """The decision under a fence."""
        return partial(self._decide, fence)

    def _decide(self, fence: CarriedFence, job: Job) -> Writing | None:
        now_ns, view, placement = self._now_ns, self._view, self._placement
        self.timed = job.queue is JobQueue.DELAYED
        # A job may be older than the first worker that announced its topic, which may be in another pool. A job with
        # a requested pool waits for a worker there.
        stays = job.state in WITH_WORKERS or subjects.POOL_LABEL in job.labels
        pool = self._pool = job.pool if stays else view.pool_for(job.topic, job.pool)
        self.moves = pool != job.pool
        self._queue = _queue(view, pool, job.topic)
        self._decided = decided = decide(
            facts_of(job),
            now_ns=now_ns,
            known_topic=placement.knows(view, job, now_ns),
            live_workers=view.pool(pool).workers_for(job.topic),
        )
        if isinstance(decided, Dispatch):
            actor = placement.actor
            there = job.state in WITH_WORKERS  # and has its slot
            queue = self._queue
            if there:
                queue = JobQueue.TOPIC if job.queue is JobQueue.TOPIC else JobQueue.POOL
            sent = Change(JobState.DISPATCHED, queue=queue, actor=actor)
            changes = [Change(JobState.SCHEDULED, pool=pool, actor=actor), sent]
            capacity = None if there else placement.capacity(view, pool)
            limited = queue is JobQueue.TOPIC and not there
            slots = placement.topic_slots(view, pool)[job.topic] if limited else None
            return Writing(changes, lambda after: [_message(view, after, fence)], capacity=capacity, topic_places=slots)
        if isinstance(decided, End):
            return ending(job, decided, fence, actor=placement.actor)
        return self._later(job, decided) if isinstance(decided, Wait) else None

    def waiting(self, _: CarriedFence) -> Callable[[Job], Writing | None]:
        """The decision to let it wait, which is the same under every fence."""
        return self.as_waiting

    def as_waiting(self, job: Job) -> Writing | None:
        """Let a job without a slot wait in the right queue of the pool that serves its topic."""
        to_topic = self._queue is JobQueue.TOPIC and job.queue is not JobQueue.TOPIC
        if job.state not in _WAITING or not (self.timed or self.moves or to_topic):
            return None
        return Writing(queue=self._queue, pool=self._pool)

    def placed(self, changed: Changed) -> PlacementResult:
        """The outcome."""
        if changed.before is None:
            return PlacementResult.MISSING
        if isinstance(self._decided, Dispatch):
            return PlacementResult.DISPATCHED
        if isinstance(self._decided, End):
            return PlacementResult.ENDED
        if isinstance(self._decided, Wait):
            return PlacementResult.NOT_YET if self._decided.code is JobCode.NOT_YET else PlacementResult.NO_WORKER
        return PlacementResult.NOTHING

    def _later(self, job: Job, later: Wait) -> Writing | None:
        """Let a job wait that cannot go now.

        For its time: in no queue, with a message that is due then. For a worker that serves its topic: in the queue of
        the topic, where it delays no other job. Dispatchers read that queue as soon as the topic is served.
        """
        if later.code is JobCode.NOT_YET:
            return Writing(not_before_ns=job.not_before_ns, messages=[_retry_message(job, job.not_before_ns)])
        writing = self.as_waiting(job)
        due_ns = self._placement.topic_due_ns(job)
        if due_ns is None or job.topic in self._view.known_topics:
            return writing
        # It fails at that time, unless a worker announces the topic. A job that waits already has its message.
        told = writing is None and job.version > 1
        return None if told else replace(writing or Writing(), messages=[_retry_message(job, due_ns)])


def _queue(view: View, pool: str, topic: str) -> JobQueue:
    """The queue of a job that waits for nothing but a slot, or for a worker that serves its topic."""
    found = view.pool(pool)
    return JobQueue.TOPIC if topic in found.places or not found.workers_for(topic) else JobQueue.POOL


def _message(view: View, job: Job, fence: CarriedFence) -> Message:
    """The assignment of a job, for the queue that its workers take from."""
    return subjects.dispatched(job, fence, by_topic=job.topic not in view.pool(job.pool).shared)


async def _elsewhere(values: Mapping[str, Any], tx: Tx) -> list[Row]:
    return await tx.query(script("topic_queue_elsewhere", tx.dialect), values)


def _retry_message(job: Job, at_ns: int) -> Message:
    """A message that is due when the job should be placed again; the version of the job makes its id unique."""
    return replace(subjects.submitted(job.id, again=f"{at_ns}:{job.version}"), not_before_ns=at_ns)
