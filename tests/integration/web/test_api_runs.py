"""Workflows and their runs over HTTP: defined, started once, listed, looked at, ended and run again, each by tenant."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from holdfast.plane.model.job_states import JobState
from holdfast.plane.service.service import Caller
from holdfast.plane.workflows.core.run import CancelRequested, CheckRun, JobEnded
from holdfast.plane.workflows.engine import WorkflowEngine
from support.fixtures.workflows import holds
from support.harness.web import Stage

pytestmark = pytest.mark.asyncio

ORDER: dict[str, Any] = {
    "name": "order",
    "inputs": {"id": "whole", "gift": {"type": "flag", "default": False}},
    "steps": {
        "fetch": {"topic": "orders.fetch", "input": "${ input.id }"},
        "pay": {"topic": "pay", "after": ["fetch"], "input": "${ steps.fetch.output }"},
    },
    "output": "${ steps.pay.output }",
}


def engine(web: Stage) -> WorkflowEngine:
    """What moves runs, when a test says so."""
    parts = web.service.parts
    return WorkflowEngine(web.service.flows.store, parts.locks, parts.bus)


async def defined(web: Stage, document: dict[str, Any] = ORDER, *, by: str = "operator", **more: Any) -> dict[str, Any]:
    async with web.client(by) as client:
        answer = await client.post("/workflows", json={"definition": document, **more})
    assert answer.status_code in (200, 201), answer.text
    told: dict[str, Any] = answer.json()
    return told


async def started(client: httpx.AsyncClient, **asked: Any) -> dict[str, Any]:
    answer = await client.post("/runs", json={"workflow": "order", "input": {"id": 7}, **asked})
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/api/v1/runs/{answer.json()['id']}"
    told: dict[str, Any] = answer.json()
    return told


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    told: dict[str, Any] = answer.json()
    return told


# Definitions.


async def test_the_same_definition_is_the_same_version_and_a_changed_one_is_the_next(web: Stage) -> None:
    async with web.client("operator") as client:
        first = await client.post("/workflows", json={"definition": ORDER})
        again = await client.post("/workflows", json={"definition": ORDER})
        changed = await client.post("/workflows", json={"definition": {**ORDER, "description": "now with words"}})
        assert [each.status_code for each in (first, again, changed)] == [201, 200, 201]
        assert [each.json()["version"] for each in (first, again, changed)] == [1, 1, 2]
        assert (first.json()["scope"], first.json()["created_by"]) == ("*", "operator")
        newest = (await client.get("/workflows/order")).json()
        assert newest == changed.json()
        assert (await client.get("/workflows/order", params={"version": 1})).json() == first.json()
        refused(await client.get("/workflows/order", params={"version": 3}), 404, "not-found")
        refused(await client.get("/workflows/nothing"), 404, "not-found")
        outline = {name: value for name, value in newest.items() if name != "definition"}
        assert (outline["description"], outline["risk"], outline["steps"]) == ("now with words", "low", 2)
        assert (await client.get("/workflows")).json() == {"items": [outline], "next": None}
        again = await client.post("/workflows", json={"definition": newest["definition"]})
        assert (again.status_code, again.json()["version"]) == (200, 2), "what was shown can be sent again"


async def test_every_problem_of_a_definition_is_named_with_its_place_and_a_fix(web: Stage) -> None:
    wrong = {
        "name": "order",
        "steps": {
            "pay": {"topic": "pay", "after": ["fetsh"], "retires": 3},
            "fetch": {"topic": "fetch", "input": "${ stps.pay }", "timeout": "soon"},
        },
    }
    async with web.client("operator") as client:
        told = refused(await client.post("/workflows", json={"definition": wrong}), 422, "invalid")
        assert {each["field"] for each in told["errors"]} == {
            "steps.pay.after[0]",
            "steps.pay.retires",
            "steps.fetch.input",
            "steps.fetch.timeout",
        }
        assert all(each["problem"] and each["fix"] for each in told["errors"])
        assert (await client.get("/workflows")).json()["items"] == []


async def test_definitions_come_in_pages(web: Stage) -> None:
    names = [f"flow-{number}" for number in range(5)]
    for name in names:
        await defined(web, {**ORDER, "name": name})
    async with web.client("viewer") as client:
        seen: list[str] = []
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            cursor = {"cursor": page["next"]} if page["next"] else {}
            page = (await client.get("/workflows", params={"limit": 2, **cursor})).json()
            seen += [each["name"] for each in page["items"]]
        assert seen == names


@pytest.mark.threat("X15")
async def test_a_page_of_large_workflows_is_small(web: Stage) -> None:
    """Else one page could be half a gigabyte, and whatever shares the process with the API would wait for it."""
    large = {"kind": "transform", "input": "x" * 900_000}
    names = [f"flow-{number}" for number in range(3)]
    for name in names:
        await defined(web, {"name": name, "description": "y" * 4_000, "steps": {"make": large}})
    async with web.client("viewer") as client:
        answer = await client.get("/workflows")
        assert len(answer.content) < 2_000
        assert [each["name"] for each in answer.json()["items"]] == names
        assert (await client.get("/workflows/flow-0")).json()["definition"]["steps"]["make"] == large


async def test_a_tenant_defines_for_itself_alone_and_changes_nothing_of_others(web: Stage) -> None:
    everybodys = await defined(web)
    blues = await defined(web, {**ORDER, "risk": "high"}, by="blue")
    assert (blues["scope"], blues["version"]) == ("blue", 1)
    async with web.client("blue") as blue, web.client("red") as red, web.client("operator") as operator:
        for scope in ("red", "*"):
            answer = await blue.post("/workflows", json={"definition": ORDER, "tenant": scope})
            assert answer.status_code in (403, 422), answer.text
        assert (await blue.get("/workflows/order")).json() == blues
        assert (await red.get("/workflows/order")).json() == everybodys
        assert (await operator.get("/workflows/order")).json() == everybodys
        assert (await operator.get("/workflows/order", params={"tenant": "blue"})).json() == blues
        refused(await red.get("/workflows/order", params={"tenant": "blue"}), 403, "not-allowed")
        refused(await red.get("/workflows", params={"tenant": "blue"}), 403, "not-allowed")

        async def seen(client: httpx.AsyncClient, **which: str) -> list[str]:
            return [each["scope"] for each in (await client.get("/workflows", params=which)).json()["items"]]

        assert await seen(red) == ["*"]
        assert await seen(blue) == ["*", "blue"]
        assert await seen(operator) == ["*", "blue"]
        assert await seen(operator, tenant="red") == ["*"]
        # And a run follows what its own tenant sees.
        assert (await started(blue))["risk"] == "high"
        assert (await started(red))["risk"] == "low"


# Runs.


async def test_a_run_is_started_looked_at_and_listed(web: Stage) -> None:
    await defined(web)
    async with web.client("operator") as client:
        made = await started(client, labels={"team": "a"}, trace="abc", deadline_in=3600, tenant="acme")
        assert (made["status"], made["tenant"], made["submitted_by"]) == ("pending", "acme", "operator")
        assert made["input"] == {"id": 7, "gift": False}
        assert {name: step["status"] for name, step in made["steps"].items()} == {"fetch": "pending", "pay": "pending"}
        assert made["created_at"] < made["deadline_at"]
        mover = engine(web)
        await mover.move(made["id"], CheckRun())
        job = f"{made['id']}:fetch@1"
        await mover.move(made["id"], JobEnded(job, JobState.SUCCEEDED, {"amount": 12}))
        now = (await client.get(f"/runs/{made['id']}")).json()
        assert (now["status"], now["steps"]["fetch"]["output"]) == ("running", {"amount": 12})
        assert now["steps"]["pay"]["job"] == f"{made['id']}:pay@1"
        assert now["fence"] is not None
        (line,) = (await client.get("/runs")).json()["items"]
        assert line["steps"] == {"fetch": "succeeded", "pay": "running"}
        assert {name: line[name] for name in line if name != "steps"} == {
            name: now[name] for name in now if name not in ("steps", "input", "output")
        }


async def test_an_input_that_the_workflow_does_not_take_is_refused(web: Stage) -> None:
    await defined(web)
    async with web.client("operator") as client:
        for value, field in (({}, "input.id"), ({"id": "seven"}, "input.id"), ({"id": 1, "to": 2}, "input.to")):
            answer = await client.post("/runs", json={"workflow": "order", "input": value})
            assert refused(answer, 422, "invalid")["errors"][0]["field"] == field
        refused(await client.post("/runs", json={"workflow": "none"}), 404, "not-found")
        assert (await client.get("/runs")).json()["items"] == []


async def test_an_idempotency_key_in_header_or_field_makes_one_run(web: Stage) -> None:
    await defined(web)
    async with web.client("operator") as client:
        asked = {"workflow": "order", "input": {"id": 7}}
        answers = await asyncio.gather(
            *(client.post("/runs", json=asked, headers={"idempotency-key": "once"}) for _ in range(5)),
            *(client.post("/runs", json={**asked, "idempotency_key": "once"}) for _ in range(5)),
        )
        assert sorted(answer.status_code for answer in answers) == [200] * 9 + [201]
        assert len({answer.json()["id"] for answer in answers}) == 1
        both = await client.post("/runs", json={**asked, "idempotency_key": "a"}, headers={"idempotency-key": "b"})
        assert refused(both, 422, "invalid")["errors"][0]["field"] == "idempotency_key"
        other = {"workflow": "order", "input": {"id": 8}, "idempotency_key": "once"}
        refused(await client.post("/runs", json=other), 409, "exists")
        refused(await client.post("/runs", json={**asked, "id": "mine", "idempotency_key": "once"}), 409, "exists")
        elsewhere = await client.post("/runs", json={**asked, "tenant": "acme", "idempotency_key": "once"})
        assert elsewhere.status_code == 201, "keys are each tenant's own"


async def test_a_repeated_start_is_the_same_run_though_the_definition_has_changed(web: Stage) -> None:
    await defined(web)
    async with web.client("operator") as client:
        made = await started(client, idempotency_key="once")
        stricter = {**ORDER, "inputs": {"id": "whole", "gift": {"type": "flag", "default": True}, "to": "text"}}
        assert (await defined(web, stricter))["version"] == 2
        again = await client.post("/runs", json={"workflow": "order", "input": {"id": 7}, "idempotency_key": "once"})
        assert (again.status_code, again.json()["id"], again.json()["workflow_version"]) == (200, made["id"], 1)


async def test_an_id_is_taken_once_and_every_id_can_be_asked_for(web: Stage) -> None:
    await defined(web)
    async with web.client("operator") as client:
        for name in ("a/b", "a/timeline", "a[1].b-c:d"):
            await started_as(client, name)
            path = name.replace("/", "%2F")
            assert (await client.get(f"/runs/{path}")).json()["id"] == name
            assert (await client.get(f"/runs/{path}/timeline")).json()["items"][0]["kind"] == "submitted"
        taken = await client.post("/runs", json={"workflow": "order", "input": {"id": 1}, "id": "a/b"})
        refused(taken, 409, "exists")
        for name in ("a@1", "x" * 81, ""):
            answer = await client.post("/runs", json={"workflow": "order", "input": {"id": 1}, "id": name})
            refused(answer, 422, "invalid")


async def started_as(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.post("/runs", json={"workflow": "order", "input": {"id": 1}, "id": name})
    assert answer.status_code == 201, answer.text


async def test_runs_come_in_pages_and_are_filtered(web: Stage) -> None:
    await defined(web)
    await defined(web, {**ORDER, "name": "other"})
    mover = engine(web)
    async with web.client("operator") as client:
        made = [(await started(client, tenant="acme" if number % 2 else "globex"))["id"] for number in range(13)]
        await mover.move(made[0], CancelRequested("me", "enough"))
        other = (await started(client, workflow="other"))["id"]

        async def found(**which: Any) -> list[str]:
            seen: list[str] = []
            cursor: dict[str, str] = {}
            while True:
                page = (await client.get("/runs", params={**which, **cursor})).json()
                seen += [each["id"] for each in page["items"]]
                if page["next"] is None:
                    return seen
                cursor = {"cursor": page["next"]}

        newest = [other, *reversed(made)]
        assert await found(limit=5) == newest
        assert await found(limit=14) == newest
        assert await found(workflow="other") == [other]
        assert await found(tenant="globex", limit=2) == [each for each in newest if each in made[::2]]
        assert await found(status="cancelled") == [made[0]]
        assert await found(status="pending", limit=3) == newest[:-1]


async def test_a_timeline_comes_in_pages_with_the_fence_of_each_write(web: Stage) -> None:
    await defined(web)
    mover = engine(web)
    async with web.client("operator") as client:
        run = (await started(client))["id"]
        await mover.move(run, CheckRun())
        await mover.move(run, JobEnded(f"{run}:fetch@1", JobState.SUCCEEDED, 1))
        whole = (await client.get(f"/runs/{run}/timeline")).json()
        assert whole["next"] is None
        assert [(each["step"], each["kind"]) for each in whole["items"][:1]] == [(None, "submitted")]
        assert {each["step"] for each in whole["items"]} >= {None, "fetch", "pay"}
        assert [each["fence"] is None for each in whole["items"]] == [True] + [False] * (len(whole["items"]) - 1)
        seen: list[Any] = []
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            cursor = {"cursor": page["next"]} if page["next"] else {}
            page = (await client.get(f"/runs/{run}/timeline", params={"limit": 1, **cursor})).json()
            seen += page["items"]
        assert seen == whole["items"]
        refused(await client.get(f"/runs/{run}/timeline", params={"cursor": "made-up"}), 422, "invalid")


async def test_a_run_is_cancelled_by_an_engine_and_then_stays_as_it_is(web: Stage) -> None:
    await defined(web)
    async with web.client("operator") as client:
        run = (await started(client))["id"]
        asked = await client.post(f"/runs/{run}/cancel", json={"reason": "not needed"})
        assert (asked.status_code, asked.json()["status"]) == (202, "pending")

        async def over() -> bool:
            return (await client.get(f"/runs/{run}")).json()["ended_at"] is not None

        async with engine(web).serving():
            await holds(over, "the end of a run")
        now = (await client.get(f"/runs/{run}")).json()
        assert (now["status"], now["error"]) == ("cancelled", "cancelled by operator: not needed")
        again = await client.post(f"/runs/{run}/cancel")
        assert (again.status_code, again.json()["version"]) == (200, now["version"])


async def test_a_run_that_is_over_is_run_again_and_one_that_is_not_is_refused(web: Stage) -> None:
    await defined(web)
    mover = engine(web)
    async with web.client("operator") as client:
        run = (await started(client, labels={"team": "a"}))["id"]
        refused(await client.post(f"/runs/{run}/rerun"), 409, "not-over")
        await mover.move(run, CheckRun())
        await mover.move(run, JobEnded(f"{run}:fetch@1", JobState.SUCCEEDED, 5))
        await mover.move(run, JobEnded(f"{run}:pay@1", JobState.FAILED, None, "no money", retryable=False))
        assert (await client.get(f"/runs/{run}")).json()["status"] == "failed"
        fresh = await client.post(f"/runs/{run}/rerun")
        assert (fresh.status_code, fresh.json()["rerun_of"], fresh.json()["labels"]) == (201, run, {"team": "a"})
        assert fresh.json()["steps"]["fetch"]["status"] == "pending"
        key = {"idempotency-key": "again"}
        kept = await client.post(f"/runs/{run}/rerun", json={"keep": True}, headers=key)
        assert (kept.status_code, kept.json()["steps"]["fetch"]["output"]) == (201, 5)
        assert kept.json()["steps"]["pay"]["status"] == "pending"
        twice = await client.post(f"/runs/{run}/rerun", json={"keep": True}, headers=key)
        assert (twice.status_code, twice.json()["id"]) == (200, kept.json()["id"])
        other = await client.post("/runs", json={"workflow": "order", "input": {"id": 9}, "idempotency_key": "again"})
        refused(other, 409, "exists")


async def test_another_tenants_run_is_not_there(web: Stage) -> None:
    await defined(web)
    async with web.client("red") as red:
        made = await started(red, id="the-reds")
    async with web.client("blue") as blue, web.client("blue-viewer") as viewer:
        for method, path in (
            ("GET", "/runs/the-reds"),
            ("GET", "/runs/the-reds/timeline"),
            ("POST", "/runs/the-reds/cancel"),
            ("POST", "/runs/the-reds/rerun"),
        ):
            refused(await blue.request(method, path), 404, "not-found")
        assert (await blue.get("/runs")).json()["items"] == []
        refused(await blue.get("/runs", params={"tenant": "red"}), 403, "not-allowed")
        refused(await blue.post("/runs", json={"workflow": "order", "tenant": "red"}), 403, "not-allowed")
        assert (await started(blue))["tenant"] == "blue"
        assert len((await viewer.get("/runs")).json()["items"]) == 1
    untouched = await web.service.flows.run(Caller("anyone"), "the-reds")
    assert untouched.version == made["version"]


async def test_reading_takes_less_than_acting(web: Stage) -> None:
    await defined(web)
    async with web.client("operator") as client:
        await started(client, id="mine")
    async with web.client("viewer") as viewer:
        assert (await viewer.get("/runs/mine")).status_code == 200
        for path in ("/runs", "/runs/mine/cancel", "/runs/mine/rerun", "/workflows"):
            refused(await viewer.post(path, json={}), 403, "not-allowed")
