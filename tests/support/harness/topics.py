"""A pool in which a topic has fewer places than there are: what its worker says, and jobs that wait there."""

from __future__ import annotations

from typing import Any

from holdfast.plane.jobs.insert import CheckedSubmission
from holdfast.plane.model.job_states import JobQueue, JobState
from holdfast.plane.model.records import Job, Submission
from support.fixtures.scheduling import POOL, Replica, finished, run_of

HEAVY, LIGHT = "heavy", "light"
STATES = "('SCHEDULED', 'DISPATCHED', 'RUNNING')"


async def beat(plane: Replica, places: int | None = 1, *, capacity: int = 4, worker: str = "w1", **more: Any) -> None:
    """A worker that takes both topics, and runs only so many of the heavy one concurrently."""
    said = {} if places is None else {HEAVY: places}
    await plane.beat(worker, capacity, HEAVY, LIGHT, places=said, **more)


def waiting_in(scarce: bool) -> JobQueue:
    """The queue of a job of a topic that has fewer slots than its pool, or as many."""
    return JobQueue.TOPIC if scarce else JobQueue.POOL


async def submit(plane: Replica, topic: str, *, aside: bool = True, **wanted: Any) -> Job:
    """A queued job: one of the heavy topic in the queue of its topic, as if its limit had been known."""
    entry = CheckedSubmission(Submission(topic, **wanted), POOL, (), waiting_in(aside and topic == HEAVY))
    [end] = await plane.store.submit_all([plane.store.new(entry)])
    assert isinstance(end, tuple)
    return end[0]


async def states(plane: Replica, jobs: list[Job]) -> list[JobState]:
    return [(await plane.job(job)).state for job in jobs]


async def with_workers(plane: Replica, topic: str = HEAVY) -> int:
    rows = await plane.query(f"SELECT id FROM plane_job WHERE topic = :topic AND state IN {STATES}", topic=topic)
    return len(rows)


async def end(plane: Replica, job: Job) -> None:
    await plane.scheduler.on_result(finished(job, (await plane.job(job)).attempt, run_of(job)))
