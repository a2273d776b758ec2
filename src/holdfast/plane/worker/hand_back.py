"""An attempt that a worker cannot take, given back to the scheduler: its job waits for another chance.

A message that is only given back to the bus keeps its job with the workers: it holds a place of the pool for which
others wait, and its time limit goes on. So the worker says that it has not begun, under the job's lease as with all
that it says, and the message is done with. Promises: nothing is said about an attempt that somebody runs; the attempt
costs its job nothing.
"""

from __future__ import annotations

from holdfast.aio import batch as many
from holdfast.errors import BackendError, LockBusy
from holdfast.guards.bearer import carried
from holdfast.plane.locks.registry import LockFamily
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.assignment import Assignment
from holdfast.plane.model.outcome import Outcome, Status
from holdfast.plane.worker.attempt import Workplace


async def give_back(place: Workplace, order: Assignment, reason: str) -> None:
    """Say that an attempt was not begun here. `RetryLater` if that cannot be said now, or somebody runs it."""
    family: LockFamily = place.family  # a test reads from this that the lock is a declared one
    model = place.model = place.model or family.lock(place.locks, job="model")
    key = family.key(job=order.job)
    try:
        lease = await place.desk.take(many.named(model, key))
        if lease is None:
            raise place.later(LockBusy(f"job {order.job} is being run", key=key))
        try:
            said = {**Outcome(Status.RETURNED, error=reason, retryable=True).body(), "took_ns": None}
            run = carried(lease)
            told = subjects.finished(order.job, order.attempt, place.worker, run, said, made_ns=order.made_ns)
            await place.bus.publish([told])
        finally:
            await place.desk.give_back(lease)
    except BackendError as error:
        place.statistics.unreachable += 1
        raise place.later(error) from error
