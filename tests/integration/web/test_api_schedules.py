"""Schedules over HTTP: create, change, list, show, pause, resume, run and delete; tenants, and bad input."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from holdfast.plane.schedules.declaration import DeclaredSchedule
from holdfast.plane.schedules.model import made_spec
from support.harness.web import Stage

NIGHTLY = {"topic": "report.build", "cron": "0 3 * * *", "tz": "Europe/Berlin", "payload": {"full": True}}


async def put(client: httpx.AsyncClient, name: str = "nightly", **options: Any) -> httpx.Response:
    return await client.put(f"/schedules/{name}", json={**NIGHTLY, **options})


@pytest.mark.asyncio
async def test_a_schedule_is_created_changed_shown_and_deleted(web: Stage) -> None:
    async with web.client("operator") as client:
        made = await put(client, labels={"team": "data"}, deadline=3600)
        assert made.status_code == 201
        shown = made.json()
        assert (shown["state"], shown["expression"], shown["author"]) == (
            "active",
            "0 3 * * * (Europe/Berlin)",
            "operator",
        )
        assert (shown["payload"], shown["labels"], shown["deadline"]) == ({"full": True}, {"team": "data"}, 3600.0)
        assert len(shown["upcoming"]) == 5
        assert shown["upcoming"][0] == shown["next_at"]
        assert sorted(shown["upcoming"]) == shown["upcoming"]
        same = await put(client, labels={"team": "data"}, deadline=3600)
        assert (same.status_code, same.json()["version"]) == (200, 1)
        changed = await put(client, overlap="queue")
        assert (changed.status_code, changed.json()["overlap"], changed.json()["labels"]) == (200, "queue", {})
        refused = await put(client, overlap="allow", replace=False)
        assert (refused.status_code, refused.json()["code"]) == (409, "schedule-conflict")
        assert (await client.get("/schedules/nightly")).json() == changed.json()
        assert (await client.delete("/schedules/nightly")).status_code == 204
        assert (await client.get("/schedules/nightly")).status_code == 404


@pytest.mark.asyncio
async def test_pages_have_all_schedules_once(web: Stage) -> None:
    async with web.client("operator") as client:
        for tenant in ("acme", "globex"):
            for name in ("a", "b", "c"):
                await client.put(f"/schedules/{name}?tenant={tenant}", json=NIGHTLY)
        found, cursor = [], ""
        for _ in range(4):
            page = (await client.get(f"/schedules?limit=2{cursor}")).json()
            found += [(each["tenant"], each["name"]) for each in page["items"]]
            if page["next"] is None:
                break
            cursor = f"&cursor={page['next']}"
        assert found == [(tenant, name) for tenant in ("acme", "globex") for name in ("a", "b", "c")]
        own = (await client.get("/schedules?tenant=acme")).json()["items"]
        assert [each["name"] for each in own] == ["a", "b", "c"]
        wrong = await client.get("/schedules?cursor=abc")
        assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "cursor")


@pytest.mark.asyncio
async def test_a_paused_schedule_says_who_and_why_and_can_be_run_and_resumed(web: Stage) -> None:
    async with web.client("operator") as client:
        await put(client)
        for _ in range(2):
            paused = (await client.post("/schedules/nightly/pause", json={"reason": "incident 7"})).json()
            assert (paused["state"], paused["paused_by"], paused["paused_reason"]) == (
                "paused",
                "operator",
                "incident 7",
            )
            assert (paused["next_at"], paused["upcoming"]) == (None, [])
        run = await client.post("/schedules/nightly/run", json={"id": "my-run"})
        assert (run.status_code, run.json()["id"], run.json()["payload"]) == (201, "my-run", {"full": True})
        assert run.headers["location"] == "/api/v1/jobs/my-run"
        assert (await client.post("/schedules/nightly/run", json={"id": "my-run"})).status_code == 200
        resumed = (await client.post("/schedules/nightly/resume")).json()
        assert (resumed["state"], resumed["paused_by"], resumed["last_job"]) == ("active", None, "my-run")


@pytest.mark.asyncio
async def test_a_tenant_sees_and_changes_only_its_own_schedules(web: Stage) -> None:
    async with web.client("blue") as blue, web.client("red") as red:
        assert (await put(blue)).json()["tenant"] == "blue"
        assert (await put(red, topic="other")).json()["tenant"] == "red"
        assert [each["topic"] for each in (await blue.get("/schedules")).json()["items"]] == ["report.build"]
        for answer in (
            await red.put("/schedules/nightly?tenant=blue", json=NIGHTLY),
            await red.get("/schedules/nightly?tenant=blue"),
            await red.delete("/schedules/nightly?tenant=blue"),
            await red.post("/schedules/nightly/run?tenant=blue"),
            await red.get("/schedules?tenant=blue"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (403, "not-allowed")
    async with web.client("blue-viewer") as viewer:
        assert (await viewer.get("/schedules/nightly")).status_code == 200
        assert (await put(viewer)).status_code == 403


@pytest.mark.asyncio
async def test_a_declared_schedule_can_be_paused_and_run_and_not_changed(web: Stage) -> None:
    declared = DeclaredSchedule(made_spec("nightly", "report.build", every=3600))
    await web.service.schedules.store.declare("billing", [declared])
    async with web.client("operator") as client:
        for answer in (await put(client), await client.delete("/schedules/nightly")):
            assert (answer.status_code, answer.json()["code"]) == (409, "schedule-conflict")
            assert "declared by the app billing" in answer.json()["detail"]
        assert (await client.post("/schedules/nightly/pause")).json()["app"] == "billing"
        assert (await client.post("/schedules/nightly/run")).status_code == 201


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 0 31 4 *"}, "cron"),
        ({"cron": None}, "cron"),
        ({"every": 60}, "cron"),
        ({"tz": "Mars/Olympus"}, "tz"),
        ({"cron": None, "tz": "UTC", "every": 1.5}, "every"),
        ({"catch_up": "all"}, "catch_up"),
        ({"jitter": 86_400}, "jitter"),
        ({"overlap": "maybe"}, "overlap"),
        ({"priority": 101}, "priority"),
        ({"labels": {"holdfast.pool": "x"}}, "labels"),
        ({"more": 1}, "more"),
    ],
)
async def test_bad_input_is_422_with_the_field_and_stores_nothing(
    web: Stage, options: dict[str, Any], field: str
) -> None:
    async with web.client("operator") as client:
        answer = await put(client, **options)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == field
        assert (await client.get("/schedules")).json()["items"] == []


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["a b", "-x", "a:b", "x" * 101])
async def test_a_name_that_cannot_be_used_is_422(web: Stage, name: str) -> None:
    async with web.client("operator") as client:
        answer = await put(client, name)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "name")


@pytest.mark.asyncio
async def test_the_ids_of_scheduled_jobs_are_reserved(web: Stage) -> None:
    async with web.client("operator") as client:
        await put(client)
        reserved = "schedule:default:nightly@20261120T030000Z"
        for answer in (
            await client.post("/jobs", json={"topic": "a", "id": reserved}),
            await client.post("/jobs", json={"topic": "a", "idempotency_key": reserved}),
            await client.post("/schedules/nightly/run", json={"id": reserved}),
        ):
            assert answer.status_code == 422
            assert "reserved" in answer.json()["errors"][0]["problem"]
