"""Where schedulers are tested: a real database, the bus in it, and real leases, for any number of replicas.

`planes` opens replicas at one place, as processes that know nothing of each other would: each has its own database
object, bus, locks and scheduler. A test that asks for it runs on a SQLite file and on Postgres; leases are in a SQLite
file of their own. `read_history` is the checker: it reads what a job has gone through and says what must not be.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest_asyncio

import holdfast.aio
from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.core.ports import RidesAlong
from holdfast.guards.bearer import CarriedFence, carried
from holdfast.plane.bus.embedded.bus import EmbeddedBus
from holdfast.plane.db.batcher import Failed
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Consumer, Consumption, Database, Row
from holdfast.plane.fleet.registry import Workers
from holdfast.plane.jobs.dead_letters import DeadLetters
from holdfast.plane.jobs.insert import Entry
from holdfast.plane.jobs.queries import JobQueries
from holdfast.plane.jobs.quotas import Tenants
from holdfast.plane.jobs.store import JobStore
from holdfast.plane.locks import registry as families
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState, legal
from holdfast.plane.model.records import Delivery, Heartbeat, Job, JobEvent, Message, Submission
from holdfast.plane.scheduler.dispatcher import Dispatcher
from holdfast.plane.scheduler.placement import Placement
from holdfast.plane.scheduler.scheduler import Scheduler
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.types import NS, Instant
from polling import pauses

POOL = "default"
TOPIC = "render"


class PushedClock:
    """Real time, and as much more as the test says."""

    def __init__(self) -> None:
        self.pushed_ns = 0
        self._real = SystemClock()

    def now(self) -> Instant:
        mono, boot, wall = self._real.now()
        return Instant(mono + self.pushed_ns, boot + self.pushed_ns, wall + self.pushed_ns)

    def push(self, seconds: float) -> None:
        self.pushed_ns += round(seconds * NS)


async def enqueue(
    store: JobStore, wanted: Submission, pool: str = POOL, messages: Sequence[Message] = ()
) -> tuple[Job, bool]:
    """Check and insert one job as the service does. Returns the job and whether it was made."""
    wanted.check()
    [end] = await store.submit_all([store.new(Entry(wanted, pool, messages))])
    if isinstance(end, Failed):
        raise end.error
    return end


@dataclass
class Replica:
    """One process of the plane, so to speak."""

    database: Database
    bus: EmbeddedBus
    locks: Locks
    clock: PushedClock
    store: JobStore
    workers: Workers
    placement: Placement
    scheduler: Scheduler
    letters: DeadLetters
    queries: JobQueries
    tenants: Tenants
    dead: list[tuple[Delivery, str, str]]

    async def submit(self, **wanted: Any) -> Job:
        """A job of the usual topic, with its message."""
        pool = wanted.pop("pool", POOL)
        job, _ = await enqueue(self.store, Submission(**{"topic": TOPIC, **wanted}), pool, [subjects.submitted()])
        return job

    async def beat(self, worker: str = "w1", capacity: int = 4, *topics: str, pool: str = POOL, **more: Any) -> None:
        """A heartbeat, now."""
        said = Heartbeat(worker, pool, topics or (TOPIC,), capacity, more.pop("active", 0), self.now_ns, **more)
        assert await self.workers.record(said)
        await self.workers.view(fresh=True)

    @property
    def now_ns(self) -> int:
        return self.clock.now().wall

    async def job(self, job: Job | str) -> Job:
        found = await self.store.get(job if isinstance(job, str) else job.id)
        assert found is not None
        return found

    async def hold(self, job: Job | str) -> Lease:
        """The scheduler's lease on a job."""
        return await families.SCHEDULER_JOB.lock(self.locks, job=job if isinstance(job, str) else job.id).acquire()

    async def query(self, statement: str, **values: Any) -> list[Row]:
        return await self.database.read(lambda tx: tx.query(statement, values))

    async def staged(self, subject: str) -> list[Row]:
        """The messages of a subject, or of those that begin like it, that were ever staged and not swept yet."""
        rows = await self.query("SELECT * FROM plane_message ORDER BY place")
        return [row for row in rows if row["subject"].startswith(subject)]

    async def in_state(self, job: Job | str, state: JobState) -> None:
        """Wait until a job is in a state."""

        async def there() -> bool:
            return (await self.job(job)).state is state

        await holds(there)

    async def reach(self, number: int, *states: JobState) -> None:
        """Wait until so many jobs are in these states."""

        async def there() -> bool:
            counts = await self.queries.counts()
            return sum(counts[state] for state in states) >= number

        await holds(there)

    async def heard(self) -> None:
        """Wait until every submission has been handled."""

        async def there() -> bool:
            return not await self.bus.pending(subjects.SUBMIT, subjects.SCHEDULER)

        await holds(there)

    async def running(self) -> tuple[dict[str, int], dict[str, int]]:
        """What the counters say: jobs with workers by tenant and by pool."""
        tenants = await self.query("SELECT tenant, running FROM plane_tenant")
        pools = await self.query("SELECT pool, running FROM plane_pool")
        return {row["tenant"]: row["running"] for row in tenants}, {row["pool"]: row["running"] for row in pools}


@dataclass
class Planes:
    """Opens replicas at one place, and closes them at the end."""

    url: str
    locks_url: str
    clock: PushedClock = field(default_factory=PushedClock)
    replicas: list[Replica] = field(default_factory=list)

    async def open(self, *, slots: int | None = None, **settings: Any) -> Replica:
        idle_ns = settings.pop("idle_ns", NS)
        entropy = SystemEntropy()
        database = open_database(self.url)
        dead: list[tuple[Delivery, str, str]] = []

        async def bury(delivery: Delivery, reason: str, code: str) -> None:
            dead.append((delivery, reason, code))

        bus = EmbeddedBus(database, self.clock, entropy, dead=bury)
        await prepare(database)
        await bus.prepare()
        locks = holdfast.aio.connect(self.locks_url)
        if isinstance(leases := locks.ports.store, RidesAlong):
            leases.ride(database)
        store = JobStore(database, bus, self.clock, entropy, slots=slots)
        workers = Workers(database, self.clock)
        placement = Placement(store, locks, workers, **settings)
        replica = Replica(
            database,
            bus,
            locks,
            self.clock,
            store,
            workers,
            placement,
            Scheduler(placement, bus, dispatcher=Dispatcher(placement, idle_ns=idle_ns)),
            DeadLetters(store),
            JobQueries(database),
            Tenants(database, store.slots),
            dead,
        )
        self.replicas.append(replica)
        return replica

    async def close(self) -> None:
        for replica in self.replicas:
            await replica.bus.close()
            await replica.locks.close()
            await replica.database.close()


def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite:")


def _leases(folder: Path) -> str:
    return f"sqlite:///{folder / 'leases.db'}"


@pytest_asyncio.fixture
async def planes(plane_url: str, tmp_path: Path) -> AsyncIterator[Planes]:
    """On SQLite leases and jobs are in one file, as is usual there; beside Postgres leases have a file of their own."""
    opened = Planes(plane_url, plane_url.partition("?")[0] if is_sqlite(plane_url) else _leases(tmp_path))
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def sqlite_planes(tmp_path: Path) -> AsyncIterator[Planes]:
    """Leases and jobs in two files: what holds on a fleet, without its servers."""
    opened = Planes(f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal", _leases(tmp_path))
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def plane(planes: Planes) -> Replica:
    return await planes.open()


async def holds(condition: Callable[[], Awaitable[object]], limit_s: float = 30.0) -> None:
    """Return when the condition holds. It must come to hold."""
    pause = pauses()
    async with asyncio.timeout(limit_s):
        while not await condition():  # noqa: ASYNC110 - the database changes
            await asyncio.sleep(next(pause))


def delivered(message: Message, deliveries: int = 1) -> Delivery:
    """A message as a handler gets it."""
    return Delivery(message, subjects.SCHEDULER, deliveries, 0, 0)


def submitted(job: Job | str) -> Delivery:
    return delivered(subjects.submitted(job if isinstance(job, str) else job.id))


_fences = itertools.count(1)


def run_of(job: Job | str, fence: int | None = None) -> CarriedFence:
    """The fence of a worker's lease on a job: a new one, unless the test says which."""
    name = families.WORKER_JOB.key(job=job if isinstance(job, str) else job.id)
    return CarriedFence(name, next(_fences) if fence is None else fence)


def started(job: Job | str, attempt: int, run: CarriedFence, worker: str = "w1") -> Delivery:
    return delivered(subjects.started(job if isinstance(job, str) else job.id, attempt, worker, run))


def finished(job: Job | str, attempt: int, run: CarriedFence, worker: str = "w1", **said: Any) -> Delivery:
    outcome = {"status": "succeeded", "result": {"ok": True}} if not said else {"status": "failed", **said}
    return delivered(subjects.finished(job if isinstance(job, str) else job.id, attempt, worker, run, outcome))


def cancelled(job: Job | str, reason: str = "not needed any more") -> Delivery:
    identity = job if isinstance(job, str) else job.id
    return delivered(subjects.cancel(identity, "ada", reason, token=str(next(_fences))))


Script = Callable[[dict[str, Any]], dict[str, Any]]


def succeed(body: dict[str, Any]) -> dict[str, Any]:
    return {"status": "succeeded", "result": body["job"]}


class FakeWorkers:
    """Workers on the real bus, with real leases, whose work is what the script says. Notes who ran what, in order."""

    def __init__(self, replica: Replica, script: Script = succeed, *, pool: str = POOL, worker: str = "w1") -> None:
        self._replica = replica
        self._script = script
        self._pool = pool
        self._worker = worker
        self.ran: list[tuple[str, int]] = []
        self.tenants: list[str] = []
        self.at_once = 0
        self.most: Counter[str] = Counter()
        self._now: Counter[str] = Counter()
        self.gate: asyncio.Event | None = None

    def serving(self, concurrency: int = 16) -> AbstractAsyncContextManager[Consumer]:
        how = Consumption(subjects.work_subject(self._pool), subjects.WORKERS, concurrency=concurrency)
        return self._replica.bus.consume(how, self._run)

    async def _run(self, delivery: Delivery) -> None:
        body = dict(delivery.message.body)
        bus, locks = self._replica.bus, self._replica.locks
        async with families.WORKER_JOB.lock(locks, job=body["job"]) as lease:
            run = carried(lease)
            await bus.publish([subjects.started(body["job"], body["attempt"], self._worker, run)])
            self.ran.append((body["job"], body["attempt"]))
            self.tenants.append(body["tenant"])
            self._now[body["tenant"]] += 1
            self.most[body["tenant"]] = max(self.most[body["tenant"]], self._now[body["tenant"]])
            if self.gate is not None:
                await self.gate.wait()
            self._now[body["tenant"]] -= 1
            said = self._script(body)
            await bus.publish([subjects.finished(body["job"], body["attempt"], self._worker, run, said)])


def read_history(events: Sequence[JobEvent]) -> list[str]:
    """What is wrong with the history of one job; nothing, if it is as it must be."""
    problems: list[str] = []
    state: JobState | None = None
    fence, version, attempt = -1, 0, 0
    dispatched: Counter[int] = Counter()
    ends = 0
    for event in events:
        if event.before != state or not legal(event.before, event.after):
            problems.append(f"{event.before} -> {event.after} after {state}")
        if event.version < version:
            problems.append(f"version {event.version} after {version}")
        if event.fence is not None and event.fence < fence:
            problems.append(f"fence {event.fence} after {fence}")
        ends += event.after.terminal
        if event.after is JobState.DISPATCHED:
            dispatched[event.attempt] += 1
        if event.after is JobState.RETRYING and event.attempt < attempt:  # it was taken back, and counts no more
            dispatched[attempt] -= 1
        attempt = event.attempt
        state, version, fence = event.after, event.version, event.fence if event.fence is not None else fence
    problems += [f"attempt {attempt} was dispatched {n} times" for attempt, n in dispatched.items() if n > 1]
    problems += [f"it ended {ends} times"] if ends > 1 else []
    return problems


async def check_histories(replica: Replica) -> dict[str, list[str]]:
    """What is wrong, by job; and whether each attempt has exactly one message for the workers."""
    wrong: dict[str, list[str]] = {}
    sent = Counter((row["message_key"], row["id"].split(":")[-2]) for row in await replica.staged(subjects.WORK))
    for row in await replica.query("SELECT id, attempt FROM plane_job"):
        events = await replica.store.events(row["id"])
        problems = read_history(events)
        # One message for each time that it was handed out; more than once for an attempt only if it was taken back.
        expected = Counter((row["id"], str(event.attempt)) for event in events if event.after is JobState.DISPATCHED)
        found = {name: number for name, number in sent.items() if name[0] == row["id"]}
        if found != expected:
            problems.append(f"messages {found}, expected {expected}")
        if problems:
            wrong[row["id"]] = problems
    return wrong


def body_of(row: Row) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(row["body"])
    return body
