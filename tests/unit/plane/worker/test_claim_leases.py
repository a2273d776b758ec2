"""Leases that come with the claim of their messages: one transaction for both, and none is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import holdfast.aio
from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.core.ports import SharesTransactions
from holdfast.errors import LockBusy, RetryLater, Unavailable
from holdfast.plane.app import App
from holdfast.plane.db.ports import Consumption, Tx
from holdfast.plane.db.sqlite.database import SqliteDatabase
from holdfast.plane.locks.registry import WORKER_JOB
from holdfast.plane.model.messages import WORKERS, work_subject
from holdfast.plane.worker.attempt_leases import ClaimedLeases
from holdfast.testing import faults
from support.fixtures.databases import until
from support.fixtures.workers import Gate, WorkerStage

pytestmark = pytest.mark.asyncio


class Asked:
    """How often leases were requested by a request of their own."""

    def __init__(self, locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        self._acquire_many: Any = locks.ports.store.acquire_many  # type: ignore[attr-defined]
        monkeypatch.setattr(locks.ports.store, "acquire_many", self)

    async def __call__(self, asks: Sequence[Any], timeout_ns: int) -> Any:
        self.times += 1
        return await self._acquire_many(asks, timeout_ns)


async def held_are(locks: Locks, *keys: str) -> None:
    """Return when these leases of attempts are held, and no other."""
    async with asyncio.timeout(60):
        while sorted(each.key for each in await locks.list(WORKER_JOB.key(job=""))) != sorted(keys):  # noqa: ASYNC110
            await asyncio.sleep(0.002)  # what is looked at is changed by a thread


@pytest.mark.requires("R45", "R55")
async def test_from_the_second_batch_on_attempts_have_their_lease_with_the_claim(
    one_file_stage: WorkerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, asked, fences = App("test"), Asked(one_file_stage.locks, monkeypatch), list[int]()

    @app.job("task")
    async def task(payload: object, *, ctx: Any) -> None:
        ctx.ensure_held(1)
        held = await one_file_stage.locks.inspect(WORKER_JOB.key(job=ctx.job))
        assert (held.held, held.fence) == (True, ctx.fence)
        fences.append(ctx.fence)

    await one_file_stage.worker(app)
    for _ in range(5):
        job = await one_file_stage.send("task")
        assert (await one_file_stage.result(job)).body["status"] == "succeeded"
        assert await one_file_stage.end(job) is None
    assert asked.times == 1
    assert fences == sorted(set(fences))
    await held_are(one_file_stage.locks)


async def test_each_attempt_requests_its_lease_if_claims_acquire_none(
    one_file_stage: WorkerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, asked = App("test"), Asked(one_file_stage.locks, monkeypatch)

    @app.job("task")
    async def task(payload: object, *, ctx: Any) -> None:
        ctx.ensure_held(1)

    await one_file_stage.worker(app, claim_leases=False)
    for _ in range(3):
        assert (await one_file_stage.result(await one_file_stage.send("task"))).body["status"] == "succeeded"
    assert asked.times == 3


async def test_a_lease_that_came_along_is_renewed_and_lost_like_any_other(one_file_stage: WorkerStage) -> None:
    app, gate = App("test"), Gate()

    @app.job("task")
    async def task(payload: object, *, ctx: Any) -> None:
        if payload == "wait":
            await gate.passed()

    worker = await one_file_stage.worker(app)
    await one_file_stage.result(await one_file_stage.send("task"))
    job = await one_file_stage.send("task", "wait")
    await gate.come.wait()
    (attempt,) = worker.running()
    assert attempt.context is not None
    held: Lease = attempt.context._held
    await held.renew()
    assert held.held
    await one_file_stage.locks.force_release(WORKER_JOB.key(job=job), reason="a test")
    error = await one_file_stage.end(job)
    assert isinstance(error, RetryLater)
    assert isinstance(error.__cause__, LockBusy)
    assert worker.statistics().lost == 1


@pytest.mark.requires("R3", "R24")
async def test_a_job_that_is_run_elsewhere_is_not_run_here(one_file_stage: WorkerStage, tmp_path: Path) -> None:
    app, ran = App("test"), list[object]()

    @app.job("task")
    async def task(payload: object) -> None:
        ran.append(payload)

    await one_file_stage.worker(app)
    await one_file_stage.result(await one_file_stage.send("task"))
    async with holdfast.aio.connect(f"sqlite:///{tmp_path}/plane.db") as elsewhere:
        theirs = await WORKER_JOB.lock(elsewhere, job="busy").acquire(1)
        await one_file_stage.send("task", "second", job="busy")
        assert isinstance(await one_file_stage.end("busy"), RetryLater)
        assert ran == [None]
        assert theirs.held
        assert (await elsewhere.inspect(theirs.key)).fence == theirs.fence
        await theirs.release()
    await one_file_stage.result("busy")
    assert ran == [None, "second"]


async def test_a_message_that_is_not_run_leaves_no_lease_behind(one_file_stage: WorkerStage) -> None:
    """It is answered from memory: an attempt that is delivered again is not made again."""
    app, ran = App("test"), list[object]()

    @app.job("task")
    async def task(payload: object) -> None:
        ran.append(payload)

    await one_file_stage.worker(app)
    await one_file_stage.result(await one_file_stage.send("task", job="one"))
    await one_file_stage.send("task", job="one", fence=2)  # another message about the same attempt
    await one_file_stage.result("one", 2)
    assert await one_file_stage.end("one", 2) is None
    assert ran == [None]
    await held_are(one_file_stage.locks)


async def test_leases_of_a_claim_of_which_nobody_knows_what_became_are_given_back(one_file_stage: WorkerStage) -> None:
    app = App("test")

    @app.job("task")
    async def task(payload: object) -> None:
        return None

    await one_file_stage.worker(app)
    assert await one_file_stage.end(await one_file_stage.send("task")) is None
    key, seen = WORKER_JOB.key(job="doubtful"), list[int | None]()

    async def lose() -> None:
        holding = await one_file_stage.locks.inspect(key)
        if holding.held:
            seen.append(holding.fence)
            raise Unavailable("the answer was lost")

    with faults.armed("plane.bus.claimed", lose):
        await one_file_stage.send("task", job="doubtful")
        await until(lambda: seen)
        await held_are(one_file_stage.locks)


class Along:
    """Notes for which messages it is called."""

    ready = True

    def __init__(self) -> None:
        self.keys: list[list[str]] = []

    async def work(self, tx: Tx, keys: Sequence[str]) -> None:
        self.keys.append(list(keys))

    def done(self) -> None: ...

    def undone(self) -> None: ...


async def test_a_claim_that_finds_nothing_says_so(one_file_stage: WorkerStage) -> None:
    """Or what it had when it was made for the first time, and was undone, would be taken for granted."""
    along = Along()

    async def handler(delivery: object) -> None: ...

    how = Consumption(work_subject("default", "task"), WORKERS, along=along)
    async with one_file_stage.bus.inner.consume(how, handler):
        await until(lambda: [] in along.keys)
        job = await one_file_stage.send("task")
        await until(lambda: [job] in along.keys)
    assert along.keys[0] == []


# The parts, without a worker.


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    database = SqliteDatabase(str(tmp_path / "plane.db"))
    yield database
    await database.close()


@pytest_asyncio.fixture
async def locks(database: SqliteDatabase) -> AsyncIterator[Locks]:
    async with holdfast.aio.connect(f"sqlite:///{database.path}") as opened:
        store = opened.ports.store
        assert isinstance(store, SharesTransactions)
        assert store.ride(database)
        await opened.list("")  # the tables are there from now on
        yield opened


async def claimed(claims: ClaimedLeases, database: SqliteDatabase, *jobs: str) -> None:
    """As a consumer does with each claim."""

    async def work(tx: Tx) -> None:
        await claims.work(tx, jobs)

    await database.write(work)
    claims.done()


async def test_they_are_ready_when_the_store_has_answered_and_shares_the_file(
    locks: Locks, database: SqliteDatabase
) -> None:
    claims = ClaimedLeases(locks, WORKER_JOB)
    before = claims.ready
    claims.answered = True
    assert (before, claims.ready) == (False, True)
    async with holdfast.aio.connect("memory://") as memory:
        elsewhere = ClaimedLeases(memory, WORKER_JOB)
        elsewhere.answered = True
        assert not elsewhere.ready


async def test_each_is_taken_once_and_what_nobody_takes_is_given_back(locks: Locks, database: SqliteDatabase) -> None:
    claims = ClaimedLeases(locks, WORKER_JOB)
    await claimed(claims, database, "a", "b", "c", "a")
    assert len(await locks.list("")) == 3
    lock = WORKER_JOB.lock(locks, job="a")
    lease = await claims.take(lock)
    assert lease is not None
    assert lease.held
    assert await claims.take(lock) is None
    await claims.leave("a")  # it was used: nothing is left to release
    await claims.leave("b")
    left = [each.key for each in await locks.list("")]
    assert left == [WORKER_JOB.key(job=each) for each in "ac"], (
        "the next worker that gets the message does not find it busy"
    )
    claims.close()
    await held_are(locks, lease.key)
    assert await lease.release()


async def test_one_that_cannot_be_given_back_now_is_given_back_later(
    locks: Locks, database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = ClaimedLeases(locks, WORKER_JOB)
    await claimed(claims, database, "a")

    async def away(*_: object) -> None:
        raise Unavailable("away")

    monkeypatch.setattr(locks.ports.store, "release_many", away)
    await claims.leave("a")
    await held_are(locks)
    assert await claims.take(WORKER_JOB.lock(locks, job="a")) is None


async def test_one_that_is_too_old_to_be_relied_on_is_not_handed_out(locks: Locks, database: SqliteDatabase) -> None:
    claims = ClaimedLeases(locks, WORKER_JOB)
    await claimed(claims, database, "a")
    (had,) = claims._unused.values()
    long_ago = had.sent._replace(mono=had.sent.mono - round(WORKER_JOB.ttl * 1e9))
    claims._unused[had.grant.key] = had._replace(sent=long_ago)
    assert await claims.take(WORKER_JOB.lock(locks, job="a")) is None
    await held_are(locks)


async def test_one_whose_place_in_this_process_is_taken_is_given_back(locks: Locks, database: SqliteDatabase) -> None:
    claims = ClaimedLeases(locks, WORKER_JOB)
    await claimed(claims, database, "a")
    place = locks.ports.runtime.mutexes.entry(WORKER_JOB.key(job="a"))
    assert await place.enter(0)
    try:
        assert await claims.take(WORKER_JOB.lock(locks, job="a")) is None
        await held_are(locks)
    finally:
        place.leave()


async def test_a_transaction_that_is_made_again_counts_once(locks: Locks, database: SqliteDatabase) -> None:
    claims = ClaimedLeases(locks, WORKER_JOB)

    async def twice(tx: Tx) -> None:
        await claims.work(tx, ["a"])
        raise RuntimeError("once more")

    with pytest.raises(RuntimeError):
        await database.write(twice)
    await claimed(claims, database, "b")
    assert [each.key for each in await locks.list("")] == [WORKER_JOB.key(job="b")]
    claims.undone()  # of nothing: it was done
    lease = await claims.take(WORKER_JOB.lock(locks, job="b"))
    assert lease is not None
    assert lease.held
    await lease.release()


async def test_a_transaction_that_is_made_again_and_finds_nothing_brings_nothing(
    locks: Locks, database: SqliteDatabase
) -> None:
    """Its first run was undone, and another worker has the message, and the lease, by now."""
    claims = ClaimedLeases(locks, WORKER_JOB)

    async def undone(tx: Tx) -> None:
        await claims.work(tx, ["a"])
        raise RuntimeError("once more")

    with pytest.raises(RuntimeError):
        await database.write(undone)
    await claimed(claims, database)
    assert await claims.take(WORKER_JOB.lock(locks, job="a")) is None
    assert await locks.list("") == []
