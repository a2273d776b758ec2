"""The same submission again: the same job, for as long as its key is kept, also when what it was about is forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.errors import RowExists
from holdfast.plane.db.statements import sql
from holdfast.plane.model.records import TIME_MAX, Submission
from support.fixtures.workflows import ASKER, FlowStage

pytestmark = pytest.mark.asyncio


async def test_a_key_gives_its_job_also_after_the_payload_was_forgotten(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    service = replica.components.service
    wanted = Submission("crm.fetch", {"id": 7}, idempotency_key="k", labels={"why": "test"})
    job, made = await service.submit(ASKER, wanted)
    assert made
    await replica.end(job.id, "done")
    everything = {"created_ns": 0, "id": "", "last_ns": TIME_MAX, "last_id": "~"}
    limits = {"before_ns": TIME_MAX, "keys_before_ns": 0}
    emptied = await replica.components.database.write(
        lambda tx: tx.query(sql("cleanup_content"), {**everything, **limits})
    )
    assert [row["id"] for row in emptied] == [job.id]
    again, made = await service.submit(ASKER, wanted)
    assert (again.id, made, again.payload) == (job.id, False, None)
    with pytest.raises(RowExists):
        await service.submit(ASKER, Submission("other", {"id": 7}, idempotency_key="k"))


async def test_a_key_gives_its_job_unless_another_pool_is_asked_for(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    service = replica.components.service
    wanted = Submission("crm.fetch", {"id": 7}, idempotency_key="k", labels={"why": "test"})
    job, made = await service.submit(ASKER, wanted, pool="eu")
    assert made
    assert [await service.submit(ASKER, wanted, pool=pool) for pool in ("eu", None)] == [(job, False)] * 2
    with pytest.raises(RowExists):  # who requests a pool would take it for one that runs there
        await service.submit(ASKER, wanted, pool="us")


async def test_a_job_that_had_nothing_to_say_is_not_taken_for_one_that_was_forgotten(flow_stage: FlowStage) -> None:
    """A caller that submits another job under this key would mistake the first job for its own."""
    replica = await flow_stage.replica(serve=False)
    service = replica.components.service
    wanted = Submission("crm.fetch", idempotency_key="k")
    job, _ = await service.submit(ASKER, wanted)
    await replica.end(job.id)
    for other in ({"payload": {"amount": 100}}, {"labels": {"a": "b"}}):
        with pytest.raises(RowExists):
            await service.submit(ASKER, replace(wanted, **other))
    assert await service.submit(ASKER, wanted) == (await service.job(ASKER, job.id), False)
