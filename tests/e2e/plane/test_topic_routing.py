"""Real worker processes with different topics in one pool: assignments reach only workers that serve their topic."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.cli.exit_codes import Exit
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Submission
from holdfast.plane.process.plane import Plane
from holdfast.plane.service.service import Caller, Service
from holdfast.plane.settings.settings import Settings
from support.fixtures.fleet import ON_SERVERS, skip_without_servers
from support.fixtures.scheduling import holds
from support.fleet.worker_fleet import Places, WorkerProcess
from support.servers.nats import NatsExecutable, NatsServer, nats_executables, own_stream
from support.servers.postgres import PostgresExecutable, PostgresServer, postgres_executables
from support.servers.redis import redis_executables, start_redis

pytestmark = pytest.mark.asyncio

ANN = Caller("ann")


@pytest.fixture(params=["embedded", ON_SERVERS])
def places(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
    nats_servers: Callable[[NatsExecutable], NatsServer],
) -> Iterator[Places]:
    """Everything in one directory; or state in Postgres, messages on NATS and leases in Redis."""
    if request.param == "embedded":
        yield Places(f"sqlite:///{tmp_path}/plane.db?synchronous=normal", f"sqlite:///{tmp_path}/leases.db")
        return
    skip_without_servers(request.param)
    with ExitStack() as stack:
        database = stack.enter_context(_postgres_servers(postgres_executables()[-1]).database())
        redis = stack.enter_context(start_redis(redis_executables()[-1]))
        yield Places(database, redis.url, own_stream(nats_servers(nats_executables()[-1])))


@dataclass
class Stage:
    """A scheduler in this process, and workers in processes of their own."""

    places: Places
    directory: Path
    service: Service
    workers: list[WorkerProcess] = field(default_factory=list)

    async def worker(self, app: str) -> WorkerProcess:
        """A worker process of one of the apps, which takes jobs."""
        name = f"{app}-{len(self.workers)}"
        self.workers.append(WorkerProcess(self.places, self.directory, name, app=f"topic_apps:{app}"))
        return await self.workers[-1].ready()

    async def replace(self, old: WorkerProcess, app: str) -> WorkerProcess:
        """A new worker instead of an old one, as a rolling deploy does it: first the new one, then the end."""
        new = await self.worker(app)
        old.signal(signal.SIGTERM)
        assert await old.ended() == Exit.OK
        return new

    async def submit(self, *topics: str) -> list[str]:
        """Submit a job of each topic."""
        return [(await self.service.submit(ANN, Submission(topic)))[0].id for topic in topics]

    async def done(self, jobs: Sequence[str]) -> None:
        """Return when all jobs have succeeded."""
        for job in jobs:

            async def over(job: str = job) -> bool:
                return (await self.service.job(ANN, job)).state is JobState.SUCCEEDED

            await holds(over)

    async def bounced(self, jobs: Sequence[str]) -> list[str]:
        """The reasons of all events in which a job went back from the workers."""
        events = [event for job in jobs for event in await self.service.events(ANN, job)]
        return [event.reason or "" for event in events if event.after is JobState.RETRYING]


@asynccontextmanager
async def staged(places: Places, directory: Path) -> AsyncIterator[Stage]:
    settings = Settings(database=places.database, leases=places.leases, bus=places.bus)
    async with Plane(settings, {"scheduler"}) as plane:
        stage = Stage(places, directory, plane.components.service)
        try:
            yield stage
        finally:
            for worker in stage.workers:
                worker.end()


@pytest_asyncio.fixture
async def stage(places: Places, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(places, tmp_path) as made:
        yield made


@pytest.mark.timeout(180)
async def test_workers_of_two_apps_share_a_pool_and_get_only_their_own_jobs(stage: Stage) -> None:
    await stage.worker("mail")
    await stage.worker("bills")
    jobs = await stage.submit(*["mail", "bill"] * 20)
    await stage.done(jobs)
    assert await stage.bounced(jobs) == []


@pytest.mark.timeout(240)
async def test_a_rolling_deploy_that_adds_and_removes_topics_bounces_no_job_and_loses_none(stage: Stage) -> None:
    """The producers are deployed first, the workers one after the other, and jobs come all the time."""
    early = await stage.submit("added", "added", "kept")
    workers = [await stage.worker("before"), await stage.worker("before")]
    jobs = await stage.submit(*["kept", "removed"] * 10)
    first = await stage.replace(workers[0], "after")
    jobs += await stage.submit(*["kept", "removed", "added"] * 10)
    await stage.done([*early, *jobs])
    second = await stage.replace(workers[1], "after")
    late = await stage.submit("removed", "removed")
    jobs += await stage.submit(*["kept", "added"] * 10)
    await stage.done(jobs)

    async def waits() -> bool:
        """No worker serves it. What was sent before the scheduler knew of the last worker's end is taken back."""
        return {(await stage.service.job(ANN, job)).state for job in late} <= {JobState.PENDING, JobState.RETRYING}

    await holds(waits)
    await stage.worker("before")
    await stage.done(late)
    assert await stage.bounced([*early, *jobs]) == []
    assert None is first.popen.poll() is second.popen.poll()
