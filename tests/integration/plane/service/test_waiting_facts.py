"""Why jobs wait, as it is read from the database: on SQLite and on Postgres."""

from __future__ import annotations

import pytest

from holdfast.plane.jobs.waiting_reason import WaitCode
from holdfast.plane.model.records import Heartbeat, Submission
from holdfast.plane.service.service import Caller, Service, ServiceParts
from holdfast.types import NS
from support.fixtures.scheduling import POOL, Planes, submitted
from support.harness.topics import HEAVY, LIGHT, beat

pytestmark = pytest.mark.asyncio

ANN = Caller("ann")


async def test_the_reason_follows_what_happens_to_workers_tenants_and_slots(planes: Planes) -> None:
    plane = await planes.open(slots=2)
    service = Service(ServiceParts(plane.database, plane.bus, plane.locks, plane.store, plane.workers))

    async def code(job_id: str) -> WaitCode | None:
        await plane.workers.view(fresh=True)
        reason = await service.waiting(ANN, await service.job(ANN, job_id))
        return None if reason is None else reason.code

    async def submit(topic: str, tenant: str = "acme", **fields: int) -> str:
        job, _ = await service.submit(ANN, Submission(topic, tenant=tenant, **fields))  # type: ignore[arg-type]
        await plane.scheduler.on_submit(submitted(job))
        return job.id

    first = await submit(HEAVY)
    assert await code(first) is WaitCode.NO_WORKER
    warning = await service.warning(ANN, await service.job(ANN, first))
    assert warning is not None
    assert warning.code is WaitCode.NO_WORKER
    later = await submit(HEAVY, not_before_ns=plane.now_ns + 60 * NS)
    assert await code(later) is WaitCode.NOT_DUE

    await beat(plane, 1, worker="w1", capacity=4)  # one slot for the heavy topic, four in all
    await plane.workers.view(fresh=True)
    await plane.scheduler.on_submit(submitted(first))
    assert await code(first) is WaitCode.ASSIGNED
    second = await submit(HEAVY)
    assert await code(second) is WaitCode.TOPIC_FULL
    assert await service.warning(ANN, await service.job(ANN, second)) is None
    await submit(LIGHT)
    assert await code(await submit(LIGHT)) is WaitCode.TENANT_FULL
    await submit(LIGHT, "umbrella")
    await submit(LIGHT, "umbrella")
    assert await code(await submit(LIGHT, "initech")) is WaitCode.POOL_FULL

    await plane.workers.record(Heartbeat("w1", POOL, (HEAVY, LIGHT), 4, 1, plane.now_ns, draining=True))
    assert await code(second) is WaitCode.WORKERS_DRAINING
    plane.clock.push(31)
    assert await code(second) is WaitCode.WORKERS_GONE
