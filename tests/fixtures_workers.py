"""Where workers are tested: a real database and bus in a SQLite file, real leases, and an ear at everything said.

`work_stage` gives a `WorkerStage` on leases in the plane's own SQLite file, and once more on leases in another;
`one_file_stage` only the first of them; `redis_stage` has leases in Redis. All of it waits for a condition.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import holdfast.aio
from fixtures_databases import until
from holdfast.aio.client import Locks
from holdfast.core.ports import RidesAlong
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.app import App
from holdfast.plane.bus.embedded.bus import EmbeddedBus
from holdfast.plane.db.ports import Bus, Consumer, Consumption, Handler, Tx
from holdfast.plane.db.sqlite.database import SqliteDatabase
from holdfast.plane.locks import registry as families
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Delivery, Heartbeat, Job, Message
from holdfast.plane.worker.result_batcher import split
from holdfast.plane.worker.worker import Worker
from holdfast.runtime.system import SystemClock, SystemEntropy

_numbers = itertools.count(1)


def ordered(job: str, topic: str, payload: Any = None, *, attempt: int = 1, fence: int = 1, **fields: Any) -> Message:
    """The message with which the scheduler hands an attempt to the workers."""
    pool = fields.pop("pool", "default")
    at_ns = fields.pop("at_ns", SystemClock().now().wall)
    made_ns = fields.pop("made_ns", 1)
    by_topic = fields.pop("by_topic", True)
    row = Job(job, "acme", topic, pool, JobState.DISPATCHED, 0, attempt, 3, payload, made_ns, at_ns, 1, fence, **fields)
    return subjects.dispatched(row, CarriedFence(families.SCHEDULER_JOB.key(job=job), fence), by_topic=by_topic)


@dataclass
class Ear:
    """A bus that notes what is published and how deliveries end. `before` may delay or fail a publication."""

    inner: Bus
    published: list[Message] = field(default_factory=list)
    ends: list[tuple[Delivery, BaseException | None]] = field(default_factory=list)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    before: Callable[[Message], Awaitable[None]] | None = None

    @property
    def prompt(self) -> bool:
        return self.inner.prompt

    @property
    def within(self) -> bool:
        return self.inner.within

    async def stage(self, tx: Tx, messages: Sequence[Message]) -> None:
        await self.inner.stage(tx, messages)

    async def publish(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if self.before is not None:
                await self.before(message)
        await self.inner.publish(messages)
        self.published.extend(messages)

    def consume(self, how: Consumption, handler: Handler) -> AbstractAsyncContextManager[Consumer]:
        async def heard(delivery: Delivery) -> None:
            try:
                await handler(delivery)
            except BaseException as error:
                self.ends.append((delivery, error))
                raise
            self.ends.append((delivery, None))

        return self._consuming(how, heard)

    async def pending(self, subject: str, group: str) -> int:
        return await self.inner.pending(subject, group)

    async def span(self, subject: str, group: str) -> tuple[int, int] | None:
        return await self.inner.span(subject, group)

    def statistics(self) -> Mapping[str, int]:
        return self.inner.statistics()

    async def close(self) -> None:
        await self.inner.close()

    @asynccontextmanager
    async def _consuming(self, how: Consumption, handler: Handler) -> AsyncIterator[Consumer]:
        async with self.inner.consume(how, handler) as consumer:
            self.consumers[how.subject] = consumer
            yield consumer


@dataclass
class Register:
    """A registry that notes what it hears, and can be out of order."""

    heard: list[Heartbeat] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    trouble: Exception | None = None

    async def record(self, said: Heartbeat) -> bool:
        if self.trouble is not None:
            raise self.trouble
        self.heard.append(said)
        return True

    async def leave(self, worker: str) -> bool:
        self.left.append(worker)
        return True


class WorkerStage:
    """A database, a bus, leases and a registry; and workers on them."""

    def __init__(self, bus: EmbeddedBus, locks: Locks, stack: AsyncExitStack) -> None:
        self.bus = Ear(bus)
        self.locks = locks
        self.registry = Register()
        self.dead: list[tuple[Delivery, str, str]] = []
        self._stack = stack

    async def worker(self, app: App, **options: Any) -> Worker:
        """A running worker, which is ended at the end of the test."""
        chosen: dict[str, Any] = {"heartbeat": 60, "cancel_grace": 5, "bus": self.bus, "locks": self.locks, **options}
        worker = Worker(app, **{"registry": self.registry, **chosen})
        await worker.start()
        self._stack.push_async_callback(worker.drain, 0)
        return worker

    async def send(self, topic: str, payload: Any = None, *, job: str | None = None, **fields: Any) -> str:
        """Hand an attempt to the workers; the id of its job."""
        job = job or f"job-{next(_numbers)}"
        await self.bus.inner.publish([ordered(job, topic, payload, **fields)])
        return job

    def said(self, subject: str, job: str | None = None) -> list[Message]:
        """What was published so far."""
        found = [each for message in self.bus.published if message.subject == subject for each in split(message)]
        return [each for each in found if job is None or each.body["job"] == job]

    async def result(self, job: str, number: int = 1) -> Message:
        """The result of a job, once there is one and its message is settled."""
        await until(lambda: len(self.said(subjects.RESULT, job)) >= number)
        return self.said(subjects.RESULT, job)[number - 1]

    async def end(self, job: str, number: int = 1) -> BaseException | None:
        """How the delivery of an attempt ended: None when it was acknowledged."""

        def ends() -> list[BaseException | None]:
            return [error for delivery, error in self.bus.ends if delivery.message.body["job"] == job]

        await until(lambda: len(ends()) >= number)
        return ends()[number - 1]

    async def key(self, job: str) -> str:
        """The name of the lock under which a job is run."""
        return families.WORKER_JOB.key(job=job)


@asynccontextmanager
async def worker_stage(directory: Path, leases: str) -> AsyncIterator[WorkerStage]:
    """A stage with everything open."""
    database = SqliteDatabase(str(directory / "plane.db"), synchronous="normal")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        letters: list[tuple[Delivery, str, str]] = []

        async def bury(delivery: Delivery, reason: str, code: str) -> None:
            letters.append((delivery, reason, code))

        bus = EmbeddedBus(database, SystemClock(), SystemEntropy(), dead=bury)
        stack.push_async_callback(bus.close)
        await bus.prepare()
        locks = await stack.enter_async_context(holdfast.aio.connect(leases))
        store = locks.ports.store
        if isinstance(store, RidesAlong):
            store.ride(database)  # as a plane does; it has no effect on leases that lie elsewhere
        stage = WorkerStage(bus, locks, stack)
        stage.dead = letters
        yield stage


@pytest_asyncio.fixture(params=["plane.db", "leases.db"])
async def work_stage(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[WorkerStage]:
    """A stage with leases in the file of the plane, where claims bring them along, and with leases in another file."""
    async with worker_stage(tmp_path, f"sqlite:///{tmp_path}/{request.param}") as opened:
        yield opened


@pytest_asyncio.fixture
async def one_file_stage(tmp_path: Path) -> AsyncIterator[WorkerStage]:
    """A stage with leases in the file of the plane."""
    async with worker_stage(tmp_path, f"sqlite:///{tmp_path}/plane.db") as opened:
        yield opened


@pytest_asyncio.fixture
async def redis_stage(tmp_path: Path, redis_url: str) -> AsyncIterator[WorkerStage]:
    """A stage with leases in Redis."""
    async with worker_stage(tmp_path, redis_url) as opened:
        yield opened


class Gate:
    """A place where an async function says that it has come, and waits until it may go on."""

    def __init__(self) -> None:
        self.come = asyncio.Event()
        self.go = asyncio.Event()

    async def passed(self) -> None:
        """Say so, and wait."""
        self.come.set()
        await self.go.wait()
