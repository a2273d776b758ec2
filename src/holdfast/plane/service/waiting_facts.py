"""The facts about a waiting job, read from the database for `plane.jobs.waiting_reason`.

Promises: a running or finished job costs no query. A waiting one costs one read; the result may be stale immediately.

Clock: the wall clock, for times of jobs and workers.
"""

from __future__ import annotations

from typing import Final

from holdfast.plane.db.ports import Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.fleet.registry import View, Workers
from holdfast.plane.jobs.store import JobStore
from holdfast.plane.jobs.waiting_reason import WaitFacts, WaitReason, waiting_reason
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Heartbeat, Job

_POOL: Final = "SELECT running FROM plane_pool WHERE pool = :pool"
_TENANT: Final = sql("tenant_get")
_TOPIC: Final = sql("topic_count")


class WaitingFacts:
    """Reads why jobs of one plane wait."""

    def __init__(self, store: JobStore, workers: Workers) -> None:
        self._store = store
        self._workers = workers

    async def reason(self, job: Job) -> WaitReason | None:
        """Why a job waits; None: it runs, or is finished."""
        if job.state.terminal or job.state is JobState.RUNNING:
            return None
        now_ns = self._store.clock.now().wall
        view = await self._workers.view()
        live = await self._workers.live(job.pool)
        values = {"pool": job.pool, "tenant": job.tenant, "topic": job.topic}

        async def read(tx: Tx) -> tuple[list[Row], list[Row], list[Row]]:
            return await tx.query(_POOL, values), await tx.query(_TENANT, values), await tx.query(_TOPIC, values)

        pool, tenant, topic = await self._store.database.read(read, lasting=False)
        own = tenant[0]["slots"] if tenant else None
        return waiting_reason(
            WaitFacts(
                job.state,
                job.topic,
                job.pool,
                job.tenant,
                now_ns,
                job.not_before_ns,
                job.attempt,
                **_serving(job, live),
                last_served_ns=view.last_served.get(job.topic),
                served_by=_elsewhere(job, view),
                pool_used=pool[0]["running"] if pool else 0,
                pool_slots=view.pool(job.pool).capacity,
                topic_used=topic[0]["running"],
                topic_slots=view.pool(job.pool).places.get(job.topic),
                tenant_used=tenant[0]["running"] if tenant else 0,
                tenant_slots=self._store.slots.slots if own is None else own,
            )
        )


def _serving(job: Job, live: list[Heartbeat]) -> dict[str, int]:
    """The number of live workers of its pool that serve the topic: with a free slot, and without."""
    here = [each for each in live if job.topic in each.topics]
    takers = sum(not each.draining and each.capacity > 0 for each in here)
    draining = sum(each.draining for each in here)
    return {"takers": takers, "draining": draining, "blocked": len(here) - takers - draining}


def _elsewhere(job: Job, view: View) -> list[str]:
    """The other pools that serve its topic. A job whose pool was not chosen by its submitter moves there."""
    return [pool for pool in view.serving(job.topic) if pool != job.pool] if subjects.POOL_LABEL in job.labels else []
