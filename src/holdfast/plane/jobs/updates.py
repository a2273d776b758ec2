"""Updates of many jobs in one transaction: read together, decided one by one, written together.

Promises: each update has its own result. A stale fence, a move that the table of states does not allow, or a tenant,
pool or topic without a free slot refuses this update and no other. Each row is written by a statement that checks
version and fence, and each count by one that checks the limit; if one of them is not written, none is. So rows need not
be locked from reading to writing (`Tx.holds`), unless the jobs of a topic have to be counted (`quotas`). Rows are
locked in one order (jobs by id, tenants by name, pools by name), so that transactions over the same rows wait for each
other and never deadlock.

**New jobs** (`UpdateRequest.new`) are inserted and dispatched by the same write, if a slot is free and no other job
waits for it (`insert_assigned`). Promises: the result is the same as after inserting and then dispatching: the same
rows, history, message and limits. A job without a free slot is inserted and waits in its queue. So is every job of a
pool or topic in whose queue other jobs wait, because older jobs go first. If a row with the id exists, it is
`RowExists`, and nothing was inserted. On Postgres it is one statement that reads nothing before: it assumes that slots
are free, and writes nothing if they are not. Then, or if slots of a topic have to be counted, it is run again in a
transaction that reads first.

**Ends.** Results, cancellations and time limits all end jobs with `ending`: one write for the terminal state, the
messages about it, and a dead letter where one is due.

Clock: none; the caller passes the time of the update.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from holdfast.core.lease.fencing import Absent, Accepted, Outcome, Stale, accepts
from holdfast.errors import LeaseLost, RowMissing
from holdfast.guards.bearer import CarriedFence, Fenced
from holdfast.plane.db.batcher import Failed
from holdfast.plane.db.ports import Bus, Tx
from holdfast.plane.db.statements import put_many, script, sql
from holdfast.plane.jobs.insert import New, first_event
from holdfast.plane.jobs.lease_check import LeaseCheck, Owned
from holdfast.plane.jobs.quotas import Counting, PoolFull, Slots, TenantFull, TopicCounting, TopicFull
from holdfast.plane.jobs.rows import applied, event_values, job_of, letter_values, requeued
from holdfast.plane.jobs.rules import End, JobCode, JobFacts
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import WITH_WORKERS, JobQueue, JobState, Move, move
from holdfast.plane.model.messages import ENDED_JOBS, pool_channel
from holdfast.plane.model.records import Change, Job, Message
from holdfast.types import Busy

_TOUCH: Final = sql("job_touch")
_LETTER: Final = sql("deadletter_insert")

MessagesAbout: TypeAlias = Sequence[Message] | Callable[[Job], Sequence[Message]]
"""Messages, or a function that makes them from the job after the write."""


@dataclass(slots=True, unsafe_hash=True)
class Writing:
    """The writes of a decision. Without changes, only messages are sent, and the state stays."""

    changes: Sequence[Change] = ()
    messages: MessagesAbout = ()
    dead: bool = False  # keep a dead letter of it
    capacity: int | None = None  # slots that the workers of its pool have; None: unlimited
    not_before_ns: int | None = None  # without changes, as for `Change`
    queue: JobQueue | None = None  # without changes, as for `Change`
    pool: str | None = None  # without changes, of a job that no worker has: the pool whose queue it moves to
    topic_places: int | None = None  # slots of its topic, if that has fewer than its pool
    also: Callable[[Tx, Job], Awaitable[None]] | None = None  # writes more; if it raises, nothing is written


class Changed(NamedTuple):
    """A job before and after a `change`. Without a job, neither; without a decision to write, no `after`."""

    before: Job | None
    after: Job | None


class Alone(Exception):
    """These updates cannot share a transaction. Nothing was written; each has to be made alone."""


Decide: TypeAlias = Callable[[CarriedFence], Callable[[Job], Writing | None]]
"""Makes the decision about a job under a fence. The decision must only compute, and may be called more than once."""


class UpdateRequest(NamedTuple):
    """One update of one job, for `JobStore.update`."""

    job: str
    decide: Decide
    lease: Fenced | None = None  # of the job's lock; None: the update acquires the lock within its transaction
    new: New | None = None  # the job does not exist yet: insert it, and update it with the same write


class UpdateResult(NamedTuple):
    """The result of one update."""

    fence: int | Busy  # that it was made under; `Busy`: another holder has the lock, and nothing was written
    changed: Changed


class FencedUpdate(NamedTuple):
    """An update whose fence is known."""

    job: str
    fence: int
    now_ns: int
    decide: Callable[[Job], Writing | None]
    new: New | None = None
    owned: Owned | None = None  # its lease, where the transaction can check it


UpdateOutcome: TypeAlias = Outcome[tuple[Changed, bool]] | Failed
"""The outcome of one update; the truth value: whether a slot of the workers has become free."""


@dataclass(slots=True)
class Planned:
    """One decided update: what it writes if a slot is free for it."""

    at: int
    wanted: FencedUpdate
    before: Job
    writing: Writing
    after: Job
    values: dict[str, Any]
    steps: Sequence[Move]

    @property
    def shift(self) -> int:
        """1: the job goes to workers; -1: it leaves them."""
        return (self.after.state in WITH_WORKERS) - (self.before.state in WITH_WORKERS)

    @property
    def scarce(self) -> bool:
        """Whether it goes to workers that have fewer slots for its topic than for others."""
        return self.writing.topic_places is not None and self.shift > 0

    def messages_about(self) -> Sequence[Message]:
        """The messages about it."""
        messages = self.writing.messages
        return messages(self.after) if callable(messages) else messages


@dataclass(slots=True)
class _Sheet:
    """All rows of one transaction."""

    moved: list[dict[str, Any]] = field(default_factory=list)
    touched: list[dict[str, Any]] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    letters: list[dict[str, Any]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    ends: bool = False  # a job ends
    owned: list[Owned] = field(default_factory=list)  # the leases that it is written under

    def add(self, plan: Planned) -> None:
        writing, after = plan.writing, plan.after
        self.owned += _owned([plan.wanted])
        self.ends |= bool(plan.steps) and plan.steps[-1].ends
        (self.moved if plan.steps else self.touched).append(plan.values)
        self.events += (
            event_values(after, step, made, plan.wanted.fence, change)
            for step, (change, made) in enumerate(zip(writing.changes, plan.steps, strict=True))
        )
        if writing.dead:
            self.letters.append(letter_values(plan.before, after))
        self.messages += plan.messages_about()

    async def write(self, tx: Tx, bus: Bus, counting: Counting, check: LeaseCheck | None) -> None:
        """Write all rows. What needs no answer comes last, and goes to the server in one request."""
        if check is not None:
            await check.put(tx, self.owned)
        if self.touched and await tx.query_many(_TOUCH, self.touched) != len(self.touched):
            raise RowMissing("a job changed under a lock of the database")
        if self.letters:
            await tx.query_many(_LETTER, self.letters)
        await put_many(tx, "job_change", sorted(self.moved, key=itemgetter("id")), each=True)
        await counting.write(tx)
        await put_many(tx, "event_insert", self.events)
        if self.messages:
            await bus.stage(tx, self.messages)
        if self.ends:
            tx.notify(ENDED_JOBS)


async def update_many(
    tx: Tx,
    bus: Bus,
    slots: Slots,
    wanted: Sequence[FencedUpdate],
    *,
    check: LeaseCheck | None = None,
    counted: bool = False,
) -> list[UpdateOutcome]:
    """Update different jobs. One result per update, in their order.

    `counted`: most jobs will go to workers, so the counts are read with the jobs. `check`: of their leases.
    """
    lost = {} if check is None else await check.lost(tx, _owned(wanted))
    counting, topics, sheet = Counting(slots.slots), TopicCounting(), _Sheet()
    counted = counted and not tx.holds
    look = "job_hold" if tx.holds else "job_counted_many" if counted else "job_get_many"
    rows = await tx.query(script(look, tx.dialect), {"ids": json.dumps([each.job for each in wanted])})
    if counted:
        counting.seen(rows)
    jobs = {row["id"]: job_of(row) for row in rows}
    ends: list[UpdateOutcome] = []
    plans: list[Planned] = []
    for at, each in enumerate(wanted):
        found = _judged(lost, jobs.get(each.job), each, at)
        ends.append(Absent() if isinstance(found, Planned) else found)
        if isinstance(found, Planned):
            plans.append(found)
    if len(wanted) > 1 and any(plan.writing.also is not None for plan in plans):
        raise Alone  # its additional write may fail, and must then undo its own update only
    if any(plan.shift > 0 for plan in plans):
        await counting.hold(tx, [plan.after for plan in plans if plan.shift])
        await topics.count(tx, [plan.after for plan in plans if plan.scarce])
    for plan in plans:
        try:
            _count(tx, counting, topics, slots, plan)
        except (TenantFull, PoolFull, TopicFull) as full:
            ends[plan.at] = Failed(full)
        else:
            sheet.add(plan)
            if plan.after.pool != plan.before.pool and not plan.steps:
                tx.notify(pool_channel(plan.after.pool))  # it has moved to the queue of that pool
            ends[plan.at] = Accepted((Changed(plan.before, plan.after), plan.shift < 0))
    await sheet.write(tx, bus, counting, check)
    for plan in plans:
        if plan.writing.also is not None and isinstance(ends[plan.at], Accepted):
            await plan.writing.also(tx, plan.after)
    return ends


def _owned(wanted: Sequence[FencedUpdate]) -> list[Owned]:
    return [each.owned for each in wanted if each.owned is not None]


def _count(tx: Tx, counting: Counting, topics: TopicCounting, slots: Slots, plan: Planned) -> None:
    if plan.shift > 0:
        places = plan.writing.topic_places
        topics.check(plan.after, places)
        counting.take(plan.after, plan.writing.capacity)
        topics.take(plan.after, places)
    elif plan.shift < 0:
        counting.give(plan.after)
        if slots.on_freed is None:  # no dispatcher in this process: notify those of others
            tx.notify(pool_channel(plan.after.pool))


def _judged(
    lost: Mapping[str, LeaseLost], before: Job | None, wanted: FencedUpdate, at: int
) -> UpdateOutcome | Planned:
    gone = None if wanted.owned is None else lost.get(str(wanted.owned["key"]))
    return judged(before, wanted, at) if gone is None else Failed(gone)


def judged(before: Job | None, wanted: FencedUpdate, at: int) -> UpdateOutcome | Planned:
    """The result of an update, as far as it depends on the job alone."""
    if before is None:
        return Absent()
    if not accepts(before.fence, wanted.fence):
        return Stale(before.fence or 0)
    try:
        writing = wanted.decide(before)
        if writing is None:
            return Accepted((Changed(before, None), False))
        steps = moves(before, writing.changes)
        if steps:
            values = applied(before, writing.changes, steps[-1], wanted.fence, wanted.now_ns)
            return Planned(at, wanted, before, writing, _after(before, values), values, steps)
    except Exception as error:  # noqa: BLE001 - an error of a decision is the result of its update
        return Failed(error)
    not_before_ns, queue = requeued(before.not_before_ns, before.queue, writing)
    kept: dict[str, Any] = {"fence": wanted.fence, "not_before_ns": not_before_ns, "pool": writing.pool or before.pool}
    values = {"id": before.id, "version": before.version, "queue": str(queue), **kept}
    after = replace(before, version=before.version + 1, queue=queue, **kept)
    return Planned(at, wanted, before, writing, after, values, ())


def _after(before: Job, values: dict[str, Any]) -> Job:
    """The job as the row will be."""
    return Job(
        id=before.id,
        tenant=before.tenant,
        topic=before.topic,
        pool=values["pool"],
        state=values["after"],
        priority=before.priority,
        attempt=values["attempt"],
        max_attempts=before.max_attempts,
        payload=before.payload,
        created_ns=before.created_ns,
        updated_ns=values["now_ns"],
        version=before.version + 1,
        fence=values["fence"],
        run_fence=values["run_fence"],
        worker=values["worker"],
        result=before.result if values["result_kept"] else json.loads(values["result"]),
        reason=values["reason"],
        code=values["code"],
        idempotency_key=before.idempotency_key,
        timeout_ns=before.timeout_ns,
        deadline_ns=values["deadline_ns"],
        not_before_ns=values["not_before_ns"],
        submitted_by=before.submitted_by,
        trace=before.trace,
        labels=before.labels,
        queue=JobQueue(values["queue"]),
    )


def moves(job: Job, changes: Sequence[Change]) -> list[Move]:
    """The moves that the changes are, one after the other, or `InvalidTransition`."""
    state, attempt = job.state, job.attempt
    made: list[Move] = []
    for change in changes:
        made.append(move(state, change.after, attempt, taken_back=change.taken_back))
        state, attempt = made[-1].after, made[-1].attempt
    return made


async def insert_assigned(
    tx: Tx, bus: Bus, slots: Slots, wanted: Sequence[FencedUpdate], *, check: LeaseCheck | None = None
) -> list[UpdateOutcome]:
    """Insert jobs, each under the fence of its own lock. Per job: `after` is with workers, or equals `before`."""
    lost = {} if check is None else await check.lost(tx, _owned(wanted))
    if check is not None:
        await check.put(tx, _owned(wanted))
    counting, topics = Counting(slots.slots), TopicCounting()
    news = [each.new for each in wanted if each.new is not None]
    jobs = [new.job() for new in news]
    if tx.holds:
        await counting.hold(tx, jobs)
    else:
        pools = sorted({job.pool for job in jobs})  # no job waits in any of them, or nothing is written
        await tx.put(script("pool_queue_empty", tx.dialect), {"pools": json.dumps(pools)}, rows=len(pools))
        counting.assume(jobs)
    verdicts = [_judged(lost, job, each, at) for at, (each, job) in enumerate(zip(wanted, jobs, strict=True))]
    await topics.count(tx, [found.after for found in verdicts if isinstance(found, Planned) and found.scarce])
    rows: list[Mapping[str, Any]] = []
    events: list[Mapping[str, Any]] = []
    messages: list[Message] = []
    ends: list[UpdateOutcome] = []
    for each, new, job, found in zip(wanted, news, jobs, verdicts, strict=True):
        if isinstance(found, Failed):
            ends.append(found)
            continue
        events.append(first_event(job))
        if not isinstance(found, Planned) or counting.crowded(job.pool) or not _counted(counting, topics, found):
            new.notify(tx)
            rows.append(new.values)
            ends.append(Accepted((Changed(job, job), False)))
            continue
        rows.append(_going(new, found.after))
        events += (
            event_values(found.after, step, made, each.fence, change)
            for step, (change, made) in enumerate(zip(found.writing.changes, found.steps, strict=True))
        )
        messages += found.messages_about()
        ends.append(Accepted((Changed(job, found.after), False)))
    await put_many(tx, "job_make", rows)
    await counting.write(tx)
    await put_many(tx, "event_insert", events)
    if messages:
        await bus.stage(tx, messages)
    return ends


def _counted(counting: Counting, topics: TopicCounting, plan: Planned) -> bool:
    """Take a slot of the workers, if the job goes there and a slot is free."""
    if plan.shift <= 0 or plan.after.pool != plan.before.pool or plan.writing.also is not None:
        return False
    try:
        topics.check(plan.after, plan.writing.topic_places, new=True)
        counting.take(plan.after, plan.writing.capacity)
    except (TenantFull, PoolFull, TopicFull):
        return False
    topics.take(plan.after, plan.writing.topic_places)
    return True


def _going(new: New, after: Job) -> Mapping[str, Any]:
    """The row of a job that is inserted as dispatched."""
    return {
        **new.values,
        "state": str(after.state),
        "attempt": after.attempt,
        "updated_ns": after.updated_ns,
        "version": after.version,
        "not_before_ns": after.not_before_ns,
        "queue": str(after.queue),
        "holdfast_fence": after.fence,
    }


def facts_of(job: Job) -> JobFacts:
    """The fields of a job that a decision needs."""
    taken_back = job.state is JobState.RETRYING and job.code == JobCode.TAKEN_BACK
    return JobFacts(job.state, job.attempt, job.max_attempts, job.not_before_ns, job.deadline_ns, taken_back, job.queue)


def ending(
    job: Job,
    end: End,
    fence: CarriedFence,
    *,
    actor: str,
    result: Any = None,
    worker: str | None = None,
    run_fence: int | None = None,
    traceback: str | None = None,
) -> Writing:
    """End a job. A worker that has it is told to stop, unless it reported the end itself (`worker`)."""
    change = Change(
        end.state,
        reason=end.reason or None,
        code=None if end.code is None else str(end.code),
        result=result,
        worker=worker,
        run_fence=run_fence,
        actor=actor,
        traceback=traceback,
    )

    def messages_about(after: Job) -> Sequence[Message]:
        found = over(after, fence)
        if worker is None and job.worker is not None and job.state in WITH_WORKERS:
            found.append(stop_for(after, job.worker, job.attempt, job.run_fence, end.reason))
        return found

    # What a failed step means is decided, retried and shown by its run: it needs no dead letter of its own.
    return Writing([change], messages_about, dead=end.dead and subjects.RUN_LABEL not in job.labels)


def over(job: Job, fence: CarriedFence) -> list[Message]:
    """The messages about a finished job: to all subscribers, and to the run whose step it is."""
    found = [subjects.done(job, fence)]
    if subjects.RUN_LABEL in job.labels:
        found.append(subjects.step_over(job, fence))
    return found


def stop_for(job: Job, worker: str, attempt: int, run_fence: int | None, reason: str) -> Message:
    """Tell one worker to stop one attempt. Told again for another run of it, the message is another one."""
    message = subjects.stop(job, worker, reason)
    body = {**message.body, "attempt": attempt, "run_fence": run_fence}
    return replace(message, id=f"{subjects.STOP}:{job.id}:{attempt}:{worker}:{run_fence or 0}", body=body)
