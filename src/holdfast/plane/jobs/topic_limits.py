"""Topics with fewer slots than their pool: counts the jobs in these slots, and queues the others by topic.

A job function can limit how many of its attempts a worker runs at the same time (`max_concurrency`). Workers report
this limit in their heartbeats; the sum is the number of slots that a pool has for the topic. What must hold:

- Schedulers never dispatch a job of such a topic while all slots of the topic are in use, however many schedulers run.
  The transaction that dispatches another job counts the jobs with workers from their states, while it holds the row of
  the pool. So there is no counter that could be wrong.
- A job that finds no free slot waits in the queue of its topic instead of the queue of its pool. So it delays no other
  job, and reading the pool queue costs the same however many jobs wait there. When a slot becomes free, the dispatcher
  takes the next job by priority, age and fair share of tenants (`plane.scheduler.topic_backlog`).
- A job of any other topic costs nothing extra. The dispatcher decides about it in another transaction than about jobs
  whose topics are counted. (New jobs that arrive at the same time may share one.)
- Jobs in the queue of a topic survive their workers. If no worker serves the topic any more, they wait as others do.
  If the topic has as many slots as its pool by then, they are dispatched. The replayer sees them too.

A job keeps `JobQueue.TOPIC` while it is with workers, and these jobs are counted.

Does not promise that the worker which receives a job has a free slot: workers take messages as they come, so one of
several workers may receive two. It leaves the second to the others (`WorkerPool`), and after a dozen deliveries it
returns the job, as without slots of topics (`ReturnedJobs`). Jobs that were dispatched before their topic was
limited are not counted. A worker that died counts, with its slots, until its last heartbeat expires. Both end
automatically; until then a worker without a free slot nacks what it receives.

Clock: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.plane.db.bulk import script
from holdfast.plane.db.ports import Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.model.records import Job

_COUNT: Final = sql("topic_count")


class TopicFull(Exception):
    """All slots of the topic are in use. Nothing was changed."""


class TopicCounting:
    """The counts of one transaction over many jobs."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], int] = {}
        self._waited_for: set[tuple[str, str]] = set()

    async def count(self, tx: Tx, jobs: Sequence[Job]) -> None:
        """Count the topics of jobs that will go to workers. The transaction holds the rows of their pools from now on.

        A transaction that holds no rows is run again as one that does, because only then the count is reliable.
        """
        if jobs and not tx.holds:
            await tx.query(script("slots_hold", tx.dialect), {"tenants": "[]", "pools": "[]"})
        for pool, topic in sorted({(job.pool, job.topic) for job in jobs}):
            [row] = await tx.query(_COUNT, {"pool": pool, "topic": topic})
            self._running[pool, topic] = row["running"]
            if row["waiting"]:
                self._waited_for.add((pool, topic))

    def check(self, job: Job, places: int | None, *, new: bool = False) -> None:
        """Raise `TopicFull` if no slot is free, or if a `new` job would overtake jobs that wait."""
        if places is None:
            return
        topic = job.pool, job.topic
        if self._running[topic] >= places or (new and topic in self._waited_for):
            raise TopicFull(job.topic)

    def take(self, job: Job, places: int | None) -> None:
        """Count a job that goes to workers."""
        if places is not None:
            self._running[job.pool, job.topic] += 1
