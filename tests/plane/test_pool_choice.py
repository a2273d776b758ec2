"""Which pool a job goes to, when it came before the first worker that announced its topic."""

from __future__ import annotations

import pytest

from fixtures_scheduling import Replica
from holdfast.core.jobs import JobState
from holdfast.plane import subjects
from holdfast.plane.model import Delivery, Job
from holdfast.plane.workers import Pool, View


def submitted(job: Job) -> Delivery:
    return Delivery(subjects.submitted(job.id), subjects.SCHEDULER, 1, 0, job.created_ns)


@pytest.mark.asyncio
async def test_a_job_goes_where_a_live_worker_takes_its_topic(plane: Replica) -> None:
    job = await plane.submit(topic="rare")
    await plane.scheduler.on_submit(submitted(job))
    assert (await plane.job(job)).state is JobState.PENDING
    await plane.beat("specialist", 2, "rare", pool="elsewhere")
    await plane.scheduler.on_submit(submitted(job))
    sent = await plane.job(job)
    assert (sent.state, sent.pool) == (JobState.DISPATCHED, "elsewhere")
    assert await plane.running() == ({sent.tenant: 1}, {"elsewhere": 1})
    [message] = await plane.staged(subjects.work_subject("elsewhere"))
    assert job.id in message["body"]


def test_its_own_pool_is_preferred_and_otherwise_the_choice_is_always_the_same() -> None:
    serving = {name: Pool(name, 1, 4, {"t": 1}) for name in ("zebra", "default", "ant")}
    assert View(pools=serving).pool_for("t", "default") == "default"
    del serving["default"]
    assert View(pools=serving).pool_for("t", "default") == "ant"
    assert View(pools=serving).pool_for("unknown", "default") == "default"
    assert View().pool_for("t", "default") == "default"
