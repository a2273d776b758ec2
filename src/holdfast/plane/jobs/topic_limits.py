"""The places of a topic that has fewer than its pool: counted when a job takes one, and waited for aside.

A function may say that a worker makes only so many attempts of it at once (`max_concurrency`). Workers say so in their
heartbeats, and what they have between them is what a pool has for that topic (`workers`). What must hold:

- However many schedulers there are, no job of such a topic is handed out while as many as it has places for are with
  the workers. They are counted from the states of the jobs, by the transaction that hands out another, after it has
  got hold of the row of the pool, as everybody must who hands out; so there is no number that could go wrong.
- Who finds no place stands aside: in a line of its topic, out of the line of its pool. So nobody waits behind it, and a
  look at the line of the pool costs the same however many stand aside. When a place is free, the dispatcher finds
  the next one where its priority, its age and its tenant's turn put it (`plane.scheduler.topic_backlog`).
- A job of any other topic is counted and written as if all this did not exist, and a dispatcher decides about it in
  another transaction than about those whose topics have to be counted. (New jobs that come at the same moment may
  share one.)
- Nothing is lost with a worker: a job that stands aside is a job that waits. If nobody takes its topic any more, it
  waits as all others do; if the topic has as many places as its pool by then, it goes; and the replayer sees it.

A job keeps `JobQueue.TOPIC` while it is with workers, and these jobs are counted.

Does not promise that the worker which gets a job is one that has a place: workers take messages as they come, so where
there are several, one of them may get two. It leaves the second to the others (`worker_pool`), and after a dozen times
in vain it gives it back, as without all this (`returning`). Jobs that were handed out
before their topic was known to have places of its own are not counted; and a worker that has left without a word counts
as there, with its places, for the TTL of its last one. Both end by themselves, and until then a worker that has no
place gives back what it gets.

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
    """As many jobs of the topic are with workers as these have places for. Nothing was changed."""


class TopicCounting:
    """The counts of one transaction over many jobs."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], int] = {}
        self._waited_for: set[tuple[str, str]] = set()

    async def count(self, tx: Tx, jobs: Sequence[Job]) -> None:
        """Count the topics of jobs that are to come to workers; the rows of their pools are held from now on.

        A work that holds nothing is run again as one that does, for only then has the count a meaning.
        """
        if jobs and not tx.holds:
            await tx.query(script("slots_hold", tx.dialect), {"tenants": "[]", "pools": "[]"})
        for pool, topic in sorted({(job.pool, job.topic) for job in jobs}):
            [row] = await tx.query(_COUNT, {"pool": pool, "topic": topic})
            self._running[pool, topic] = row["running"]
            if row["waiting"]:
                self._waited_for.add((pool, topic))

    def check(self, job: Job, places: int | None, *, new: bool = False) -> None:
        """`TopicFull` if there is no place for a job; nor is there one for a `new` one while others wait."""
        if places is None:
            return
        topic = job.pool, job.topic
        if self._running[topic] >= places or (new and topic in self._waited_for):
            raise TopicFull(job.topic)

    def take(self, job: Job, places: int | None) -> None:
        """It has come to workers."""
        if places is not None:
            self._running[job.pool, job.topic] += 1
