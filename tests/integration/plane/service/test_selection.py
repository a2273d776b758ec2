"""Which jobs and dead letters a filter selects, on every database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import BadInput
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.jobs.store import Writing
from holdfast.plane.locks.registry import SCHEDULER_JOB
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Change, Submission
from holdfast.plane.service.selection import BulkFilter, unfinished_jobs, untried_letters
from holdfast.plane.service.service import Caller, Service
from holdfast.types import NS

OPERATOR = Caller("ann")
BLUE = Caller("bob", "blue")


async def submit(service: Service, identity: str, *, topic: str = "sum", tenant: str = "blue") -> None:
    await service.submit(OPERATOR, Submission(topic, None, tenant, id=identity))


async def fail(service: Service, identity: str, code: str) -> None:
    lease = CarriedFence(SCHEDULER_JOB.key(job=identity), 1)
    change = Change(JobState.FAILED, reason="broken", code=code, actor="scheduler")
    await service.parts.store.change(lease, identity, lambda _: Writing([change], dead=True))


@pytest.mark.asyncio
async def test_a_filter_selects_unfinished_jobs_and_untried_dead_letters(every_service: Service) -> None:
    service = every_service
    for number in range(5):
        await submit(service, f"s{number}")
    await submit(service, "mail-1", topic="mail")
    await submit(service, "red-1", tenant="red")
    for identity in ("s0", "s1"):
        await fail(service, identity, "broken")
    await fail(service, "red-1", "late")

    async def jobs(caller: Caller = OPERATOR, limit: int = 100, **conditions: object) -> tuple[set[str], bool]:
        found = await unfinished_jobs(service, caller, BulkFilter(**conditions), limit=limit)  # type: ignore[arg-type]
        return {each.id for each in found.items}, found.more

    async def letters(caller: Caller = OPERATOR, limit: int = 100, **conditions: object) -> tuple[set[str], bool]:
        found = await untried_letters(service, caller, BulkFilter(**conditions), limit=limit)  # type: ignore[arg-type]
        return {each.id for each in found.items}, found.more

    assert await jobs(topic="sum") == ({"s2", "s3", "s4"}, False)
    assert await jobs(state="pending") == ({"s2", "s3", "s4", "mail-1"}, False)
    assert await jobs(state="running") == (set(), False)
    assert await jobs(tenant="red") == (set(), False)
    assert await jobs(BLUE, topic="mail") == ({"mail-1"}, False)
    now_ns = service.parts.store.clock.now().wall
    assert await jobs(before_ns=now_ns - 3600 * NS) == (set(), False)
    assert len((await jobs(before_ns=now_ns + NS))[0]) == 4
    some, more = await jobs(topic="sum", limit=2)
    assert (len(some), more) == (2, True)

    assert await letters(topic="sum") == ({"s0", "s1", "red-1"}, False)
    assert await letters(code="late") == ({"red-1"}, False)
    assert await letters(BLUE, code="broken") == ({"s0", "s1"}, False)
    await service.retry_dead_letter(BLUE, "s0")
    assert await letters(tenant="blue") == ({"s1"}, False)
    assert await letters(tenant="blue", before_ns=1) == (set(), False)


@pytest.mark.asyncio
async def test_a_filter_that_cannot_be_meant_is_refused(plane_service: Service) -> None:
    for bad, field in (
        (BulkFilter(), "filter"),
        (BulkFilter(topic=""), "topic"),
        (BulkFilter(tenant="a b"), "tenant"),
        (BulkFilter(state="lost"), "state"),
        (BulkFilter(state="failed"), "state"),
    ):
        with pytest.raises(BadInput, match=f"^{field}: "):
            await unfinished_jobs(plane_service, OPERATOR, bad, limit=10)
    with pytest.raises(BadInput, match=r"^code: "):
        await untried_letters(plane_service, OPERATOR, replace(BulkFilter(), code=""), limit=10)
