"""Health, readiness and metrics, as every process answers them: whether a restart would help, or work be taken."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.aio.lease import Lease
from holdfast.core.metric_reading import Reading
from holdfast.errors import LeaseLost
from holdfast.plane.process.health import UNCHECKED, ProcessHealth
from holdfast.plane.process.parts import PartHealth, State
from holdfast.plane.service.service import Service
from holdfast.web.app import create_app, create_probe
from holdfast.web.middleware.auth import Access
from support.harness.api_description import check
from support.harness.web import TOKENS, service_at, tokens

OPEN = Access(open_to_all=True)


async def _check(answer: httpx.Response) -> None:
    if not answer.request.url.path.startswith("/api/"):  # which is described for those that have one
        await check(answer)


@asynccontextmanager
async def asking(
    process_health: ProcessHealth, access: Access = OPEN, token: str | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_probe(process_health, access))
    headers = {} if token is None else {"authorization": f"Bearer {TOKENS[token]}"}
    hooks = {"response": [_check]}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=headers, event_hooks=hooks
    ) as client:
        yield client


@pytest.mark.asyncio
async def test_a_process_that_works_is_alive_ready_and_counts(plane_service: Service) -> None:
    async with asking(ProcessHealth(plane_service)) as client:
        assert (await client.get("/healthz")).json() == {"status": "alive"}
        assert (await client.get("/readyz")).json()["parts"] == {"database": "ok", "bus": "ok", "leases": "ok"}
        text = (await client.get("/metrics")).text
        assert 'holdfast_locks_held{family="scheduler.job"} 0.0' in text.splitlines()
        assert "untyped" not in text
        assert "holdfast_plane_jobs" not in text, "the jobs of the whole plane are counted by the API alone"
        assert 'holdfast_http_requests_total{method="GET",status="200"} 2.0' in text.splitlines()
        missing = await client.get("/api/v1/jobs")
        assert (missing.status_code, missing.json()["code"]) == (404, "not-found")
        assert (await client.post("/healthz")).status_code == 405


@pytest.mark.asyncio
async def test_a_part_that_has_failed_is_named_and_a_restart_asked_for(plane_service: Service) -> None:
    health = [PartHealth("scheduler", State.FAILED), PartHealth("worker", State.RUNNING)]
    async with asking(ProcessHealth(plane_service, health=lambda: health)) as client:
        answer = await client.get("/healthz")
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
        assert (answer.json()["code"], answer.json()["reasons"]) == ("not-working", ["the scheduler has failed"])
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["parts"]["scheduler"]) == (503, "failed")
        text = (await client.get("/metrics")).text
        assert 'holdfast_part_running{part="scheduler"} 0.0' in text.splitlines()
        assert 'holdfast_part_running{part="worker"} 1.0' in text.splitlines()


@pytest.mark.asyncio
async def test_a_process_that_refuses_requests_because_it_starts_is_not_ready(plane_service: Service) -> None:
    process_health = ProcessHealth(plane_service, health=lambda: [PartHealth("api", State.RUNNING)])
    process_health.begun = False
    transport = httpx.ASGITransport(create_app(plane_service, OPEN, process_health=process_health))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/api/v1/jobs")).status_code == 503
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["parts"]["process"]) == (503, "starting")
        assert ready.json()["parts"]["database"] == "ok"
        assert ready.json()["parts"]["bus"] == UNCHECKED  # a new database has no table of it yet
        process_health.begun = True
        assert [(await client.get(path)).status_code for path in ("/api/v1/jobs", "/readyz")] == [200, 200]


@pytest.mark.asyncio
async def test_a_process_that_drains_is_well_and_not_ready_and_takes_nothing_more(plane_service: Service) -> None:
    process_health = ProcessHealth(plane_service)
    transport = httpx.ASGITransport(create_app(plane_service, OPEN, process_health=process_health))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/api/v1/jobs")).status_code == 200
        process_health.drain()
        assert (await client.get("/healthz")).status_code == 200
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["parts"]) == (503, {"process": "draining"})
        refused = await client.get("/api/v1/jobs")
        assert (refused.status_code, refused.json()["code"]) == (503, "closing")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        assert "holdfast_draining 1.0" in (await client.get("/metrics")).text.splitlines()


@pytest.mark.asyncio
async def test_a_store_that_is_gone_makes_it_unready_and_no_restart_is_asked_for(tmp_path: Path) -> None:
    async with service_at(tmp_path) as service:
        app = create_app(service, OPEN)
        await service.parts.database.close()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            assert (await client.get("/healthz")).status_code == 200
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["parts"]["leases"]) == (503, "ok")
            assert ready.json()["parts"]["database"] != "ok"
            counted = await client.get("/metrics")
            assert counted.status_code == 200, "what a process counts matters most when a store is gone"
            assert "holdfast_plane_jobs" not in counted.text


@pytest.mark.asyncio
async def test_a_keeper_that_is_stuck_while_leases_are_held_is_found_out(
    plane_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks, free, held = plane_service.parts.locks, threading.Event(), list[Lease]()
    renew_many = locks.manager.store.renew_many

    async def stuck(*arguments: Any) -> Any:
        free.wait(60)
        return await renew_many(*arguments)

    monkeypatch.setattr(locks.manager.store, "renew_many", stuck)
    try:
        async with asking(ProcessHealth(plane_service)) as client, asyncio.timeout(60):
            held.append(await locks.lock("first", ttl=1.0).acquire())
            assert (await client.get("/healthz")).status_code == 200
            await held[0].lost.wait()
            assert (await client.get("/healthz")).status_code == 200, "nothing is held, so nothing is missed"
            answer = await client.get("/healthz")
            while answer.status_code == 200:  # a host that is busy may be too slow to ask while it is held
                held.append(await locks.lock(f"another:{len(held)}", ttl=1.0).acquire())
                answer = await client.get("/healthz")
            (reason,) = answer.json()["reasons"]
            assert reason.startswith("leases are held and not renewed: renewal is ")
    finally:
        free.set()
        for lease in held:
            with contextlib.suppress(LeaseLost):
                await lease.release()


@pytest.mark.asyncio
async def test_metrics_want_a_token_of_every_tenant_and_the_others_none(plane_service: Service) -> None:
    process_health = ProcessHealth(plane_service, counts=lambda: [Reading("worker", {"active": 3})])
    async with asking(process_health, tokens()) as client:
        assert [(await client.get(path)).status_code for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 401]
    async with asking(process_health, tokens(), "blue-viewer") as client:
        assert (await client.get("/metrics")).status_code == 403
    async with asking(process_health, tokens(), "viewer") as client:
        assert "holdfast_worker_active 3.0" in (await client.get("/metrics")).text.splitlines()
