"""The OpenAPI document says what is answered, and nothing else: every answer that it lists is provoked here.

That nothing is answered which it does not list is checked with each answer of every other test (`web_described`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from holdfast.plane.locks.registry import SNAPSHOT_WRITER
from holdfast.plane.loops.leader_document import Document
from holdfast.plane.model.job_states import JobState
from holdfast.plane.process.health import ProcessHealth
from holdfast.plane.process.parts import PartHealth, State
from holdfast.plane.schedules.declaration import DeclaredSchedule
from holdfast.plane.schedules.model import made_spec
from holdfast.plane.service.service import SNAPSHOT
from holdfast.plane.workflows.core.run import CheckRun, JobEnded
from holdfast.plane.workflows.engine import WorkflowEngine
from holdfast.web.app import create_app, description, needed
from holdfast.web.middleware.auth import Access
from holdfast.web.middleware.intake import BODY_BYTES_MAX
from holdfast.web.middleware.rate_limit import Rates
from holdfast.web.openapi import LOCATED, OWN, RETRIED
from support.fixtures.buses import ScriptedClock
from support.harness.api_description import check, operation_of, whole
from support.harness.web import TOKENS, UNBOUND, Stage, stage_at, tokens

JSON = {"content-type": "application/json"}
PATHS: dict[str, dict[str, Any]] = description()["paths"]
OPERATIONS = {operation["operationId"]: operation for methods in PATHS.values() for operation in methods.values()}

Seen = set[tuple[str, int]]


def operations() -> Iterator[tuple[str, str, str]]:
    """Name, method and an address of each."""
    for path, methods in PATHS.items():
        for method, operation in methods.items():
            yield operation["operationId"], method.upper(), "http://localhost" + re.sub(r"\{\w+\}", "none", path)


@asynccontextmanager
async def noting(app: FastAPI, seen: Seen, name: str | None = "admin") -> AsyncIterator[httpx.AsyncClient]:
    async def note(answer: httpx.Response) -> None:
        operation = operation_of(answer.request.method, answer.request.url.path)
        if operation is not None:
            seen.add((operation["operationId"], answer.status_code))

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {} if name is None else {"authorization": f"Bearer {TOKENS[name]}"}
    hooks = {"response": [check, note]}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost/api/v1", headers=headers, event_hooks=hooks
    ) as client:
        yield client


async def refused_at_the_door(stage: Stage, seen: Seen) -> None:
    """What is answered whatever an operation does: to strangers, in a hurry, at the end, and to what cannot be read."""
    service = stage.service
    async with noting(stage.app, seen, None) as anonymous:
        for _, method, url in operations():
            await anonymous.request(method, url)
    async with noting(create_app(service, Access(open_to_all=True)), seen, None) as stranger:
        for _, method, url in operations():
            await stranger.request(method, url, headers={"host": "evil.example"})
    async with noting(create_app(service, tokens(), rates=Rates(1, ScriptedClock())), seen) as eager:
        for _, method, url in [*operations(), *operations()]:
            await eager.request(method, url)
    ending = ProcessHealth(service, health=lambda: [PartHealth("scheduler", State.FAILED)])
    ending.drain()
    async with noting(create_app(service, tokens(), process_health=ending), seen) as late:
        for _, method, url in operations():
            await late.request(method, url)
    async with noting(stage.app, seen) as client:
        for name, method, url in operations():
            await client.request(method, url, params=[("twice", "1"), ("twice", "2")])
            if method != "GET":
                await client.request(method, url, content=b"text", headers={"content-type": "text/plain"})
                await client.request(method, url, headers={**JSON, "content-length": str(BODY_BYTES_MAX + 1)})
            if "requestBody" in OPERATIONS[name]:
                await client.request(method, url, content=b"{", headers=JSON)


async def broken(stage: Stage, seen: Seen) -> None:
    app = create_app(stage.service, tokens())
    app.state.service = app.state.board = app.state.process_health = None
    bodies: dict[str, Any] = {
        "submit": {"topic": "a"},
        "define": {"definition": {}},
        "start_run": {"workflow": "a"},
        "limit": {"slots": 1},
        "switch_jitter": {"seconds": 0.2, "reason": "x"},
        "switch_policy": {"risk": "high", "mode": "wait", "reason": "x"},
        "watch": {"items": [{"id": "a"}]},
        "watch_runs": {"items": [{"id": "a"}]},
        "acquire": {"resource": "r", "owner": "o"},
        "renew": {"resource": "r", "token": "t"},
        "release": {"resource": "r", "token": "t"},
        "take_away": {"resource": "r", "reason": "x"},
        "put_schedule": {"topic": "a", "every": 60},
    }
    async with noting(app, seen) as client:
        for name, method, url in operations():
            await client.request(method, url, json=bodies.get(name))


async def jobs(stage: Stage, client: httpx.AsyncClient) -> None:
    asked = {"topic": "sum", "idempotency_key": "once"}
    job = (await client.post("/jobs", json=asked)).json()["id"]
    await client.post("/jobs", json=asked)
    await client.post("/jobs", json={**asked, "topic": "other"})
    for kind in ("jobs", "runs"):
        await client.post(f"/watch/{kind}", json={"items": [{"id": job}], "timeout": 0})
    paths = ("/jobs", *(f"/jobs/{each}{part}" for each in (job, "none") for part in ("", "/events", "/updates")))
    for path in paths:
        await client.get(path)
    await client.post(f"/jobs/{job}/cancel")
    await client.post(f"/jobs/{job}/retry")
    await client.post("/jobs/none/cancel")
    await client.post("/jobs/none/retry")
    dead, ended = [await stage.end(await stage.submit(), dead=each) for each in (True, False)]
    await client.post(f"/jobs/{ended.id}/cancel")
    place = (await client.get(f"/jobs/{ended.id}/updates")).json()["next"]
    await client.get(f"/jobs/{ended.id}/events", headers={"accept": "text/event-stream", "last-event-id": place})
    other = await stage.end(await stage.submit(), JobState.FAILED)
    for path in (f"/jobs/{dead.id}/retry", f"/dead-letters/{other.id}/retry"):
        await client.post(path)
        await client.post(path)
    for path in ("/dead-letters", f"/dead-letters/{dead.id}", "/dead-letters/none"):
        await client.get(path)
    await client.post("/dead-letters/none/retry")
    await client.delete(f"/dead-letters/{dead.id}")
    await client.delete(f"/dead-letters/{dead.id}")


async def plane(stage: Stage, client: httpx.AsyncClient) -> None:
    await client.get("/snapshot")
    await client.get("/findings")
    parts = stage.service.parts
    document = Document(parts.database, SNAPSHOT, SNAPSHOT_WRITER, parts.store.clock)
    async with SNAPSHOT_WRITER.lock(parts.locks) as lease:
        await document.put(lease, {}, writer="me")
    for path in ("snapshot", "workers", "locks", "inventory", "status", "policy", "policy/history"):
        await client.get(f"/{path}")
    await client.put("/tenants/blue/limits", json={"slots": 1})
    await client.get("/tenants/blue/limits")
    switch = {"risk": "high", "mode": "wait", "reason": "x"}
    await client.put("/policy", json=switch)
    await client.put("/policy", json={**switch, "expect": 999})
    await client.put("/policy/busy_jitter", json={"seconds": 0.2, "reason": "r"})
    await client.put("/policy/busy_jitter", json={"seconds": 0.1, "reason": "r", "expect": 999})
    for path in ("healthz", "readyz", "metrics"):
        await client.get(f"http://localhost/{path}")


async def resources(client: httpx.AsyncClient) -> None:
    asked = {"resource": "r", "owner": "me"}
    held = (await client.post("/resource-locks/acquire", json=asked)).json()
    await client.post("/resource-locks/acquire", json=asked)
    await client.get("/resource-locks")
    mine = {"resource": "r", "token": held["token"]}
    for verb in ("renew", "release", "renew", "release"):
        await client.post(f"/resource-locks/{verb}", json=mine)
    await client.post("/resource-locks/break", json={"resource": "r", "reason": "its holder is gone"})
    await client.get("/resource-locks/broken")


async def flows(stage: Stage, client: httpx.AsyncClient) -> None:
    definition = {"name": "ask", "steps": {"ask": {"kind": "approval"}}}
    for _ in range(2):
        await client.post("/workflows", json={"definition": definition})
    for path in (
        "workflows",
        "workflows/ask",
        "workflows/none",
        "runs",
        "runs/none",
        "runs/none/timeline",
        "approvals",
    ):
        await client.get(f"/{path}")
    await client.post("/runs", json={"workflow": "none"})
    asked = {"workflow": "ask", "id": "r1", "idempotency_key": "once"}
    for _ in range(2):
        await client.post("/runs", json=asked)
    await client.post("/runs", json={**asked, "idempotency_key": "other"})
    for path in ("runs/r1", "runs/r1/timeline", "approvals/none"):
        await client.get(f"/{path}")
    await client.post("/runs/r1/rerun")
    await client.post("/runs/none/rerun")
    await client.post("/runs/none/cancel")
    await client.post("/runs/r1/cancel")
    engine = WorkflowEngine(stage.service.flows.store, stage.service.parts.locks, stage.service.parts.bus)
    waiting = []
    for run in ("a1", "a2"):  # requested by another caller than the approver
        await stage.service.flows.start(UNBOUND, "ask", run_id=run)
        await engine.move(run, CheckRun())
        waiting += [each.job for each in (await stage.service.flows.approvals(UNBOUND)).items][-1:]
    for job, verdict, other in zip(waiting, ("approve", "reject"), ("reject", "approve"), strict=True):
        await client.get(f"/approvals/{job}")
        await client.post(f"/approvals/{job}/{verdict}")
        await client.post(f"/approvals/{job}/{other}")
        await client.post(f"/approvals/none/{verdict}")
    await engine.move("a2", JobEnded(waiting[1], JobState.DENIED, None, "no", retryable=False))
    for _ in range(2):
        await client.post("/runs/a2/rerun", headers={"idempotency-key": "again"})
    await client.post("/runs/a2/cancel")


async def schedules(stage: Stage, client: httpx.AsyncClient) -> None:
    asked = {"topic": "sum", "every": 60}
    for body in (asked, asked, {**asked, "every": 90, "replace": False}):
        await client.put("/schedules/s", json=body)
    for path in ("schedules", "schedules/s", "schedules/none"):
        await client.get(f"/{path}")
    for name in ("s", "none"):
        for verb in ("pause", "resume", "run"):
            await client.post(f"/schedules/{name}/{verb}")
    for topic in ("sum", "sum", "other"):
        await client.put("/schedules/s", json={"topic": topic, "every": 60})
        await client.post("/schedules/s/run", json={"id": "my-run"})
    spec = made_spec("declared", "sum", every=60)
    await stage.service.schedules.store.declare("app", [DeclaredSchedule(spec)])
    for name in ("s", "s", "declared"):
        await client.delete(f"/schedules/{name}")


@pytest.mark.asyncio
async def test_every_answer_that_is_described_can_be_had(tmp_path: Path) -> None:
    seen: Seen = set()
    async with stage_at(tmp_path) as stage:
        async with noting(stage.app, seen) as client:
            await jobs(stage, client)
            await plane(stage, client)
            await resources(client)
            await flows(stage, client)
            await schedules(stage, client)
        async with noting(stage.app, seen, "blue") as bound:
            await bound.get("/tenants/red/limits")
        await refused_at_the_door(stage, seen)
        await broken(stage, seen)
    described = {(name, int(status)) for name, operation in OPERATIONS.items() for status in operation["responses"]}
    assert described - seen == set()


def test_what_the_tables_name_is_an_operation() -> None:
    assert {*OWN, *LOCATED, *RETRIED} <= set(OPERATIONS)


def test_each_operation_names_its_role() -> None:
    roles = {
        name: operation["security"][0]["HTTPBearer"]
        for name, operation in OPERATIONS.items()
        if "security" in operation
    }
    assert roles == {name: [str(need.role)] for name, need in needed().items()}
    assert set(OPERATIONS) - set(roles) == {"healthz", "readyz"}


def test_health_lists_no_answer_of_the_api() -> None:
    assert set(OPERATIONS["healthz"]["responses"]) == {"200", "403", "422", "500", "503"}
    assert "reasons" in description()["components"]["schemas"]["ProblemShown"]["properties"]


@pytest.mark.asyncio
async def test_metrics_in_both_formats_are_described(web: Stage) -> None:
    async with web.client("viewer") as client:
        for accept in ("text/plain", "application/openmetrics-text"):
            answer = await client.get("http://localhost/metrics", headers={"accept": accept})
            assert answer.headers["content-type"].startswith(accept)


@pytest.mark.asyncio
async def test_another_method_is_405_as_described_once_for_all(web: Stage) -> None:
    said = whole({"$ref": "#/components/responses/MethodNotAllowed"})
    async with web.client("admin") as client:
        for path, methods in PATHS.items():
            answer = await client.patch("http://localhost" + re.sub(r"\{\w+\}", "none", path))
            assert answer.status_code == 405
            assert answer.headers["content-type"] in said["content"]
            assert {each.lower() for each in said["headers"]} <= set(answer.headers)
            allowed = {each.upper() for each in methods} | ({"HEAD"} if "get" in methods else set())
            assert set(answer.headers["allow"].split(", ")) == allowed
