"""Child jobs on a plane with one slot: parents do not keep it from their children. And what a child may not be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import testing
from holdfast.errors import BadInput, RowExists
from holdfast.plane import App, BlockingContext, Client, Context, Plane
from holdfast.plane.jobs.children import JobParent, child_id
from holdfast.plane.model.messages import RUN_LABEL, STEP_LABEL, requesters_in
from holdfast.plane.model.records import ID_CHARS_MAX
from holdfast.plane.settings.settings import WorkerSettings
from holdfast.plane.worker import children
from holdfast.types import MS
from integration.plane.process.test_components import ME, OWN, quick

LIMIT_S = 60


@pytest.mark.asyncio
@pytest.mark.parametrize("colour", ["async", "blocking"])
async def test_a_parent_in_the_only_slot_makes_room_for_its_children(
    tmp_path: Path, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "YIELD_NS", 50 * MS)
    monkeypatch.setattr(children, "POSTPONED_S_MAX", 0.1)
    app = App("family")

    @app.job("part")
    async def part(number: int, *, ctx: Context) -> int:
        return number

    @app.job("async", retries=0)
    async def in_loop(numbers: list[int], *, ctx: Context) -> int:
        parts = [await ctx.submit(part, number=number) for number in numbers]
        return sum([await each.result(timeout=LIMIT_S) for each in parts])

    @app.job("blocking", retries=0)
    def in_thread(numbers: list[int], *, ctx: BlockingContext) -> int:
        parts = [ctx.submit(part, number=number) for number in numbers]
        return sum(each.result(timeout=LIMIT_S) for each in parts)

    settings = quick(tmp_path, worker=WorkerSettings(count=1, concurrency=1, heartbeat=0.2))
    async with Plane(settings, OWN, app=app) as plane, Client(plane) as client:
        parents = [await client.submit(colour, {"numbers": [1, 2, 3]}, max_attempts=1) for _ in range(2)]
        assert [await parent.result(timeout=LIMIT_S) for parent in parents] == [6, 6]
        seen = await parents[0].status()
        assert (seen.attempt > 1, seen.max_attempts) == (True, 1), "postponed starts do not count"


@pytest.mark.asyncio
async def test_what_cannot_be_a_child_is_refused_and_nothing_is_submitted(tmp_path: Path) -> None:
    app = App("family")

    @app.job("echo")
    async def echo(payload: Any) -> Any:
        return payload

    @app.job("parent", retries=0)
    async def parent(payload: Any, *, ctx: Context) -> list[str]:
        fields = []
        for given in ({"id": "mine"}, {"tenant": "other"}, {"idempotency_key": "k"}, {"key": "a/b"}, {"key": ""}):
            try:
                await ctx.submit("echo", 1, **given)
            except BadInput as error:
                fields.append(error.field)
        await ctx.submit("echo", 1, key="same")
        again = await ctx.submit(echo, 1, key="same")
        assert await again.result(timeout=LIMIT_S) == 1
        with pytest.raises(RowExists):
            await ctx.submit("echo", 2, key="same")
        return fields

    async with Plane(quick(tmp_path), OWN, app=app) as plane, Client(plane) as client:
        job = await client.submit(parent, None)
        assert await job.result(timeout=LIMIT_S) == ["id", "tenant", "idempotency_key", "key", "key"]
        service = plane.components.service
        found = await service.children(await service.job(ME, job.id))
        assert [(each.id, each.detached) for each in found] == [(f"{job.id}/same", False)]
        made = await service.job(ME, job.id)
        child = await service.job(ME, f"{job.id}/same")
        assert requesters_in(child.labels) == (made.submitted_by,), (
            "who asked for the parent cannot approve its children"
        )
        assert made.submitted_by


@pytest.mark.asyncio
async def test_parameters_with_names_of_options_are_given_in_a_payload(tmp_path: Path) -> None:
    app = App("family")
    named = {"connection": "line 1", "key": "k", "detached": 3}

    @app.job("options", retries=0)
    async def options(connection: str, key: str, detached: int) -> list[object]:
        return [connection, key, detached]

    @app.job("parent", retries=0)
    async def parent(*, ctx: Context) -> list[object]:
        child = await ctx.submit(options, named)
        return await child.result(timeout=LIMIT_S)

    async with Plane(quick(tmp_path), OWN, app=app) as plane, Client(plane) as client:
        jobs = [await client.submit(options, named), await client.submit(parent)]
        assert [await job.result(timeout=LIMIT_S) for job in jobs] == [["line 1", "k", 3]] * 2
        with pytest.raises(BadInput, match="no connection that can be used"):
            await client.submit(options, named, connection="line 1")


@pytest.mark.asyncio
async def test_without_a_plane_there_are_no_children() -> None:
    async with testing.context() as ctx:
        with pytest.raises(BadInput, match="needs a plane"):
            await ctx.submit("echo", 1)


def test_the_children_of_a_step_belong_to_all_its_attempts() -> None:
    labels = {RUN_LABEL: "r1", STEP_LABEL: "pay"}
    first, second = JobParent.of("r1:pay@1", 5, labels), JobParent.of("r1:pay@2", 9, labels)
    assert first == second == JobParent("r1:pay", 0)
    assert child_id(first, "1") == "r1:pay/1"


def test_the_id_of_a_child_is_never_too_long_and_its_own() -> None:
    parent = JobParent("j" * ID_CHARS_MAX, 1)
    ids = {child_id(parent, str(number)) for number in range(50)}
    assert len(ids) == 50
    assert max(map(len, ids)) <= ID_CHARS_MAX
