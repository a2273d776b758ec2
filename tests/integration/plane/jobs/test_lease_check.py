"""Leases and jobs in one Postgres database: the transaction that writes a job refuses a lease that does not stand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from holdfast.core.failpoints import armed
from holdfast.core.ports import ChecksOwnership
from holdfast.errors import LeaseLost, RetryLater
from holdfast.guards.bearer import CarriedFence, carried
from holdfast.plane.db.ports import Tx
from holdfast.plane.jobs.lease_check import LeaseCheck
from holdfast.plane.jobs.updates import Writing
from holdfast.plane.locks.registry import SCHEDULER_JOB
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Change, Job
from holdfast.runtime.run_sync import run_now
from holdfast.stores.registry import open_engine
from holdfast.types import NS, AcquireRequest, Grant
from support.fixtures.scheduling import Planes

pytestmark = [pytest.mark.asyncio, pytest.mark.server]


@pytest_asyncio.fixture
async def shared(postgres_url: str) -> AsyncIterator[Planes]:
    """Planes whose leases are in their database."""
    opened = Planes(postgres_url, postgres_url)
    yield opened
    await opened.close()


def denied(_: CarriedFence) -> Any:
    return lambda job: Writing([Change(JobState.DENIED, actor="test")])


def telling(_: CarriedFence) -> Any:
    """The same, with a message."""
    return lambda job: Writing([Change(JobState.DENIED, actor="test")], lambda after: [subjects.submitted(after.id)])


def sql(planes: Planes, statement: str) -> None:
    with psycopg.connect(planes.url, autocommit=True) as connection:
        connection.execute(statement.encode())


EXPIRE = "UPDATE holdfast.holdfast_lease SET expires_at = clock_timestamp() - interval '1 second'"


def expire(planes: Planes) -> None:
    """What a pause past the TTL is to the server."""
    sql(planes, EXPIRE)


def steal(planes: Planes) -> None:
    """Another process gets the lock of every job; it has not written yet."""
    expire(planes)
    store = open_engine(planes.url).blocking
    with psycopg.connect(planes.url) as connection:
        keys = [key for (key,) in connection.execute("SELECT key FROM holdfast.holdfast_lease")]
    for key in keys:
        asked = AcquireRequest(key, "thief", "thief", "default", 60 * NS)
        assert isinstance(run_now(store.acquire(asked, NS)), Grant)
    run_now(store.close())


def delete(planes: Planes) -> None:
    """An operator breaks the lock."""
    sql(planes, "DELETE FROM holdfast.holdfast_lease")


@pytest.mark.parametrize("fault", [expire, steal, delete])
async def test_a_write_whose_lease_ends_between_check_and_write_is_refused(
    shared: Planes, fault: Callable[[Planes], None]
) -> None:
    plane = await shared.open()
    job = await plane.submit()
    lease = await plane.hold(job)
    with armed("plane.job.change", lambda: fault(shared)), pytest.raises(LeaseLost, match="by the transaction"):
        await plane.store.change(lease, job.id, denied(carried(lease)))
    with contextlib.suppress(LeaseLost):
        await lease.release()
    left = await plane.job(job)
    assert (left.state, left.version) == (JobState.PENDING, job.version)


async def test_of_jobs_that_are_written_together_only_the_one_whose_lease_ended_is_refused(shared: Planes) -> None:
    plane = await shared.open()
    jobs = [await plane.submit(payload=number) for number in range(3)]
    key = SCHEDULER_JOB.key(job=jobs[1].id)

    def one_ends() -> None:
        sql(shared, f"{EXPIRE} WHERE key = '{key}'")

    with armed("plane.job.change", one_ends, hit=1):
        ends = await asyncio.gather(*(plane.placement.change(job.id, denied) for job in jobs), return_exceptions=True)
    assert [isinstance(each, RetryLater) for each in ends] == [False, True, False]
    states = [(await plane.job(job)).state for job in jobs]
    assert states == [JobState.DENIED, JobState.PENDING, JobState.DENIED]


async def test_no_other_session_is_granted_a_lock_while_its_holder_writes(shared: Planes) -> None:
    plane, other = await shared.open(), await shared.open()
    job = await plane.submit()
    lease = await plane.hold(job)
    seen: list[object] = []

    async def also(tx: Tx, after: Job) -> None:
        await tx.query_many("UPDATE plane_job SET priority = priority WHERE id = :id", [{"id": after.id}])
        expire(shared)
        seen.append(await SCHEDULER_JOB.lock(other.locks, job=after.id).try_acquire())

    def ends(before: Job) -> Writing:
        return Writing([Change(JobState.DENIED, actor="test")], also=also)

    changed = await plane.store.change(lease, job.id, ends)
    assert changed.after is not None
    assert changed.after.state is JobState.DENIED
    assert seen == [None], "the lease had expired, and its row was still locked"
    theirs = await SCHEDULER_JOB.lock(other.locks, job=job.id).try_acquire()
    assert theirs is not None
    assert theirs.fence > (changed.after.fence or 0)
    await theirs.release()
    with contextlib.suppress(LeaseLost):
        await lease.release()


async def test_the_check_costs_no_statement_of_its_own(shared: Planes, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []  # statements of the database; the driver of the leases is another one
    execute = psycopg.AsyncRawCursor.execute

    async def counted(self: Any, query: Any, *rest: Any, **options: Any) -> Any:
        if "pg_notify" not in str(query):  # a hint, which no caller waits for
            sent.append(str(query))
        return await execute(self, query, *rest, **options)

    plane = await shared.open()
    monkeypatch.setattr(psycopg.AsyncRawCursor, "execute", counted)

    async def statements(*, checked: bool) -> int:
        job = await plane.submit()
        if not checked:
            monkeypatch.setattr(plane.store, "_check", None)
        sent.clear()
        await plane.placement.change(job.id, telling)
        assert any("FOR KEY SHARE OF lease" in each for each in sent) is checked
        return len(sent)

    assert await statements(checked=True) == await statements(checked=False) == 2
    assert plane.database.statistics()["held"] == 0, "messages are a part of the statement, too"
    assert len(await plane.staged(subjects.SUBMIT)) == 4, "two submissions, and two changes"


async def test_only_leases_in_the_same_database_are_checked(shared: Planes, tmp_path: Any) -> None:
    plane = await shared.open()
    assert LeaseCheck.of(plane.database, plane.locks.ports.store) is not None
    beside = open_engine(f"sqlite:///{tmp_path}/leases.db")
    assert LeaseCheck.of(plane.database, beside.blocking) is None
    for url in (shared.url.replace("/t", "/u", 1), shared.url.replace("postgres@", "other@"), f"{shared.url}&port=1"):
        store = open_engine(url).blocking
        assert isinstance(store, ChecksOwnership)
        assert store.ownership_check(shared.url) is None
    schema = open_engine(f"{shared.url}&schema=elsewhere").blocking
    assert isinstance(schema, ChecksOwnership)
    assert '"elsewhere".holdfast_lease' in (schema.ownership_check(shared.url) or "")
