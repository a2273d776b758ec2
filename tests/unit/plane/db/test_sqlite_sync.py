"""A thread of its own syncs commits: no result is returned before, and a failed disk is never trusted."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.errors import RowExists, Timeout, Unavailable
from holdfast.plane.app import App
from holdfast.plane.bus.embedded.bus import EmbeddedBus
from holdfast.plane.db.ports import Tx
from holdfast.plane.db.sqlite.database import SqliteDatabase
from holdfast.plane.jobs.store import Writing
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Change, Job, Submission
from holdfast.plane.process.components import open_components
from holdfast.plane.process.plane import Plane
from holdfast.plane.scheduler.placement import Placement
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import Settings, WorkerSettings
from holdfast.stores.sqlite.engine import SqliteEngine
from holdfast.types import NS, Grant
from support.fixtures.databases import THINGS, insert, numbers, until
from support.load.sqlite_processes import CALL, ask

pytestmark = pytest.mark.asyncio


class Disk:
    """The disk, as far as syncing goes: it can be slow, and it can fail."""

    def __init__(self) -> None:
        self.asked = 0
        self.go = threading.Event()
        self.go.set()
        self.trouble: OSError | None = None
        self._sync = os.fdatasync

    def fdatasync(self, descriptor: int) -> None:
        self.asked += 1
        assert self.go.wait(60)
        if self.trouble is not None:
            raise self.trouble
        self._sync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(os, "fdatasync", disk.fdatasync)
    yield disk
    disk.go.set()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "plane.db")


@pytest_asyncio.fixture
async def file(path: str, disk: Disk) -> AsyncIterator[SqliteDatabase]:
    open_components = SqliteDatabase(path)
    await open_components.write(lambda tx: tx.query(THINGS))
    yield open_components
    disk.go.set()
    await open_components.close()


def size(path: str) -> int:
    return Path(path).stat().st_size


def found(path: str, question: str) -> bool:
    """Whether another process finds something."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(question).fetchone() is not None


def seen(path: str) -> list[int]:
    """What another process sees."""
    with closing(sqlite3.connect(path)) as connection:
        return [number for (number,) in connection.execute("SELECT id FROM thing ORDER BY id")]


async def test_whoever_asked_is_not_told_before_the_disk_has_it_and_others_write_meanwhile(
    path: str, file: SqliteDatabase, disk: Disk
) -> None:
    called: list[int] = []

    async def work(tx: Tx, number: int) -> int:
        tx.after(lambda: called.append(number))
        tx.notify("here")
        return await insert(tx, number)

    listener = file.listen("here")
    assert await listener.wait(60 * NS)  # it is known to others from now on
    await file.write(partial(insert, number=0))
    disk.go.clear()
    before = disk.asked
    first = asyncio.create_task(file.write(partial(work, number=1)))
    await until(lambda: disk.asked > before)
    others = [asyncio.create_task(file.write(partial(work, number=number))) for number in (2, 3)]
    await until(lambda: seen(path) == [0, 1, 2, 3])
    with closing(sqlite3.connect(path, timeout=0)) as other:  # the lock is free while the disk is busy
        other.execute("INSERT INTO thing (id) VALUES (4)")
        other.commit()
    assert not first.done()
    assert not any(each.done() for each in others)
    assert called == []
    assert await listener.wait(60 * NS)  # readers see it, and may begin to act on it
    disk.go.set()
    assert await asyncio.gather(first, *others) == [1, 2, 3]
    assert called == [1, 2, 3]
    assert disk.asked == before + 2, "one for the first, and one for all that came while it lasted"
    listener.close()


async def test_whoever_does_not_care_is_told_at_once_and_does_not_tell_for_others(
    file: SqliteDatabase, disk: Disk
) -> None:
    called: list[int] = []

    async def work(tx: Tx) -> int:
        tx.after(lambda: called.append(2))
        return await insert(tx, 2)

    disk.go.clear()
    before = disk.asked
    first = asyncio.create_task(file.write(partial(insert, number=1)))
    await until(lambda: disk.asked > before)
    assert await file.write(work, lasting=False) == 2
    with pytest.raises(RowExists):
        await file.write(work, lasting=False)
    assert not first.done()
    assert called == []  # which is about what is safe
    disk.go.set()
    assert await first == 1
    await until(lambda: called == [2])


async def test_what_nobody_waits_for_is_not_synced_by_itself(file: SqliteDatabase, disk: Disk) -> None:
    before = disk.asked
    assert [await file.write(partial(insert, number=number), lasting=False) for number in (1, 2)] == [1, 2]
    assert disk.asked == before
    assert await file.write(partial(insert, number=3)) == 3
    assert disk.asked == before + 1


async def test_a_failed_sync_is_met_by_those_who_wait_and_not_by_those_who_do_not(
    file: SqliteDatabase, disk: Disk
) -> None:
    disk.trouble = OSError(errno.EIO, "no")
    with pytest.raises(Timeout, match="may lose it"):
        await file.write(partial(insert, number=1))
    assert await file.write(partial(insert, number=2), lasting=False) == 2
    disk.trouble = None
    assert await file.write(partial(insert, number=3)) == 3
    assert await numbers(file) == [1, 2, 3]


async def test_what_is_read_is_on_the_disk_before_anybody_is_told(path: str, file: SqliteDatabase, disk: Disk) -> None:
    """Also what another process has written, which has not synced it yet, or was killed before."""
    assert await numbers(file) == []
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA synchronous = OFF")
        other.execute("INSERT INTO thing (id) VALUES (7)")
        other.commit()
        disk.go.clear()
        before = disk.asked
        reading = asyncio.create_task(numbers(file))
        await until(lambda: disk.asked > before)
        look = "SELECT id FROM thing"
        assert (
            len(await file.read(lambda tx: tx.query(look), lasting=False)) == 1
        )  # a read whose result is not returned to a client
        assert not reading.done()
        disk.go.set()
        assert await reading == [7]


async def test_what_was_synced_is_not_synced_again_to_be_read(path: str, disk: Disk) -> None:
    file = SqliteDatabase(path, readers=1)
    await file.write(lambda tx: tx.query(THINGS))
    await file.write(partial(insert, number=1))
    assert await numbers(file) == [1]
    before = disk.asked
    assert [await numbers(file) for _ in range(5)] == [[1]] * 5
    assert disk.asked == before
    await file.write(partial(insert, number=2), lasting=False)
    assert disk.asked == before
    assert await numbers(file) == [1, 2]
    assert disk.asked == before + 1
    await file.close()


async def test_what_may_not_last_is_not_told_and_mended_when_the_disk_is_well(
    path: str, file: SqliteDatabase, disk: Disk
) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("INSERT INTO thing (id) VALUES (7)")
        other.commit()
        disk.trouble = OSError(errno.EIO, "no")
        with pytest.raises(Unavailable, match="may not last"):
            await numbers(file)
        disk.trouble = None
        assert await numbers(file) == [7]
        assert size(f"{path}-wal") == 0  # it was moved into the file itself


@pytest.mark.parametrize("leases", [None, "leases.db"], ids=["one file", "leases elsewhere"])
async def test_no_function_runs_before_the_disk_has_what_it_runs_for(
    tmp_path: Path, disk: Disk, leases: str | None
) -> None:
    """The job, its dispatch, the claim of its message: all are committed, none is synced, so no attempt begins."""
    app, begun = App("own"), asyncio.Event()

    @app.job("touch")
    async def touch(payload: object) -> None:
        begun.set()

    settings = Settings(
        database=f"sqlite:///{tmp_path}/plane.db",
        leases=None if leases is None else f"sqlite:///{tmp_path}/{leases}",
        worker=WorkerSettings(count=1, heartbeat=60.0),
    )
    claimed = "SELECT 1 FROM plane_message WHERE subject LIKE 'work.%' AND state = 1"
    over = "SELECT 1 FROM plane_job WHERE state = 'SUCCEEDED'"
    where = f"{tmp_path}/plane.db"
    held = "SELECT 1 FROM holdfast_lease WHERE key LIKE '%worker:job:%'"
    async with Plane(settings, parts=("scheduler", "worker"), app=app) as plane:
        me = Caller("test")
        await plane.components.service.submit(me, Submission("touch"))
        await until(begun.is_set)
        await until(lambda: found(where, over))
        # Nothing is under way when the disk is held up: a consumer that waits for it claims nothing more.
        await until(lambda: not found(where, "SELECT 1 FROM plane_message WHERE state <> 2"))
        await plane.components.database.write(lambda tx: tx.query("SELECT 1 AS one"))
        begun.clear()
        disk.go.clear()
        submitting = asyncio.create_task(plane.components.service.submit(me, Submission("touch")))
        try:
            await until(lambda: found(where, claimed if leases else held))
            for _ in range(200):  # time enough for an attempt that would begin too early
                await plane.components.database.read(lambda tx: tx.query("SELECT 1 AS one"), lasting=False)
            assert not begun.is_set()
            assert not submitting.done()
        finally:
            disk.go.set()
        await until(begun.is_set)
        await submitting
        await until(lambda: not found(where, "SELECT 1 FROM plane_job WHERE state <> 'SUCCEEDED'"))


@pytest.mark.parametrize("synchronous", ["normal", "full"])
async def test_a_lease_is_used_when_the_disk_has_it_and_given_back_without_waiting_unless_that_was_asked_for(
    path: str, file: SqliteDatabase, disk: Disk, synchronous: str
) -> None:
    store = SqliteEngine(path, synchronous=synchronous).asynchronous()
    assert store.ride(file)
    grants = [each for each in await store.acquire_many([ask("t", "a")], CALL) if isinstance(each, Grant)]
    disk.go.clear()
    returning = asyncio.create_task(store.release_many(grants, CALL))
    await until(lambda: not found(path, "SELECT 1 FROM holdfast_lease"))
    if synchronous == "normal":
        assert await returning == [True]
    taking = asyncio.create_task(store.acquire_many([ask("u", "a")], CALL))
    await until(lambda: found(path, "SELECT 1 FROM holdfast_lease"))
    for _ in range(50):
        await file.read(lambda tx: tx.query("SELECT 1 AS one"), lasting=False)
    assert not taking.done()
    assert returning.done() is (synchronous == "normal")
    disk.go.set()
    assert [type(each) for each in await taking] == [Grant]
    assert await returning == [True]
    await store.close()


@pytest.mark.parametrize("within", [True, False], ids=["bus in the file", "bus elsewhere"])
async def test_a_change_by_the_scheduler_waits_for_the_disk_only_if_its_message_is_acknowledged_elsewhere(
    path: str, disk: Disk, monkeypatch: pytest.MonkeyPatch, within: bool
) -> None:
    """In one file what comes later is never safe without what came before."""
    monkeypatch.setattr(EmbeddedBus, "within", within)

    def end(job: Job) -> Writing:
        return Writing([Change(JobState.CANCELLED, actor="test", reason="enough")])

    async with open_components(Settings(database=f"sqlite:///{path}")) as components:
        jobs = [(await components.service.submit(Caller("test"), Submission("touch")))[0] for _ in range(2)]
        placement = Placement(components.store, components.locks, components.workers, actor="test")
        await placement.change(jobs[0].id, lambda _: end)
        disk.go.clear()
        ending = asyncio.create_task(placement.change(jobs[1].id, lambda _: end))
        submitting = asyncio.create_task(components.service.submit(Caller("test"), Submission("touch", "new")))
        cancelled = "SELECT COUNT(*) FROM plane_job WHERE state = 'CANCELLED' HAVING COUNT(*) = 2"
        await until(lambda: found(path, cancelled))
        await until(lambda: found(path, "SELECT COUNT(*) FROM plane_job HAVING COUNT(*) = 3"))
        if within:
            changed = await ending
            assert changed.after is not None
            assert changed.after.state is JobState.CANCELLED
        for _ in range(50):
            await components.database.read(lambda tx: tx.query("SELECT 1 AS one"), lasting=False)
        assert ending.done() is within
        assert not submitting.done()
        disk.go.set()
        await asyncio.gather(ending, submitting)


async def test_errors_are_told_in_turn_too(file: SqliteDatabase, disk: Disk) -> None:
    """A conflict with an existing row is reported only after that row is synced."""
    disk.go.clear()
    first = asyncio.create_task(file.write(partial(insert, number=1)))
    await until(lambda: disk.asked > 1)
    again = asyncio.create_task(file.write(partial(insert, number=1)))
    await until(lambda: file.statistics()["write_failed"] == 1)
    assert not again.done()
    disk.go.set()
    assert await first == 1
    with pytest.raises(Exception, match="such a row already"):
        await again


async def test_a_sync_that_failed_is_an_unknown_outcome_and_later_ones_are_not_believed(
    path: str, file: SqliteDatabase, disk: Disk
) -> None:
    """The kernel reports such an error once. From then on only what was moved into the file itself is safe."""
    disk.go.clear()
    disk.trouble = OSError(errno.EIO, "Input/output error")
    asked = disk.asked
    first = asyncio.create_task(file.write(partial(insert, number=1)))
    await until(lambda: disk.asked > asked)
    second = asyncio.create_task(file.write(partial(insert, number=2)))  # committed before a result is returned
    await until(lambda: seen(path) == [1, 2])
    disk.go.set()
    for each in (first, second):
        with pytest.raises(Timeout, match=r"may lose it: it was not synced .*Input/output error"):
            await each
    assert disk.asked == asked + 1, "there was nothing to be learnt from asking again"
    disk.trouble = None
    assert await file.write(partial(insert, number=3)) == 3
    assert await numbers(file) == [1, 2, 3]
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as alone:  # without the log
        assert [number for (number,) in alone.execute("SELECT id FROM thing ORDER BY id")] == [1, 2]


async def test_while_the_file_cannot_be_mended_nothing_is_written(path: str, file: SqliteDatabase, disk: Disk) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        disk.trouble = OSError(errno.ENOSPC, "No space left on device")
        with pytest.raises(Timeout, match="No space left"):
            await file.write(partial(insert, number=1))
        disk.trouble = None
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM thing").fetchall()
        with pytest.raises(Unavailable, match="nothing was changed"):
            await file.write(partial(insert, number=2))
        reader.execute("ROLLBACK")
        assert await file.write(partial(insert, number=3)) == 3
    assert seen(path) == [1, 3]


async def test_a_log_that_is_not_where_it_should_be_is_such_a_failure(path: str, file: SqliteDatabase) -> None:
    await file.write(partial(insert, number=1))
    os.rename(f"{path}-wal", f"{path}-elsewhere")  # noqa: PTH104 - in a coroutine
    with pytest.raises(Timeout, match="it was not synced"):
        await file.write(partial(insert, number=2))
    os.rename(f"{path}-elsewhere", f"{path}-wal")  # noqa: PTH104 - in a coroutine
    assert await file.write(partial(insert, number=3)) == 3
    assert seen(path) == [1, 2, 3]


async def test_closing_waits_for_what_is_being_made_safe(path: str, file: SqliteDatabase, disk: Disk) -> None:
    disk.go.clear()
    asked = disk.asked
    writing = asyncio.create_task(file.write(partial(insert, number=1)))
    await until(lambda: disk.asked > asked)
    closing_it = asyncio.create_task(file.close())
    await until(lambda: any(thread.name == "holdfast-plane-sync" for thread in threading.enumerate()))
    assert not closing_it.done()
    disk.go.set()
    await closing_it
    assert await writing == 1
    assert not any(thread.name == "holdfast-plane-sync" for thread in threading.enumerate())
    assert seen(path) == [1]
