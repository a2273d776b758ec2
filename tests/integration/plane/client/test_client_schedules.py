"""Schedules of a client: one contract for three transports, in both colors, on running planes."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Any

import pytest

from holdfast.errors import BadInput, RowMissing
from holdfast.plane import ScheduleConflict
from holdfast.plane.schedules.model import ScheduleState
from support.client_app import Receipt, charge
from support.polling import pauses

pytestmark = pytest.mark.asyncio

_numbers = itertools.count()


def unique() -> str:
    """A name that no other test uses: the planes are shared."""
    return f"clients.{os.getpid()}-{next(_numbers)}"


async def test_a_schedule_is_created_shown_paused_resumed_run_and_deleted(client: Any) -> None:
    name = unique()
    made = await client.schedule(charge, {"invoice": 7}, name=name, cron="0 3 1 1 *", tz="Europe/Berlin")
    assert (made.topic, made.payload, made.state) == ("invoice.charge", {"invoice": 7}, ScheduleState.ACTIVE)
    assert (made.expression, made.app, made.fired) == ("0 3 1 1 * (Europe/Berlin)", None, 0)
    assert made.upcoming[0] == made.next_at
    assert len(made.upcoming) == 5
    assert await client.get_schedule(name) == made
    assert next(each for each in await client.schedules() if each.name == name).next_at == made.next_at
    paused = await client.pause_schedule(name, "incident 7")
    assert (paused.state, paused.paused_reason, paused.next_at) == (ScheduleState.PAUSED, "incident 7", None)
    job = await client.run_schedule(name)
    assert await client.job(job.id, charge).result(timeout=60) == Receipt(7, 1)
    assert (await client.resume_schedule(name)).last_job == job.id
    with pytest.raises(ScheduleConflict, match="already"):
        await client.schedule("echo", name=name, every=60, replace=False)
    assert await client.delete_schedule(name) is True
    assert await client.delete_schedule(name) is False
    with pytest.raises(RowMissing):
        await client.get_schedule(name)


async def test_a_due_time_becomes_a_job_with_its_due_time_in_a_label(client: Any) -> None:
    name = unique()
    await client.schedule("echo", {"n": 1}, name=name, every=1, overlap="allow")
    try:
        pause = pauses()
        async with asyncio.timeout(60):
            while (seen := await client.get_schedule(name)).fired < 2:  # noqa: ASYNC110 - the plane is another process
                await asyncio.sleep(next(pause))
        result = await client.job(seen.last_job).result(timeout=60)
        assert result["labels"]["holdfast.schedule"] == name
        due = result["labels"]["holdfast.due"]
        assert seen.last_job == f"schedule:default:{name}@{due.replace('-', '').replace(':', '')}"
        assert result["payload"] == {"n": 1}
    finally:
        await client.delete_schedule(name)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"cron": "61 * * * *"}, "cron"),
        ({}, "cron"),
        ({"every": 60, "tz": "Europe/Berlin"}, "tz"),
        ({"every": 60, "payload": {"invoice": "much"}}, "invoice"),
        ({"every": 60, "overlap": "never"}, "overlap"),
    ],
)
async def test_bad_input_names_the_field(client: Any, given: dict[str, Any], field: str) -> None:
    name = unique()
    with pytest.raises(BadInput) as refused:
        await client.schedule(charge, **{"payload": {"invoice": 1}, "name": name, **given})
    assert refused.value.field == field
    with pytest.raises(RowMissing):
        await client.get_schedule(name)
