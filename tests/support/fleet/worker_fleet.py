"""Worker processes as `holdfast worker` starts them, and an ear at what they say to the scheduler."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.plane.bus.open import open_bus
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Bus, Consumption
from holdfast.plane.jobs.dead_letters import Undelivered
from holdfast.plane.jobs.store import JobStore
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Delivery, Message, Submission
from holdfast.runtime.system import SystemClock, SystemEntropy
from support.cli.ready import ready_strict
from support.faults.freeze import freeze
from support.fixtures.databases import until
from support.fixtures.scheduling import enqueue
from support.fixtures.workers import ordered

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


@dataclass(frozen=True)
class Places:
    """Where a fleet keeps things."""

    database: str
    leases: str
    bus: str | None = None

    def arguments(self) -> list[str]:
        """As the command takes them."""
        chosen = ["--url", self.leases, "--database", self.database]
        return chosen if self.bus is None else [*chosen, "--bus", self.bus]


class WorkerProcess:
    """One `holdfast worker`."""

    def __init__(self, places: Places, directory: Path, name: str, *options: str, app: str = "worker_jobs:app") -> None:
        self.name = name
        self._places = places
        self.directory = directory
        self.log = directory / f"{name}.log"
        paths = os.pathsep.join((str(ROOT / "src"), str(HERE)))
        words = ["worker", app, "--name", name, "--json", *places.arguments(), *options]
        with self.log.open("wb") as log, Path(os.devnull).open("wb") as nothing:
            self.popen = ready_strict().start(words, directory, {**os.environ, "PYTHONPATH": paths}, nothing, log)

    def events(self) -> list[dict[str, Any]]:
        """What it has said so far, in whole lines."""
        lines = self.log.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) if line.startswith("{") else {"event": "text", "text": line} for line in lines]

    def said(self, event: str) -> bool:
        """Whether it has said a thing."""
        return any(each["event"] == event for each in self.events())

    async def ready(self) -> WorkerProcess:
        """Return when it takes jobs."""
        await until(lambda: self.said("ready") or self.popen.poll() is not None)
        assert self.said("ready"), self.log.read_text(encoding="utf-8")
        return self

    async def began(self, job: str) -> None:
        """Return when it runs a job."""
        await until(lambda: self.began_before(job))

    def began_before(self, job: str) -> bool:
        """Whether it has ever run a job."""
        return (self.directory / f"{job}.{self.popen.pid}.began").exists()

    def pause(self) -> None:
        """Stop it from running at all."""
        freeze(self.popen.pid, self._places.database, self._places.leases)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.popen.send_signal(number)

    async def ended(self) -> int:
        """Its exit code, when it has ended."""
        await until(lambda: self.popen.poll() is not None)
        assert self.popen.returncode is not None
        return self.popen.returncode

    def end(self) -> None:
        """End it in any case."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.kill()
            self.popen.wait(60)


@dataclass
class Fleet:
    """Workers on one database and bus, which the test shares as the scheduler does."""

    places: Places
    directory: Path
    bus: Bus
    store: JobStore
    heard: list[Message] = field(default_factory=list)
    workers: list[WorkerProcess] = field(default_factory=list)

    async def worker(self, name: str, *options: str) -> WorkerProcess:
        """A worker process that takes jobs."""
        started = WorkerProcess(self.places, self.directory, name, *options)
        self.workers.append(started)
        return await started.ready()

    async def send(self, topic: str, job: str) -> str:
        """Hand an attempt to the workers."""
        made, _ = await enqueue(self.store, Submission(topic, str(self.directory), id=job), "default")
        await self._write(job, JobState.DISPATCHED)
        await self.bus.publish([ordered(job, topic, str(self.directory), made_ns=made.created_ns)])
        return job

    def go(self, job: str) -> None:
        """Let a job end."""
        (self.directory / f"{job}.go").touch()

    def said(self, subject: str, job: str) -> list[Message]:
        """What the scheduler has heard of a job."""
        return [each for each in self.heard if each.subject == subject and each.body["job"] == job]

    async def result(self, job: str, worker: WorkerProcess) -> Message:
        """The result that a worker says."""

        def found() -> list[Message]:
            return [each for each in self.said(subjects.RESULT, job) if each.body["worker"] == worker.name]

        await until(found)
        return found()[0]

    async def hear(self, delivery: Delivery) -> None:
        """A message for the scheduler, which ends a job with its first result."""
        message = delivery.message
        if message.subject == subjects.RESULT:
            await self._write(message.body["job"], JobState.SUCCEEDED)
        self.heard.append(message)

    async def _write(self, job: str, state: JobState) -> None:
        statement = "UPDATE plane_job SET state = :state, attempt = 1 WHERE id = :id"
        await self.store.database.write(lambda tx: tx.query(statement, {"state": str(state), "id": job}))


@asynccontextmanager
async def fleet(places: Places, directory: Path) -> AsyncIterator[Fleet]:
    """A fleet without workers, with the scheduler's ear open."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        database = open_database(places.database)
        stack.push_async_callback(database.close)
        await prepare(database)
        bus = open_bus(places.bus, database, clock, SystemEntropy(), dead=Undelivered(database, clock))
        stack.push_async_callback(bus.close)
        await bus.prepare()
        made = Fleet(places, directory, bus, JobStore(database, bus, clock, SystemEntropy()))
        for subject in (subjects.STARTED, subjects.RESULT):
            await stack.enter_async_context(bus.consume(Consumption(subject, subjects.SCHEDULER), made.hear))
        try:
            yield made
        finally:
            for each in made.workers:
                await asyncio.to_thread(each.end)
