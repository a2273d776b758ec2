"""Where runs of workflows are tested: real databases, the bus in them, and real leases, for any number of replicas.

`flow_stage` opens replicas at one place, as processes that know nothing of each other would. Jobs are ended by the test
itself, under their lock, as a scheduler would: a test says what became of a step, and when. It runs on a SQLite file
and on Postgres.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest_asyncio
import yaml

from fixtures_scheduling import PushedClock
from holdfast.guards.bearer import carried
from holdfast.plane.db.ports import Row
from holdfast.plane.jobs.rules import Code, End
from holdfast.plane.jobs.termination import ending
from holdfast.plane.locks.job_lock import job_lock
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job, Submission
from holdfast.plane.process.components import Components, opened
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.sections import RunSettings
from holdfast.plane.settings.settings import Settings
from holdfast.plane.workflows.core.definition_codec import from_document
from holdfast.plane.workflows.core.run import RunStatus, StoredRun
from holdfast.plane.workflows.engine import Engine
from holdfast.plane.workflows.run_rows import RunEvent
from polling import pauses

ASKER = Caller("asker")
DECIDER = Caller("decider")


@dataclass
class FlowReplica:
    """One process of the plane, so to speak."""

    components: Components
    engine: Engine
    helper: Components  # whose locks work, whatever becomes of this replica's

    async def define(self, text: str) -> None:
        """Keep a definition, written in YAML."""
        await self.components.flows.define(ASKER, from_document(yaml.safe_load(text)))

    async def start(self, name: str, value: Any = None, **more: Any) -> str:
        """A run of a workflow; its id."""
        stored, _ = await self.components.flows.start(ASKER, name, value, **more)
        return stored.run.id

    async def run(self, run_id: str) -> StoredRun:
        return await self.components.flows.run(ASKER, run_id)

    async def status(self, run_id: str) -> dict[str, str]:
        """How the steps of a run are."""
        return {name: str(state.status) for name, state in (await self.run(run_id)).run.steps.items()}

    async def timeline(self, run_id: str) -> list[RunEvent]:
        return await self.components.flows.timeline(ASKER, run_id)

    async def job(self, job_id: str) -> Job | None:
        return await self.components.store.get(job_id)

    async def appears(self, job_id: str) -> Job:
        """The job, once it is there."""
        found: list[Job] = []

        async def there() -> bool:
            job = await self.job(job_id)
            found[:] = [] if job is None else [job]
            return bool(found)

        await holds(there, f"job {job_id}")
        return found[0]

    async def end(
        self, job_id: str, result: Any = None, *, state: JobState = JobState.SUCCEEDED, code: Code | None = None
    ) -> None:
        """End a job, as the scheduler would after its worker's word."""
        await self.appears(job_id)
        components = self.helper
        async with job_lock(components.locks, job_id) as lease:
            fence = carried(lease)
            reason = "" if state is JobState.SUCCEEDED else "the test says so"

            def over(job: Job) -> Any:
                return ending(job, End(state, code, reason, dead=False), fence, actor="test", result=result)

            assert (await components.store.change(lease, job_id, over)).after is not None

    async def becomes(self, run_id: str, status: RunStatus) -> StoredRun:
        """The run, once it has this status."""

        async def there() -> bool:
            return (await self.run(run_id)).run.status is status

        await holds(there, f"run {run_id} {status}")
        return await self.run(run_id)

    async def steps_become(self, run_id: str, **wanted: str) -> None:
        """Wait until these steps have these statuses."""

        async def there() -> bool:
            found = await self.status(run_id)
            return all(found[name] == status for name, status in wanted.items())

        await holds(there, f"run {run_id}: {wanted}")

    async def query(self, statement: str, **values: Any) -> list[Row]:
        return await self.components.database.read(lambda tx: tx.query(statement, values))


@dataclass
class FlowStage:
    """Opens replicas at one place, and closes them at the end."""

    database: str
    leases: str
    stack: AsyncExitStack
    clock: PushedClock = field(default_factory=PushedClock)
    _helper: Components | None = None

    async def replica(
        self, *, leases: str | None = None, serve: bool = True, runs: RunSettings | None = None, **more: Any
    ) -> FlowReplica:
        """A replica. `leases`: where it looks for them, if not where the others do; `serve`: it handles messages."""
        if self._helper is None:
            self._helper = await self._open(self.leases)
        components = await self._open(leases or self.leases, runs)
        engine = Engine(components.runs, components.locks, components.bus, **more)
        if serve:
            await self.stack.enter_async_context(engine.serving())
        return FlowReplica(components, engine, self._helper)

    async def _open(self, leases: str, runs: RunSettings | None = None) -> Components:
        settings = Settings(database=self.database, leases=leases, runs=runs or RunSettings())
        return await self.stack.enter_async_context(opened(settings, clock=self.clock))


@pytest_asyncio.fixture
async def flow_stage(plane_url: str, tmp_path: Path) -> AsyncIterator[FlowStage]:
    async with AsyncExitStack() as stack:
        yield FlowStage(plane_url, f"sqlite:///{tmp_path / 'leases.db'}", stack)


async def holds(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for something."""
    pause = pauses()
    try:
        async with asyncio.timeout(60):
            while not await condition():  # noqa: ASYNC110 - the database changes
                await asyncio.sleep(next(pause))
    except TimeoutError:
        raise AssertionError(f"never: {what}") from None


async def older_job(replica: FlowReplica, identity: str, tenant: str = "victim") -> Job:
    """A job whose id has the reserved form, as an older version of the plane accepted it."""
    wanted = Submission("mail", {"secret": True}, tenant, identity, submitted_by="caller")
    make = replica.components.store.submission(wanted, "default", state=JobState.APPROVAL_REQUIRED)
    job, made = await replica.components.database.write(make)
    assert made
    return job
