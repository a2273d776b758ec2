"""The scheduler handles each message about a job. Any number of schedulers may run at the same time.

Promises:

- Every write happens under the job's lock, with its fence, in one transaction with the messages about it.
- A message that is handled twice, late or out of order changes nothing the second time, and is counted.
- A message that cannot be handled now is nacked with a delay. Contention and store failures are two classes, and use up
  no budget.
- A job ends once.
- A scheduler that stops acks nothing that it has not handled.

A new job that can go waits in the queue of its pool (`dispatcher`). A job that waits for a time, or for a worker that
serves its topic, and a job that is retried, comes as a message. It is dispatched if a slot is free and no job waits.
Otherwise it is enqueued, and its handler acquires no lock: a long queue costs new jobs next to nothing. Messages that
come together are handled in one transaction (`locked_updates`). A brief attempt reports only its end; its start is
written with that. So RUNNING is in the history of the job, and was never the state of its row.

Clock: the wall clock, for time limits only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from holdfast.core import backoff
from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.errors import BackendError, BadInput, LockBusy, RetryLater, RowMissing, Unavailable
from holdfast.guards.bearer import CarriedFence, granted
from holdfast.plane.db.ports import Bus, Consumer, Consumption, Handler
from holdfast.plane.jobs.children import CHILDREN_MAX, JobParent, children_of
from holdfast.plane.jobs.locked_updates import Deciding
from holdfast.plane.jobs.rules import (
    NO_WORKER_SPREAD_NS,
    AttemptEnd,
    CurrentAttempt,
    End,
    JobCode,
    ReportedAttempt,
    ReportStanding,
    Retry,
    after_attempt,
    elsewhere_ns,
    standing_of_end,
    standing_of_start,
)
from holdfast.plane.jobs.store import Changed, JobStore, Writing
from holdfast.plane.jobs.updates import ending, facts_of, stop_for
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
from holdfast.plane.scheduler.placement import Placement, PlacementResult
from holdfast.plane.scheduler.takeover_latency import TakeoverLatency
from holdfast.types import Duration, duration_ns

RETRY_BACKOFF: Final = backoff.exponential(base=1.0, cap=60.0)
CONCURRENCY: Final = 128
REASON_CHARS_MAX: Final = 1000
TRACE_CHARS_MAX: Final = 4_000
_STOPPING_S: Final = 0.1
RETURNED_MAX: Final = 1_000  # remembered jobs of each topic
TOPICS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """A worker's report on an attempt."""

    job: str
    made_ns: int  # when the job was created; 0: not reported
    attempt: int
    worker: str
    run: CarriedFence
    body: Mapping[str, Any]


def report_of(message: Message) -> AttemptReport:
    """Read a worker's message, or `BadInput`."""
    body = message.body
    job = check_id("job", body.get("job"))
    run = message.fence
    if run is None or not WORKER_JOB.names(run.key, job=job):
        raise BadInput(
            "fence", f"{message.id} does not carry the fence of a lease on job {job}", "publish it under one"
        )
    attempt = check_whole("attempt", body.get("attempt"), 0, 2**31)
    made_ns = check_whole("made_ns", body.get("made_ns", 0), 0, TIME_MAX)
    return AttemptReport(job, made_ns, attempt, check_id("worker", body.get("worker")), run, body)


def results_in(message: Message) -> list[Message] | None:
    """The results in a message of an older worker, which puts several into one; None: it is a single result.

    `BadInput` if it makes no sense. Each of them has the id and fence that it would have had on its own.
    """
    if "results" not in message.body:
        return None
    results = message.body["results"]
    if not isinstance(results, list) or not results or not all(isinstance(each, dict) for each in results):
        raise BadInput("results", f"{message.id} has none", "send one or more, each a JSON object")
    return [_single(each) for each in results]


def _single(result: Mapping[str, Any]) -> Message:
    # The prefix of the plane does not matter: readers of a result check the rest of its key (`names`).
    job, attempt = check_id("job", result.get("job")), check_whole("attempt", result.get("attempt"), 0, 2**31)
    run = granted(WORKER_JOB.key(job=job), check_whole("fence", result.get("fence"), 1, FENCE_MAX))  # both were checked
    body = {name: value for name, value in result.items() if name != "fence"}
    return Message(f"{subjects.RESULT}:{job}:{attempt}:{run.fence}", subjects.RESULT, body, job, run)


def ended_of(body: Mapping[str, Any]) -> AttemptEnd:
    """How an attempt ended, from a worker's report, or `BadInput`."""
    status = body.get("status")
    if status not in ("succeeded", "failed", "quarantined", "returned"):
        fix = "use succeeded, failed, quarantined or returned"
        raise BadInput("status", f"{status!r:.60} is not the end of an attempt", fix)
    error = body.get("error")
    delay_ns = body.get("retry_after_ns")
    return AttemptEnd(
        ok=status == "succeeded",
        error=None if error is None else str(error)[:REASON_CHARS_MAX],
        retryable=bool(body.get("retryable", True)),
        retry_after_ns=None if delay_ns is None else check_whole("retry_after_ns", delay_ns, 0, 2**62),
        begun=status != "returned",
        lost=status == "failed" and body.get("code") == JobCode.LOST,
        quarantined=status == "quarantined",
    )


def trace_of(body: Mapping[str, Any]) -> str | None:
    """The end of the traceback in a worker's report, which older workers do not send."""
    found = body.get("traceback")
    return found.replace("\0", " ")[-TRACE_CHARS_MAX:] if isinstance(found, str) and found else None


class ReturnedJobs:
    """Jobs that no worker had a slot for, by topic: the first one goes as soon as one of its topic has ended.

    A topic may have fewer slots than its pool, or few workers. A job that came back waits for a time, and for longer
    each time; most slots become free before that. Promises nothing: a job that is forgotten goes at its time.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], deque[str]] = {}

    def add(self, pool: str, topic: str, job: str) -> None:
        """A job waits for a slot of its topic."""
        waiting = self._waiting.get((pool, topic))
        if waiting is None:
            if len(self._waiting) >= TOPICS_MAX:
                self._waiting.pop(next(iter(self._waiting)))  # the oldest
            waiting = self._waiting[pool, topic] = deque(maxlen=RETURNED_MAX)
        waiting.append(job)

    def pop(self, pool: str, topic: str) -> str | None:
        """A slot of a topic is free: the job that has waited longest, which is forgotten; None: there is none."""
        waiting = self._waiting.get((pool, topic))
        if waiting is None:
            return None
        job = waiting.popleft()
        if not waiting:
            del self._waiting[pool, topic]
        return job


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
        self._returned = ReturnedJobs()
        self._consumers: list[Consumer] = []
        self.tally: Counter[str] = Counter()
        self.takeovers = TakeoverLatency(self._store.clock, placement.family.ttl)

    @property
    def handlers(self) -> dict[str, Handler]:
        """The handler of each subject."""
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
        """Handle messages while the block runs. Leaving it fetches no more, lets handlers finish, and nacks the others.

        `ack_wait`: how long after our last heartbeat another scheduler gets a message that we died with. Half of the
        lock's TTL by default, so that the lock decides how soon a job is taken over, and not the message.
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
        """How many handlers run."""
        return sum(each.handling for each in self._consumers)

    def stop(self) -> None:
        """Handle nothing more. Deliveries from now on are nacked, for another scheduler."""
        self._stopping = True

    def statistics(self) -> dict[str, int]:
        """Messages by subject and outcome, and jobs that ended twice, of which there should be none."""
        return {**self.tally, "duplicate_ends": self._store.duplicate_ends}

    # The handlers.

    async def on_submit(self, delivery: Delivery) -> None:
        """Place a job that was accepted, or whose time has come."""
        job_id = check_id("job", delivery.message.body.get("job"))
        if self.dispatcher.any_crowded:
            job = await self._store.get(job_id)
            if job is not None and job.queue is JobQueue.POOL and self.dispatcher.crowded(job.pool):
                self.dispatcher.wake(job.pool)
                self._count(subjects.SUBMIT, "in_line")
                return
        placed = await self.placement.place(job_id)
        if placed is PlacementResult.NO_WORKER and await self._served_meanwhile(job_id):
            placed = await self.placement.place(job_id)
        if placed in (PlacementResult.POOL_FULL, PlacementResult.TENANT_FULL, PlacementResult.TOPIC_QUEUED):
            job = await self._store.get(job_id)
            if job is not None:
                if placed is PlacementResult.POOL_FULL:
                    self.dispatcher.mark_crowded(job.pool)
                # A slot may have become free meanwhile.
                self.dispatcher.wake(job.pool)
        self._count(subjects.SUBMIT, placed)

    async def _served_meanwhile(self, job_id: str) -> bool:
        """Whether a worker has announced the topic of a job while that was moved to the queue of the topic.

        If not, the dispatcher will find the job: it reads that queue when a topic is announced, which is after this.
        """
        job = await self._store.get(job_id)
        return job is not None and bool((await self.placement.workers.view()).serving(job.topic))

    async def on_started(self, delivery: Delivery) -> None:
        """Note that a worker has begun an attempt. If that is stale, tell the worker to stop."""
        report = report_of(delivery.message)

        def begin(job: Job) -> Writing | None:
            if standing_of_start(_attempt(job), _reported(report)) is not ReportStanding.CURRENT:
                return None
            return Writing([_running(report)])

        job = (await self.placement.change(report.job, lambda _: begin)).before
        if job is None:
            self._count(subjects.STARTED, PlacementResult.MISSING)
            return
        worth = standing_of_start(_attempt(job), _reported(report))
        self._count(subjects.STARTED, worth)
        if worth in (ReportStanding.STALE, ReportStanding.OVER) and job.run_fence != report.run.fence:
            why = "the job is over" if worth is ReportStanding.OVER else "another attempt has taken over"
            await self._bus.publish([stop_for(job, report.worker, report.attempt, report.run.fence, why)])

    async def on_result(self, delivery: Delivery) -> None:
        """Write the result of an attempt. Several results in one message are published again, each on its own."""
        if (results := results_in(delivery.message)) is not None:
            self._count(subjects.RESULT, "several")
            await self._bus.publish(results)
            return
        report = report_of(delivery.message)
        await self._handled(report, await self.placement.change(report.job, await self._decision(report)))

    async def _decision(self, report: AttemptReport) -> Deciding:
        """The decision about a job after this report. `BadInput` if the report makes no sense."""
        ended = ended_of(report.body)
        # Read before the lock is held: earlier attempts ended before this one began, so their number is settled.
        postponed = 0 if ended.ok or not ended.begun else await self._store.postponed(report.job)
        now_ns = self._store.clock.now().wall
        chance = self._store.entropy.below(1 << 32)  # drawn once, so that the decision only computes

        def decide(fence: CarriedFence, job: Job) -> Writing | None:
            if standing_of_end(_attempt(job), _reported(report)) is not ReportStanding.CURRENT:
                return None
            backoff_ns = 0 if ended.ok else self._backoff_ns(job, ended, postponed, chance)
            look = facts_of(job)
            meaning = after_attempt(look, ended, now_ns=now_ns, backoff_ns=backoff_ns, postponed=postponed)
            writing = self._after(job, meaning, report, fence, now_ns)
            if job.state is JobState.RUNNING or not ended.begun:
                return writing
            # A brief attempt does not report its start.
            return replace(writing, changes=[_running(report), *writing.changes])

        return lambda fence: partial(decide, fence)

    def _backoff_ns(self, job: Job, ended: AttemptEnd, postponed: int, chance: int) -> int:
        """How long to wait before another attempt, if there is one. `chance` is a draw of 32 bits."""
        if not ended.begun:
            return elsewhere_ns(job.version - 1, chance * NO_WORKER_SPREAD_NS >> 32)
        return self._retry.delay_ns(max(0, job.attempt - postponed - 1), 0, lambda n: chance * n >> 32)

    async def _handled(self, report: AttemptReport, changed: Changed) -> None:
        before, after = changed.before, changed.after
        worth = PlacementResult.MISSING if before is None else standing_of_end(_attempt(before), _reported(report))
        self._count(subjects.RESULT, worth)
        if before is not None and after is not None:
            if after.code == JobCode.TAKEN_BACK:
                self._returned.add(before.pool, before.topic, before.id)
            elif (waiting := self._returned.pop(before.pool, before.topic)) is not None:
                await self.placement.enqueue(waiting)
        if before is not None:
            self.placement.prefetch.finished(
                before.pool, before.topic, _took_ns(report.body), self._store.clock.now().mono
            )

    async def on_cancel(self, delivery: Delivery) -> None:
        """Cancel a job. A finished job stays as it is."""
        body = delivery.message.body
        job_id = check_id("job", body.get("job"))
        actor = check_text("actor", body.get("actor"), ID_CHARS_MAX)
        reason = str(body.get("reason") or "cancelled")[:REASON_CHARS_MAX]
        made_ns = check_whole("made_ns", body.get("made_ns", 0), 0, TIME_MAX)
        run, tenant = body.get("run"), body.get("tenant")  # given when a run stops its own job
        parent = body.get("parent")  # given when the parent was cancelled

        def cancel(fence: CarriedFence, job: Job) -> Writing | None:
            if job.state.terminal or made_ns not in (0, job.created_ns):
                return None
            if run is not None and (job.labels.get(subjects.RUN_LABEL), job.tenant) != (run, tenant):
                return None
            if parent is not None and job.labels.get(subjects.PARENT_LABEL) != parent:
                return None
            end = End(JobState.CANCELLED, JobCode.CANCELLED, reason, dead=False)
            return ending(job, end, fence, actor=actor)

        changed = await self.placement.change(job_id, lambda fence: partial(cancel, fence))
        job = changed.after or changed.before
        if job is not None and job.state is JobState.CANCELLED and made_ns in (0, job.created_ns):
            await self._cancel_children(job)
        over = "missing" if changed.before is None else "over"
        self._count(subjects.CANCEL, over if changed.after is None else "cancelled")

    async def _cancel_children(self, job: Job) -> None:
        """Cancel the children of a cancelled job, also when its message comes again."""
        parent = JobParent.of(job.id, job.created_ns, job.labels)
        found = await self._store.database.read(lambda tx: children_of(tx, parent, CHILDREN_MAX))
        token = f"parent:{job.id}:{job.created_ns}"
        requests = [
            subjects.cancel_child(each.id, parent.id, "its parent was cancelled", token=token)
            for each in found
            if not each.detached and not each.state.terminal
        ]
        if requests:
            await self._bus.publish(requests)

    def _after(
        self, job: Job, meaning: End | Retry, report: AttemptReport, fence: CarriedFence, now_ns: int
    ) -> Writing:
        if isinstance(meaning, End):
            result = report.body.get("result") if meaning.state is JobState.SUCCEEDED else None
            return ending(
                *(job, meaning, fence),
                actor=report.worker,
                result=result,
                worker=report.worker,
                run_fence=report.run.fence,
                traceback=trace_of(report.body),
            )
        at_ns = now_ns + meaning.delay_ns
        why = (
            JobCode.TAKEN_BACK
            if meaning.taken_back
            else JobCode.POSTPONED
            if meaning.postponed
            else JobCode.WORKER_ERROR
        )
        change = Change(
            JobState.RETRYING,
            reason=meaning.reason,
            code=str(why),
            worker=report.worker,
            run_fence=report.run.fence,
            not_before_ns=at_ns,
            actor=report.worker,
            traceback=trace_of(report.body),
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
                # Another try would be refused again.
                self._count(message.subject, type(refused).__name__)
            except BackendError as error:
                raise self.placement.delays.later(error, self._store.entropy.below) from error

        return handle

    def _count(self, subject: str, outcome: str) -> None:
        self.tally[f"{subject}.{outcome}"] += 1


def _took_ns(body: Mapping[str, Any]) -> int | None:
    """How long an attempt took, if its worker reports a valid number."""
    took_ns = body.get("took_ns")
    return took_ns if type(took_ns) is int else None


def _running(report: AttemptReport) -> Change:
    return Change(JobState.RUNNING, worker=report.worker, run_fence=report.run.fence, actor=report.worker)


def _attempt(job: Job) -> CurrentAttempt:
    return CurrentAttempt(job.state, job.attempt, job.run_fence, job.created_ns)


def _reported(report: AttemptReport) -> ReportedAttempt:
    return ReportedAttempt(report.attempt, report.run.fence, report.made_ns)
