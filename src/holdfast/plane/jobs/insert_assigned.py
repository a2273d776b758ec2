"""New jobs that the inserting transaction dispatches too, if a slot is free and no other job waits for it.

Promises: the result is the same as after submitting and then dispatching: the same rows, the same history with the
fence of the job's lock, the same message to the workers, the same limits of tenants and pools. A job without a free
slot is inserted and waits in its queue. So is every job of a pool or topic in whose queue other jobs wait, because
older jobs go first. If a row with the id exists, it is `RowExists`, and nothing was inserted.

On Postgres it is one statement that reads nothing before: it assumes that slots are free, and writes nothing if they
are not. Then, or if slots of a topic have to be counted, it is run again in a transaction that reads first
(`Tx.holds`).

Clock: none; the caller passes the time of the insert.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.lease.fencing import Accepted
from holdfast.plane.db.batcher import Failed
from holdfast.plane.db.bulk import put_many, script
from holdfast.plane.db.ports import Bus, Tx
from holdfast.plane.jobs.insert import New, first_event
from holdfast.plane.jobs.quotas import Counting, PoolFull, Slots, TenantFull
from holdfast.plane.jobs.rows import event_values
from holdfast.plane.jobs.topic_limits import TopicCounting, TopicFull
from holdfast.plane.jobs.updates import Changed, Ended, FencedUpdate, Planned, judged
from holdfast.plane.model.records import Job, Message


async def make_many(tx: Tx, bus: Bus, slots: Slots, wanted: Sequence[FencedUpdate]) -> list[Ended]:
    """Insert jobs, each under the fence of its own lock. Per job: `after` is with workers, or equals `before`."""
    counting, topics = Counting(slots.slots), TopicCounting()
    news = [each.new for each in wanted if each.new is not None]
    jobs = [new.job() for new in news]
    if tx.holds:
        await counting.hold(tx, jobs)
    else:
        pools = sorted({job.pool for job in jobs})  # no job waits in any of them, or nothing is written
        await tx.put(script("queue_empty", tx.dialect), {"pools": json.dumps(pools)}, rows=len(pools))
        counting.assume(jobs)
    verdicts = [judged(job, each, at) for at, (each, job) in enumerate(zip(wanted, jobs, strict=True))]
    await topics.count(tx, [found.after for found in verdicts if isinstance(found, Planned) and found.scarce])
    rows: list[Mapping[str, Any]] = []
    events: list[Mapping[str, Any]] = []
    messages: list[Message] = []
    ends: list[Ended] = []
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
            event_values(found.after, step, made, each.fence, change.actor, change.reason)
            for step, (change, made) in enumerate(zip(found.writing.changes, found.steps, strict=True))
        )
        messages += found.told()
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
