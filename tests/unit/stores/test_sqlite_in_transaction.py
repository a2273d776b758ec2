"""Leases that share the transactions of another writer to the same file: granted, refused and undone as ever."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal, TypeVar

import pytest
import pytest_asyncio

from holdfast.core.ports import SharesTransactions
from holdfast.errors import Misconfigured, Timeout
from holdfast.plane.db.sqlite.database import SqliteDatabase
from holdfast.stores.memory.store import MemoryStore
from holdfast.stores.sqlite.engine import SqliteEngine, SqliteStore
from holdfast.types import MS, NS, AcquireRequest, Busy, Grant
from support.load.sqlite_processes import CALL, LONG, Other, ask, until

T = TypeVar("T")

KEYS = ("a", "b", "c")

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    database = SqliteDatabase(str(tmp_path / "plane.db"))
    yield database
    await database.close()


@pytest.fixture
def engine(database: SqliteDatabase) -> SqliteEngine:
    return SqliteEngine(database.path)


@pytest_asyncio.fixture
async def store(engine: SqliteEngine, database: SqliteDatabase) -> AsyncIterator[SqliteStore]:
    """Leases in the file of the database, which carries them."""
    store = engine.asynchronous()
    assert store.ride(database)
    yield store
    await store.close()


def asks(*keys: str, token: str = "t", ttl_ns: int = LONG) -> list[AcquireRequest]:
    return [AcquireRequest(key, f"{token}-{key}", f"svc@host:1/{token}", "default", ttl_ns) for key in keys]


def grants_of(answers: list[Grant | Busy]) -> list[Grant]:
    return [each for each in answers if isinstance(each, Grant)]


@pytest.mark.requires("R1", "R2", "R3")
async def test_they_are_acquired_and_released_in_transactions_of_the_database_alone(
    store: SqliteStore, engine: SqliteEngine, database: SqliteDatabase
) -> None:
    theirs = await store.acquire(ask("x", "b"), CALL)
    assert isinstance(theirs, Grant)
    before = database.statistics()["commits"]
    answers = await store.acquire_many(asks(*KEYS), CALL)
    assert [type(each) for each in answers] == [Grant, Busy, Grant]
    assert isinstance(answers[1], Busy)
    assert answers[1].owner == ask("x", "b").owner
    mine = grants_of(answers)
    assert theirs.fence < mine[0].fence < mine[1].fence
    assert await store.release_many([*mine, Grant("b", "not the token", theirs.fence, "")], CALL) == [True, True, False]
    assert await store.release_many(mine, CALL) == [False, False]
    assert database.statistics()["commits"] == before + 3
    assert [each.key for each in await store.holdings("", 10, CALL)] == ["b"]
    assert grants_of(await store.acquire_many(asks("a"), CALL))[0].fence > mine[1].fence


async def test_they_share_a_commit_with_whatever_else_is_written(store: SqliteStore, database: SqliteDatabase) -> None:
    """The writer is held up until all of them are queued."""
    await store.acquire_many(asks("first"), CALL)
    entered, go = threading.Event(), threading.Event()

    def hold_up(_: sqlite3.Connection) -> None:
        entered.set()
        go.wait(60)

    async def waiting(number: int) -> None:
        while database.statistics()["write_line"] < number:  # noqa: ASYNC110 - a condition
            await asyncio.sleep(0)

    first = asyncio.create_task(database.carry(hold_up))
    await asyncio.to_thread(entered.wait, 60)
    before = database.statistics()["commits"]
    together = [
        asyncio.create_task(store.acquire_many(asks("a", "b"), CALL)),
        asyncio.create_task(store.acquire_many(asks("b", "c", token="u"), CALL)),
        asyncio.create_task(database.carry(lambda connection: connection.execute("SELECT 1").fetchall())),
    ]
    await waiting(3)
    go.set()
    ends = await asyncio.gather(first, *together)
    assert database.statistics()["commits"] == before + 2, "that of the one that held them up, and one for all"
    assert [type(each) for each in ends[1]] == [Grant, Grant]
    assert [type(each) for each in ends[2]] == [Busy, Grant]


async def test_the_lease_of_a_dead_process_is_free_immediately_and_that_of_a_living_one_is_not(
    store: SqliteStore, database: SqliteDatabase
) -> None:
    other = Other(database.path, "asked('t', 'a'); say('holds'); sys.stdin.readline()")
    try:
        assert other.hears() == "holds"
        assert [type(each) for each in await store.acquire_many(asks("a"), CALL)] == [Busy]
    finally:
        other.process.kill()
        other.end()
    assert [type(each) for each in await store.acquire_many(asks("a"), CALL)] == [Grant]


async def test_an_expired_lease_has_another_owner_and_is_not_released(store: SqliteStore) -> None:
    late = grants_of(await store.acquire_many(asks("a", ttl_ns=1), CALL))
    assert await store.release_many(late, CALL) == [False]
    late = grants_of(await store.acquire_many(asks("a", ttl_ns=1), CALL))
    (taken,) = grants_of(await store.acquire_many(asks("a", token="u"), CALL))
    assert taken.fence > late[0].fence
    assert await store.release_many(late, CALL) == [False]
    assert await store.release_many([taken], CALL) == [True]


async def test_a_waiter_is_notified_of_the_release(store: SqliteStore) -> None:
    mine = grants_of(await store.acquire_many(asks("a", "b"), CALL))
    watch = await store.watch("a")
    hint = asyncio.create_task(watch.wait(60 * NS))
    await store.release_many(mine, CALL)
    assert await hint
    await watch.close()


async def test_a_file_that_does_not_answer_in_time_is_a_timeout_and_leaves_nothing_behind(
    store: SqliteStore, database: SqliteDatabase
) -> None:
    await store.acquire_many(asks("first"), CALL)
    other = sqlite3.connect(database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(Timeout, match=r"did not answer within 0\.05 s"):
            await store.acquire_many(asks("a"), 50 * MS)
    finally:
        other.close()
    assert await store.inspect("a", CALL) is None
    assert [type(each) for each in await store.acquire_many(asks("a"), CALL)] == [Grant]


async def test_what_cannot_be_judged_is_said_and_undoes_nothing_of_others(
    store: SqliteStore, database: SqliteDatabase
) -> None:
    await store.acquire_many(asks("bad"), CALL)
    with sqlite3.connect(database.path) as other:
        other.execute("UPDATE holdfast_lease SET expires_ns = 'never' WHERE key = 'bad'")
    other.close()
    good, bad = await asyncio.gather(
        store.acquire_many(asks("a"), CALL),
        store.acquire_many(asks("b", "bad", token="u"), CALL),
        return_exceptions=True,
    )
    assert isinstance(bad, Misconfigured)
    assert isinstance(good, list)
    assert grants_of(good)
    assert await store.inspect("b", CALL) is None, "all of a request or nothing"


async def test_when_the_database_is_closed_they_go_by_themselves(store: SqliteStore, database: SqliteDatabase) -> None:
    mine = grants_of(await store.acquire_many(asks("a", "b"), CALL))
    await database.close()
    assert await store.release_many(mine, CALL) == [True, True]
    assert [type(each) for each in await store.acquire_many(asks("a", "b"), CALL)] == [Grant, Grant]


async def test_what_ran_out_and_was_never_asked_for_again_is_swept_all_the_same(
    store: SqliteStore, database: SqliteDatabase
) -> None:
    for number in range(3):
        await store.acquire_many(asks(*(f"{number}-{each}" for each in range(20)), ttl_ns=1), CALL)
    store.leases.granting(100_000)  # as after so many grants
    await store.acquire_many(asks("a"), CALL)
    until(lambda: [each[0] for each in _keys(database.path)] == ["a"])


def _keys(path: str) -> list[tuple[str]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT key FROM holdfast_lease").fetchall()
    finally:
        connection.close()


class Elsewhere:
    """A carrier of another file."""

    path = "/nowhere/else.db"
    durable = True

    async def carry(self, step: Callable[[sqlite3.Connection], T]) -> T:
        raise AssertionError("it was asked")


async def test_only_the_database_in_which_the_leases_lie_will_do(store: SqliteStore, engine: SqliteEngine) -> None:
    assert isinstance(store, SharesTransactions)
    assert not isinstance(MemoryStore(), SharesTransactions)
    alone = engine.asynchronous()
    assert not alone.ride(Elsewhere())
    assert not alone.ride(object())
    assert [type(each) for each in await alone.acquire_many(asks("a"), CALL)] == [Grant]
    await alone.close()


@pytest.mark.parametrize(("asked", "given", "shared"), [("full", "full", True), ("full", "normal", False)])
async def test_leases_that_are_to_survive_a_loss_of_power_share_only_commits_that_do(
    tmp_path: Path, asked: str, given: Literal["full", "normal"], shared: bool
) -> None:
    database = SqliteDatabase(str(tmp_path / "plane.db"), synchronous=given)
    store = SqliteEngine(database.path, synchronous=asked).asynchronous()
    assert store.within(database.path) is None, "how safe its commits are is not known yet"
    assert store.ride(database) is shared
    assert (store.within(database.path) is not None) is shared
    assert [type(each) for each in await store.acquire_many(asks("a"), CALL)] == [Grant]
    assert (database.statistics()["commits"] > 0) is shared
    await store.close()
    await database.close()
