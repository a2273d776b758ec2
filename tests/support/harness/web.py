"""A plane behind its HTTP API for tests: the real service on a SQLite file, asked in the process or over a socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import httpx
import uvicorn
from fastapi import FastAPI

import holdfast.aio
from holdfast.core.ports import Clock
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.approvals.rules import ApprovalRules
from holdfast.plane.approvals.service import Approvals
from holdfast.plane.bus.embedded.bus import EmbeddedBus
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.open import open_database
from holdfast.plane.fleet.registry import Workers
from holdfast.plane.jobs.dead_letters import Undelivered
from holdfast.plane.jobs.store import JobStore, Writing
from holdfast.plane.locks.registry import SCHEDULER_JOB
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Change, Job, Submission
from holdfast.plane.schedules.store import Schedules
from holdfast.plane.service.schedules import ScheduleService
from holdfast.plane.service.service import Caller, Service, ServiceParts
from holdfast.plane.service.workflows import RunService
from holdfast.plane.workflows.definitions import Definitions
from holdfast.plane.workflows.run_store import RunStore
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.web.app import create_app
from holdfast.web.middleware.auth import EVERY_TENANT, Access, Role, TokenEntry, digest_of
from support.harness.api_description import check

T = TypeVar("T")

UNBOUND: Final = Caller("tester")

TOKENS: Final = {
    "viewer": "token-of-a-viewer-0001",
    "operator": "token-of-an-operator-01",
    "approver": "token-of-an-approver-01",
    "admin": "token-of-an-admin-00001",
    "blue-viewer": "token-of-a-blue-viewer1",
    "blue": "token-of-a-blue-operator",
    "red": "token-of-a-red-operator",
}


def entry(name: str, *roles: Role, tenant: str = EVERY_TENANT) -> TokenEntry:
    return TokenEntry(name, digest_of(TOKENS[name]), roles, tenant)


def tokens() -> Access:
    """One token of each kind."""
    return Access(
        [
            entry("viewer", Role.VIEWER),
            entry("operator", Role.OPERATOR),
            entry("approver", Role.APPROVER),
            entry("admin", Role.ADMIN),
            entry("blue-viewer", Role.VIEWER, tenant="blue"),
            entry("blue", Role.OPERATOR, tenant="blue"),
            entry("red", Role.OPERATOR, tenant="red"),
        ]
    )


@dataclass
class Stage:
    """A plane, its application, and who asks."""

    service: Service
    app: FastAPI

    def client(self, name: str | None = None) -> httpx.AsyncClient:
        """A client with a token; None: without one. Responses have to match the API description."""
        headers = {} if name is None else {"authorization": f"Bearer {TOKENS[name]}"}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
        return httpx.AsyncClient(
            transport=transport, base_url="http://localhost/api/v1", headers=headers, event_hooks={"response": [check]}
        )

    async def submit(self, *, tenant: str = "default", topic: str = "sum", job: str | None = None) -> Job:
        """A job, without the API."""
        made, _ = await self.service.submit(UNBOUND, Submission(topic, {"n": 1}, tenant, job))
        return made

    async def end(self, job: Job, state: JobState = JobState.FAILED, *, dead: bool = True) -> Job:
        """End a job as a scheduler does."""
        lease = CarriedFence(SCHEDULER_JOB.key(job=job.id), 1_000)
        change = Change(state, reason="it was broken", code="broken", actor="scheduler")
        changed = await self.service.parts.store.change(lease, job.id, lambda _: Writing([change], dead=dead))
        assert changed.after is not None
        return changed.after


@asynccontextmanager
async def service_at(
    folder: Path, *, clock: Clock | None = None, options: str = "", rules: ApprovalRules | None = None
) -> AsyncIterator[Service]:
    """The service of a plane on files of its own."""
    clock, entropy = clock or SystemClock(), SystemEntropy()
    database = open_database(f"sqlite:///{folder / 'plane.db'}?synchronous=normal{options}")
    bus = EmbeddedBus(database, clock, entropy, dead=Undelivered(database, clock))
    try:
        async with holdfast.aio.connect(f"sqlite:///{folder / 'leases.db'}") as locks:
            await prepare(database)
            await bus.prepare()
            store = JobStore(database, bus, clock, entropy)
            approvals = Approvals(database, store, locks, rules or ApprovalRules())
            runs = RunStore(database, bus, Definitions(database, clock), approvals, clock, entropy)
            await runs.prepare()
            await approvals.prepare()
            flows = RunService(runs, approvals, bus)
            workers = Workers(database, clock)
            schedules = Schedules(database, approvals, clock)
            await schedules.prepare()
            parts = ServiceParts(database, bus, locks, store, workers, approvals=approvals, flows=flows)
            service = Service(replace(parts, schedules=ScheduleService(schedules)))
            await service.resources.prepare()
            yield service
    finally:
        await bus.close()
        await database.close()


@asynccontextmanager
async def stage_at(folder: Path, access: Access | None = None) -> AsyncIterator[Stage]:
    """A plane behind its API."""
    async with service_at(folder) as service:
        yield Stage(service, create_app(service, access or tokens()))


class Served:
    """A plane behind its API on a real socket, in a thread with a loop of its own, for clients that block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready: Future[Stage] = Future()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="plane-api")

    def __enter__(self) -> Self:
        self._thread.start()
        self.stage = self._ready.result(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(60)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something with the plane itself, on its loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            async with stage_at(self._folder) as stage:
                how = uvicorn.Config(stage.app, log_config=None, lifespan="off", ws="none", timeout_keep_alive=60)
                self._server = uvicorn.Server(how)
                # The socket listens already: a client that connects before the server is up waits for it.
                self._loop.call_soon(self._ready.set_result, stage)
                await self._server.serve(sockets=[self._listener])
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise
