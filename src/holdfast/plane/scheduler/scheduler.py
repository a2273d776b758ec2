"""The scheduler: what it does with each message about a job. Any number of them may run at once.

Promises: every write happens under the job's lock, with its fence, in one transaction with the messages that tell of
it. A message that was handled twice, late or out of order changes nothing the second time, and is counted. What cannot
be handled now is given back with a delay: contention and trouble with a store are two classes and use up no budget. A
job ends once. When it stops, nothing that was not handled is acknowledged.

A new job that somebody can run stands in line, and the dispatcher takes turns between tenants (`dispatcher`). One that
has to wait for its time, or for a worker who knows its topic, comes as a message, as does a job that is tried again. It
goes straight to the workers if there is room and nobody waits; if others wait it stands in line too, and its handler
takes no lock at all, so that a long line costs its newcomers next to nothing. Messages that come together are
handled in one transaction (`lockedchanges`). Of a very short attempt only the end is heard of, and its start is written
with that: RUNNING is in the history of the job, and was never the state of its row.

Clock: the wall clock, for time limits only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from holdfast.core import backoff
from holdfast.errors import BackendError, BadInput, LockBusy, RetryLater, RowMissing, Unavailable
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.db.batcher import Failed
from holdfast.plane.db.ports import Bus, Consumer, Consumption, Handler
from holdfast.plane.jobs.locked_updates import Deciding
from holdfast.plane.jobs.rules import (
    NO_WORKER_SPREAD_NS,
    Again,
    Attempt,
    Code,
    End,
    Ended,
    Standing,
    Word,
    after_attempt,
    elsewhere_ns,
    standing,
    standing_of_start,
)
from holdfast.plane.jobs.store import Changed, JobStore, Writing
from holdfast.plane.jobs.termination import ending, look_of, stop_for
from holdfast.plane.locks.registry import WORKER_JOB
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import InvalidTransition, JobQueue, JobState
from holdfast.plane.model.records import (
    ID_CHARS_MAX,
    TIME_MAX,
    Change,
    Delivery,
    Job,
    Message,
    check_id,
    check_text,
    check_whole,
)
from holdfast.plane.scheduler.dispatcher import Dispatcher
from holdfast.plane.scheduler.placement import Placed, Placement
from holdfast.plane.scheduler.returned_jobs import Parking
from holdfast.plane.scheduler.takeover_latency import TakeoverTimes
from holdfast.plane.worker.result_batcher import split
from holdfast.types import Duration, duration_ns

RETRY_BACKOFF: Final = backoff.exponential(base=1.0, cap=60.0)
CONCURRENCY: Final = 128
REASON_CHARS_MAX: Final = 1000
_STOPPING_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says about an attempt."""

    job: str
    made_ns: int  # when the job was made of which it speaks; 0: it does not say so
    attempt: int
    worker: str
    run: CarriedFence
    body: Mapping[str, Any]


def report_of(message: Message) -> Report:
    """Read a worker's message, or `BadInput`: then it will never be understood."""
    body = message.body
    job = check_id("job", body.get("job"))
    run = message.fence
    if run is None or not WORKER_JOB.names(run.key, job=job):
        raise BadInput("fence", f"{message.id} does not carry the fence of a lease on job {job}", "say it under one")
    attempt = check_whole("attempt", body.get("attempt"), 0, 2**31)
    made_ns = check_whole("made_ns", body.get("made_ns", 0), 0, TIME_MAX)
    return Report(job, made_ns, attempt, check_id("worker", body.get("worker")), run, body)


def ended_of(body: Mapping[str, Any]) -> Ended:
    """How an attempt ended, from a worker's words, or `BadInput`."""
    status = body.get("status")
    if status not in ("succeeded", "failed", "quarantined", "returned"):
        fix = "use succeeded, failed, quarantined or returned"
        raise BadInput("status", f"{status!r:.60} is not the end of an attempt", fix)
    error = body.get("error")
    delay_ns = body.get("retry_after_ns")
    return Ended(
        ok=status == "succeeded",
        error=None if error is None else str(error)[:REASON_CHARS_MAX],
        retryable=bool(body.get("retryable", True)),
        retry_after_ns=None if delay_ns is None else check_whole("retry_after_ns", delay_ns, 0, 2**62),
        begun=status != "returned",
        lost=status == "failed" and body.get("code") == Code.LOST,
        quarantined=status == "quarantined",
    )


class Scheduler:
    """One scheduler. `serving` runs it; the handlers can also be called one by one."""

    def __init__(
        self,
        placement: Placement,
        bus: Bus,
        *,
        dispatcher: Dispatcher | None = None,
        retry: backoff.Backoff = RETRY_BACKOFF,
    ) -> None:
        self.placement = placement
        self.dispatcher = dispatcher or Dispatcher(placement)
        self._store: JobStore = placement.store
        self._bus = bus
        self._retry = retry
        self._stopping = False
        self._parking = Parking()
        self._consumers: list[Consumer] = []
        self.tally: Counter[str] = Counter()
        self.takeovers = TakeoverTimes(self._store.clock, placement.family.ttl)

    @property
    def handlers(self) -> dict[str, Handler]:
        """What is called for each subject."""
        return {
            subjects.SUBMIT: self._guarded(self.on_submit),
            subjects.STARTED: self._guarded(self.on_started),
            subjects.RESULT: self._guarded(self.on_result),
            subjects.CANCEL: self._guarded(self.on_cancel),
        }

    @asynccontextmanager
    async def serving(
        self, *, concurrency: int = CONCURRENCY, ack_wait: Duration | None = None
    ) -> AsyncIterator[Scheduler]:
        """Handle messages while the block runs. Leaving it takes no more, lets handlers finish, gives back the rest.

        `ack_wait`: how long after our last sign of life another scheduler gets a message that we died with. Half of the
        lock's time by default, so that the lock decides how soon a job is taken over, and not the message.
        """
        wait_ns = duration_ns("ack_wait", self.placement.family.ttl / 2 if ack_wait is None else ack_wait)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.dispatcher.running())
            for subject, handler in self.handlers.items():
                how = Consumption(
                    subject, subjects.SCHEDULER, concurrency=concurrency, ack_wait_ns=wait_ns, lasting=False
                )
                self._consumers.append(await stack.enter_async_context(self._bus.consume(how, handler)))
            try:
                yield self
            finally:
                self.stop()

    @property
    def handling(self) -> int:
        """How many messages are being handled now."""
        return sum(each.handling for each in self._consumers)

    def stop(self) -> None:
        """Begin nothing any more. Deliveries from now on are given back, for another scheduler to take."""
        self._stopping = True

    def statistics(self) -> dict[str, int]:
        """What became of messages, by subject and outcome; and second ends, of which there should be none."""
        return {**self.tally, "duplicate_ends": self._store.duplicate_ends}

    # The handlers.

    async def on_submit(self, delivery: Delivery) -> None:
        """A job was accepted, or is to be looked at again."""
        job_id = check_id("job", delivery.message.body.get("job"))
        if self.dispatcher.any_crowded:
            job = await self._store.get(job_id)
            if job is not None and job.queue is JobQueue.POOL and self.dispatcher.crowded(job.pool):
                self.dispatcher.wake(job.pool)
                self._count(subjects.SUBMIT, "in_line")
                return
        placed = await self.placement.place(job_id)
        if placed is Placed.NO_WORKER and await self._served_meanwhile(job_id):
            placed = await self.placement.place(job_id)
        if placed in (Placed.POOL_FULL, Placed.TENANT_FULL, Placed.ASIDE):
            job = await self._store.get(job_id)
            if job is not None:
                if placed is Placed.POOL_FULL:
                    self.dispatcher.crowd(job.pool)
                # A place may have become free between the look and this note of it.
                self.dispatcher.wake(job.pool)
        self._count(subjects.SUBMIT, placed)

    async def _served_meanwhile(self, job_id: str) -> bool:
        """Whether a worker has announced the topic of a job while that was put into the queue of the topic.

        If not, the dispatcher finds the job there: it looks when a topic is announced, which is after this.
        """
        job = await self._store.get(job_id)
        return job is not None and bool((await self.placement.workers.view()).serving(job.topic))

    async def on_started(self, delivery: Delivery) -> None:
        """A worker has begun an attempt. If that is not the one that is wanted, it is told to stop."""
        said = report_of(delivery.message)

        def begin(job: Job) -> Writing | None:
            if standing_of_start(_attempt(job), _word(said)) is not Standing.CURRENT:
                return None
            return Writing([_running(said)])

        job = (await self.placement.change(said.job, lambda _: begin)).before
        if job is None:
            self._count(subjects.STARTED, Placed.MISSING)
            return
        worth = standing_of_start(_attempt(job), _word(said))
        self._count(subjects.STARTED, worth)
        if worth in (Standing.STALE, Standing.OVER) and job.run_fence != said.run.fence:
            why = "the job is over" if worth is Standing.OVER else "another attempt has taken over"
            await self._bus.publish([stop_for(job, said.worker, said.attempt, said.run.fence, why)])

    async def on_result(self, delivery: Delivery) -> None:
        """A worker has finished an attempt, or several at the same time."""
        messages = split(delivery.message)
        said = [report_of(each) for each in messages]
        wanted = [(each.job, await self._ruling(each)) for each in said]
        if len(wanted) == 1:
            await self._heard(said[0], await self.placement.change(*wanted[0]))
            return
        alone: list[Message] = []
        later: RetryLater | None = None
        for message, each, end in zip(messages, said, await self.placement.change_all(wanted), strict=True):
            if not isinstance(end, Failed):
                await self._heard(each, end)
                continue
            alone.append(message)
            if later is None and isinstance(end.error, RetryLater):
                later = end.error
        if later is not None and len(alone) == len(messages):
            raise later  # mostly trouble with a store, which is no reason for more messages: they come again together
        if alone:  # each has its own delays, and its own budget, from here on
            self.tally[f"{subjects.RESULT}.alone"] += len(alone)
            await self._bus.publish(alone)

    async def _ruling(self, said: Report) -> Deciding:
        """What becomes of a job whose worker has said this. `BadInput` if it makes no sense."""
        ended = ended_of(said.body)
        # Read before the lock is held: earlier attempts ended before this one began, so their number is settled.
        postponed = 0 if ended.ok or not ended.begun else await self._store.postponed(said.job)
        now_ns = self._store.clock.now().wall
        chance = self._store.entropy.below(1 << 32)  # drawn once, so that the decision only computes

        def decide(fence: CarriedFence, job: Job) -> Writing | None:
            if standing(_attempt(job), _word(said)) is not Standing.CURRENT:
                return None
            backoff_ns = self._backoff_ns(job, ended, postponed, chance)
            look = look_of(job)
            meaning = after_attempt(look, ended, now_ns=now_ns, backoff_ns=backoff_ns, postponed=postponed)
            writing = self._after(job, meaning, said, fence, now_ns)
            if job.state is JobState.RUNNING or not ended.begun:
                return writing
            # Its start was not heard of, as that of a very short attempt is not, and must have been.
            return replace(writing, changes=[_running(said), *writing.changes])

        return lambda fence: partial(decide, fence)

    def _backoff_ns(self, job: Job, ended: Ended, postponed: int, chance: int) -> int:
        """How long to wait before another attempt, if there is one. `chance` is a draw of 32 bits."""
        if not ended.begun:
            return elsewhere_ns(job.version - 1, chance * NO_WORKER_SPREAD_NS >> 32)
        return self._retry.delay_ns(max(0, job.attempt - postponed - 1), 0, lambda n: chance * n >> 32)

    async def _heard(self, said: Report, changed: Changed) -> None:
        before, after = changed.before, changed.after
        worth = Placed.MISSING if before is None else standing(_attempt(before), _word(said))
        self._count(subjects.RESULT, worth)
        if before is not None and after is not None:
            if after.code == Code.TAKEN_BACK:
                self._parking.came_back(before.pool, before.topic, before.id)
            elif (waiting := self._parking.next(before.pool, before.topic)) is not None:
                await self.placement.line_up(waiting)
        if before is not None:
            self.placement.pace.heard(before.pool, before.topic, _took_ns(said.body), self._store.clock.now().mono)

    async def on_cancel(self, delivery: Delivery) -> None:
        """Somebody wants a job to end. One that is over stays as it is."""
        body = delivery.message.body
        job_id = check_id("job", body.get("job"))
        actor = check_text("actor", body.get("actor"), ID_CHARS_MAX)
        reason = str(body.get("reason") or "cancelled")[:REASON_CHARS_MAX]
        made_ns = check_whole("made_ns", body.get("made_ns", 0), 0, TIME_MAX)
        run, tenant = body.get("run"), body.get("tenant")  # given when a run stops its own job

        def cancel(fence: CarriedFence, job: Job) -> Writing | None:
            if job.state.terminal or made_ns not in (0, job.created_ns):
                return None
            if run is not None and (job.labels.get(subjects.RUN_LABEL), job.tenant) != (run, tenant):
                return None
            end = End(JobState.CANCELLED, Code.CANCELLED, reason, dead=False)
            return ending(job, end, fence, actor=actor)

        changed = await self.placement.change(job_id, lambda fence: partial(cancel, fence))
        over = "missing" if changed.before is None else "over"
        self._count(subjects.CANCEL, over if changed.after is None else "cancelled")

    def _after(self, job: Job, meaning: End | Again, said: Report, fence: CarriedFence, now_ns: int) -> Writing:
        if isinstance(meaning, End):
            result = said.body.get("result") if meaning.state is JobState.SUCCEEDED else None
            return ending(
                job, meaning, fence, actor=said.worker, result=result, worker=said.worker, run_fence=said.run.fence
            )
        at_ns = now_ns + meaning.delay_ns
        why = Code.TAKEN_BACK if meaning.taken_back else Code.POSTPONED if meaning.postponed else Code.WORKER_ERROR
        change = Change(
            JobState.RETRYING,
            reason=meaning.reason,
            code=str(why),
            worker=said.worker,
            run_fence=said.run.fence,
            not_before_ns=at_ns,
            actor=said.worker,
            taken_back=meaning.taken_back,
        )

        def again(after: Job) -> Sequence[Message]:
            look = subjects.submitted(after.id, again=f"attempt:{after.created_ns}:{after.attempt}:{after.version}")
            return [replace(look, not_before_ns=at_ns)]

        return Writing([change], again)

    # What all handlers share.

    def _guarded(self, handler: Callable[[Delivery], Awaitable[None]]) -> Handler:
        async def handle(delivery: Delivery) -> None:
            if self._stopping:
                self.tally["stopping"] += 1
                raise RetryLater(_STOPPING_S, Unavailable("this scheduler is stopping"))
            message = delivery.message
            try:
                await handler(delivery)
                self.takeovers.handled(message.id)
            except RetryLater as later:
                if isinstance(later.__cause__, LockBusy):
                    self.takeovers.busy(message.id, later.__cause__)
                else:
                    self.takeovers.unknown(message.id)
                raise
            except (InvalidTransition, RowMissing) as refused:
                # Trying again would be refused again: it is noted, and done with.
                self._count(message.subject, type(refused).__name__)
            except BackendError as error:
                raise self.placement.delays.later(error, self._store.entropy.below) from error

        return handle

    def _count(self, subject: str, outcome: str) -> None:
        self.tally[f"{subject}.{outcome}"] += 1


def _took_ns(body: Mapping[str, Any]) -> int | None:
    """How long an attempt took, if its worker says so in a way that makes sense."""
    took_ns = body.get("took_ns")
    return took_ns if type(took_ns) is int else None


def _running(said: Report) -> Change:
    return Change(JobState.RUNNING, worker=said.worker, run_fence=said.run.fence, actor=said.worker)


def _attempt(job: Job) -> Attempt:
    return Attempt(job.state, job.attempt, job.run_fence, job.created_ns)


def _word(said: Report) -> Word:
    return Word(said.attempt, said.run.fence, said.made_ns)
