"""The plane's database in a SQLite file: shared commits, other writers, a bounded line, and files that cannot be."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

import holdfast.aio
from holdfast.errors import BadInput, Misconfigured, Unavailable
from holdfast.plane.db.notifier import ChannelSubscription
from holdfast.plane.db.ports import Tx
from holdfast.plane.db.sqlite import database as sqlite_database
from holdfast.plane.db.sqlite.database import SqliteDatabase
from holdfast.plane.db.sqlite.notify import HintBroadcaster, SocketListener
from holdfast.stores.sqlite.liveness import this_host
from holdfast.types import MS, NS
from support.fixtures.databases import THINGS, insert, numbers, until

pytestmark = pytest.mark.asyncio

LONG = 60 * NS


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "plane.db")


@pytest_asyncio.fixture
async def file(path: str) -> AsyncIterator[SqliteDatabase]:
    opened = SqliteDatabase(path)
    await opened.write(lambda tx: tx.query(THINGS))
    yield opened
    await opened.close()


@pytest.fixture
def intruder(path: str) -> Iterator[sqlite3.Connection]:
    """Another connection to the file, as another process has it."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        yield connection


async def queued(database: SqliteDatabase, count: int) -> None:
    """Return when so many writes are queued."""
    await until(lambda: database.statistics()["write_line"] >= count)


async def test_works_that_wait_together_share_one_commit(file: SqliteDatabase, intruder: sqlite3.Connection) -> None:
    before = file.statistics()
    intruder.execute("BEGIN IMMEDIATE")
    writes = [asyncio.create_task(file.write(partial(insert, number=n))) for n in range(100)]
    await queued(file, 100)
    await until(lambda: file.statistics()["write_busy"] > 0)  # it has met the intruder
    assert not any(each.done() for each in writes)
    intruder.execute("ROLLBACK")

    assert await asyncio.gather(*writes) == list(range(100))
    after = file.statistics()
    assert after["commits"] - before["commits"] == 1
    assert after["write_works"] - before["write_works"] == 100
    assert after["write_busy"] > 0


async def test_in_a_shared_commit_an_error_undoes_one_work_alone(
    file: SqliteDatabase, intruder: sqlite3.Connection
) -> None:
    async def bad(tx: Tx, number: int) -> None:
        await insert(tx, 100 + number)
        await insert(tx, 100 + number)

    commits = file.statistics()["commits"]
    intruder.execute("BEGIN IMMEDIATE")
    writes = [asyncio.create_task(file.write(partial(bad if n % 2 else insert, number=n))) for n in range(20)]
    await queued(file, 20)
    intruder.execute("ROLLBACK")
    answers = await asyncio.gather(*writes, return_exceptions=True)

    assert await numbers(file) == list(range(0, 20, 2))
    assert [isinstance(each, Exception) for each in answers] == [bool(n % 2) for n in range(20)]
    assert file.statistics()["commits"] == commits + 1


@pytest.mark.parametrize(
    "spoiler",
    [
        "INSERT INTO child (parent) VALUES (999)",  # found out at the commit
        "INSERT INTO thing (id, name) VALUES (500, 'forbidden')",  # rolls the whole transaction back
    ],
    ids=["deferred", "rollback"],
)
async def test_a_work_that_brings_the_whole_transaction_down_gets_the_error_alone(
    file: SqliteDatabase, intruder: sqlite3.Connection, spoiler: str
) -> None:
    async def tables(tx: Tx) -> None:
        await tx.query("CREATE TABLE child (parent BIGINT REFERENCES thing (id) DEFERRABLE INITIALLY DEFERRED)")
        await tx.query(
            "CREATE TRIGGER no BEFORE INSERT ON thing WHEN new.name = 'forbidden' "
            "BEGIN SELECT RAISE(ROLLBACK, 'not so'); END"
        )

    await file.write(tables)
    intruder.execute("BEGIN IMMEDIATE")
    writes = [asyncio.create_task(file.write(partial(insert, number=n))) for n in range(5)]
    bad = asyncio.create_task(file.write(lambda tx: tx.query(spoiler)))
    writes += [asyncio.create_task(file.write(partial(insert, number=n))) for n in range(5, 10)]
    await queued(file, 11)
    intruder.execute("ROLLBACK")

    assert await asyncio.gather(*writes) == list(range(10))
    with pytest.raises(BadInput, match="do not fit"):
        await bad
    assert await numbers(file) == list(range(10))
    assert file.statistics()["write_run_again"] == 11


async def test_a_file_that_stays_locked_is_unavailable_and_nothing_has_happened(
    path: str, file: SqliteDatabase, intruder: sqlite3.Connection
) -> None:
    hasty = SqliteDatabase(path, busy_timeout_ns=50 * MS)
    intruder.execute("BEGIN IMMEDIATE")
    answers = await asyncio.gather(*(hasty.write(partial(insert, number=n)) for n in range(10)), return_exceptions=True)
    intruder.execute("ROLLBACK")

    assert {type(each) for each in answers} == {Unavailable}
    assert "nothing was changed" in str(answers[0])
    assert await hasty.write(partial(insert, number=77)) == 77
    assert await numbers(hasty) == [77]
    await hasty.close()


async def test_reads_go_on_while_the_file_is_locked(file: SqliteDatabase, intruder: sqlite3.Connection) -> None:
    await file.write(partial(insert, number=1))
    intruder.execute("BEGIN IMMEDIATE")
    intruder.execute("INSERT INTO thing (id) VALUES (2)")

    assert await numbers(file) == [1]
    intruder.execute("COMMIT")
    assert await numbers(file) == [1, 2]


async def test_what_is_cancelled_in_line_is_never_begun(file: SqliteDatabase, intruder: sqlite3.Connection) -> None:
    begun: list[int] = []

    async def work(tx: Tx, number: int) -> None:
        begun.append(number)
        await insert(tx, number)

    intruder.execute("BEGIN IMMEDIATE")
    writes = [asyncio.create_task(file.write(partial(work, number=n))) for n in range(10)]
    await queued(file, 10)
    for write in writes[::2]:
        write.cancel()
    await asyncio.gather(*writes[::2], return_exceptions=True)
    intruder.execute("ROLLBACK")
    await asyncio.gather(*writes[1::2])

    assert begun == await numbers(file) == [1, 3, 5, 7, 9]


async def test_a_full_line_makes_callers_wait_and_then_says_so(
    path: str, file: SqliteDatabase, intruder: sqlite3.Connection
) -> None:
    small = SqliteDatabase(path, queue_max=3, busy_timeout_ns=LONG)
    intruder.execute("BEGIN IMMEDIATE")
    writes = [asyncio.create_task(small.write(partial(insert, number=n))) for n in range(10)]
    await queued(small, 3)
    for _ in range(100):
        await asyncio.sleep(0)
    assert small.statistics()["write_line"] == 3
    intruder.execute("ROLLBACK")
    assert sorted(await asyncio.gather(*writes)) == list(range(10))
    await small.close()

    hasty = SqliteDatabase(path, queue_max=1, busy_timeout_ns=30 * MS)
    intruder.execute("BEGIN IMMEDIATE")
    answers = await asyncio.gather(
        *(hasty.write(partial(insert, number=n)) for n in range(100, 105)), return_exceptions=True
    )
    intruder.execute("ROLLBACK")
    assert {type(each) for each in answers} == {Unavailable}
    assert await numbers(hasty) == list(range(10))
    await hasty.close()


async def test_no_commit_is_larger_than_allowed(path: str, file: SqliteDatabase, intruder: sqlite3.Connection) -> None:
    small = SqliteDatabase(path, group_max=4)
    intruder.execute("BEGIN IMMEDIATE")
    writes = [asyncio.create_task(small.write(partial(insert, number=n))) for n in range(10)]
    await queued(small, 10)
    intruder.execute("ROLLBACK")
    await asyncio.gather(*writes)

    assert small.statistics()["write_largest_group"] == 4
    assert small.statistics()["commits"] == 3
    await small.close()


async def test_a_work_that_awaits_something_else_is_refused(file: SqliteDatabase) -> None:
    async def work(tx: Tx) -> None:
        await insert(tx, 1)
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        await file.write(work)

    assert await numbers(file) == []


async def test_a_full_disk_is_unavailable_and_costs_only_what_did_not_fit(file: SqliteDatabase) -> None:
    (pages,) = await file.write(lambda tx: tx.query("PRAGMA page_count"))
    await file.write(lambda tx: tx.query(f"PRAGMA max_page_count = {pages['page_count'] + 3}"))

    answers = await asyncio.gather(
        *(file.write(partial(insert, number=n, note="x" * (50_000 if n == 2 else 1))) for n in range(5)),
        return_exceptions=True,
    )

    assert isinstance(answers[2], Unavailable)
    assert "full" in str(answers[2])
    assert await numbers(file) == [0, 1, 3, 4]


async def test_a_deleted_file_is_noticed_before_anything_is_lost_in_it(path: str, file: SqliteDatabase) -> None:
    await file.write(partial(insert, number=1))
    await numbers(file)
    os.rename(path, f"{path}.gone")  # noqa: PTH104 - in a coroutine

    with pytest.raises(Misconfigured, match="deleted or replaced"):
        await file.write(partial(insert, number=2))
    with pytest.raises(Misconfigured, match="deleted or replaced"):
        await numbers(file)
    assert not os.access(path, os.F_OK)


async def test_places_that_cannot_hold_a_file_say_why(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is not a database, and it is longer than a header of one would be " * 10)
    for name, problem in (("none/plane.db", "does not exist"), (".", "is a directory"), ("text", "is not an SQLite")):
        database = SqliteDatabase(str(tmp_path / name))
        for call in (database.write, database.read):
            with pytest.raises(Misconfigured, match=problem):
                await call(lambda tx: tx.query("SELECT 1"))
        await database.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
async def test_a_file_without_permission_says_so(path: str, file: SqliteDatabase) -> None:
    await file.close()
    os.chmod(path, 0o444)  # noqa: PTH101 - in a coroutine
    database = SqliteDatabase(path)

    with pytest.raises(Misconfigured, match="cannot be written"):
        await database.write(partial(insert, number=1))
    await database.close()


@pytest.mark.parametrize(
    ("synchronous", "apart", "number", "syncs"), [("full", True, 1, 2), ("full", False, 2, 0), ("normal", True, 1, 0)]
)
async def test_commits_are_as_durable_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synchronous: str, apart: bool, number: int, syncs: int
) -> None:
    """Where we cannot sync by ourselves, SQLite does it within its commits."""
    monkeypatch.setattr(sqlite_database, "POSSIBLE", apart)
    database = SqliteDatabase(str(tmp_path / "new.db"), synchronous=synchronous)  # type: ignore[arg-type]

    assert await database.write(lambda tx: tx.query("PRAGMA synchronous")) == [{"synchronous": number}]
    assert await database.write(lambda tx: tx.query("PRAGMA journal_mode")) == [{"journal_mode": "wal"}]
    assert database.statistics()["syncs"] == syncs
    await database.close()


@pytest.mark.parametrize(
    ("field", "value"), [("synchronous", "off"), ("readers", 0), ("queue_max", 0), ("group_max", -1)]
)
async def test_settings_that_cannot_be_are_refused(path: str, field: str, value: object) -> None:
    with pytest.raises(BadInput, match=field):
        SqliteDatabase(path, **{field: value})  # type: ignore[arg-type]


async def test_leases_live_in_the_same_file(path: str, file: SqliteDatabase) -> None:
    listener = file.listen("a")  # makes the table of listeners
    async with holdfast.aio.connect(f"sqlite:///{path}") as locks:
        for n in range(5):
            async with locks.lock("k", ttl=30):
                await file.write(partial(insert, number=n))
    listener.close()

    assert await numbers(file) == [0, 1, 2, 3, 4]


async def test_dead_listeners_are_forgotten_and_closed_ones_take_themselves_out(
    path: str, file: SqliteDatabase, intruder: sqlite3.Connection
) -> None:
    other = SqliteDatabase(path)
    listeners = [each.listen("a") for each in (file, other)]
    for listener in listeners:
        assert await listener.wait(LONG) is True  # it is enrolled
    place = intruder.execute("SELECT place FROM plane_listener").fetchone()[0]
    intruder.execute("INSERT INTO plane_listener VALUES ('nobody-listens-here', ?, 0), ('old', 'boot:1', 0)", [place])
    await other.close()
    number = iter(range(1000))
    while intruder.execute("SELECT count(*) FROM plane_listener").fetchone() != (2,):
        await file.write(partial(notified, number=next(number)))  # one finds out, and a later one writes it down

    third = SqliteDatabase(path)
    assert await third.listen("b").wait(LONG) is True
    assert intruder.execute("SELECT count(*) FROM plane_listener WHERE address = 'old'").fetchone() == (0,)
    await third.close()


async def notified(tx: Tx, number: int) -> None:
    await insert(tx, number)
    tx.notify("a")


async def test_where_there_are_no_sockets_changes_are_looked_for(path: str, file: SqliteDatabase) -> None:
    polling = SqliteDatabase(path, hints="polling")
    listener: ChannelSubscription = polling.listen("a")
    assert await listener.wait(LONG) is True  # it has looked for the first time

    for n in range(3):
        await file.write(partial(notified, number=n))
        assert await listener.wait(LONG) is True

    await polling.close()


async def test_a_system_without_abstract_sockets_falls_back_to_looking(
    path: str, file: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = replace(this_host(), place="")
    monkeypatch.setattr("holdfast.plane.db.sqlite.notify.this_host", lambda: elsewhere)
    blind = SqliteDatabase(path)
    listener = blind.listen("a")
    await file.write(partial(notified, number=1))

    assert await listener.wait(LONG) is True
    await blind.close()


async def test_a_work_that_has_begun_is_never_said_not_to_have_happened(path: str, file: SqliteDatabase) -> None:
    hasty = SqliteDatabase(path, busy_timeout_ns=20 * MS)
    begun, leave = threading.Event(), threading.Event()

    async def slow(tx: Tx) -> int:
        begun.set()
        leave.wait(60)
        return await insert(tx, 1)

    write = asyncio.create_task(hasty.write(slow))
    await until(begun.is_set)
    done, _ = await asyncio.wait([write], timeout=0.1)  # longer than its deadline in the queue
    assert not done
    leave.set()

    assert await write == 1
    await hasty.close()


async def test_a_listener_whose_queue_ran_over_wakes_everybody() -> None:
    heard: list[str] = []
    everybody = asyncio.Event()
    socket_listener = SocketListener(asyncio.get_running_loop(), heard.extend, everybody.set)
    broadcaster = HintBroadcaster()

    for n in range(2000):  # the loop has no chance to look meanwhile
        broadcaster.send([socket_listener.address], [f"c{n}"])
    async with asyncio.timeout(60):
        await everybody.wait()
    assert heard == []
    broadcaster.send([socket_listener.address], ["a", "b"])
    await until(lambda: sorted(heard) == ["a", "b"])

    broadcaster.close()
    socket_listener.close()
