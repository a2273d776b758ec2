"""A rare test write shows whether a database accepts writes; callers get the reason if it does not."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import Timeout
from holdfast.plane.db import write_probe
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Database, Tx
from holdfast.plane.db.sqlite.database import SqliteDatabase
from holdfast.plane.db.sqlite.disk_space import ROOM_KEPT, check_room
from holdfast.plane.db.write_probe import NoRoom, Refusal, Writability
from holdfast.runtime.system import SystemClock
from support.faults.small_disk import small_disk
from support.fixtures.postgres import every_postgres
from support.servers.postgres import PostgresServer

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def opened(url: str, *, made: bool = True) -> AsyncIterator[Any]:
    database = open_database(url)
    try:
        if made:
            await prepare(database)
        yield database
    finally:
        await database.close()


def asking(database: Database) -> Writability:
    return Writability(database, SystemClock())


async def refused(question: Writability) -> Refusal:
    async with asyncio.timeout(60):
        while (found := await question.refusal()) is None:
            pass
    return found


async def taken(question: Writability) -> None:
    async with asyncio.timeout(60):
        while await question.refusal() is not None:
            pass


@pytest.fixture
def eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question is a try."""
    monkeypatch.setattr(write_probe, "EVERY_S", 0.0)


async def test_however_often_it_is_asked_little_is_written(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path}/plane.db") as database:
        question, before = asking(database), database.statistics()["commits"]
        assert [await question.refusal() for _ in range(100)] == [None] * 100
        await asyncio.gather(*(question.refusal() for _ in range(100)))
        assert database.statistics()["commits"] == before + 1


async def test_a_disk_that_is_nearly_full_has_no_room_for_new_work(tmp_path: Path) -> None:
    await check_room(str(tmp_path / "plane.db"))
    await check_room(str(tmp_path / "nowhere" / "plane.db"))  # which opening it says better
    with small_disk(tmp_path / "disk") as disk:
        path = str(disk.place / "plane.db")
        await check_room(path)
        disk.fill(leave=ROOM_KEPT - 1_000_000)
        with pytest.raises(
            NoRoom, match=rf"^{path} should not grow: its disk has 1\d\.\d MB left, and 16\.0 MB are kept"
        ):
            await check_room(path)
        disk.free()
        await check_room(path)


@pytest.mark.usefixtures("eagerly")
async def test_a_disk_without_any_room_is_refused_by_the_write_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.plane.db.sqlite.disk_space.ROOM_KEPT", 0)
    with small_disk(tmp_path / "disk", 8) as disk:
        async with opened(f"sqlite:///{disk.place}/plane.db") as database:
            question = asking(database)
            assert await question.refusal() is None
            disk.fill()
            found = await refused(question)
            assert found.shown == (
                "plane.db cannot be written: the disk, the quota or the size limit is full; free space there, or raise "
                "the limit"
            )
            assert str(disk.place / "plane.db") in str(found.error)
            disk.free()
            await taken(question)


async def test_a_write_that_is_slow_says_nothing_and_what_was_known_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_probe, "PATIENCE_S", 0.01)
    async with opened(f"sqlite:///{tmp_path}/plane.db") as database:
        question, go, begun = asking(database), threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        async def long(tx: Tx) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(60)

        busy = asyncio.create_task(database.write(long))
        await begun.wait()
        before = database.statistics()["commits"]
        assert [await question.refusal() for _ in range(3)] == [None] * 3
        go.set()
        await busy
        async with asyncio.timeout(60):
            while database.statistics()["commits"] < before + 2:
                await question.refusal()


async def test_a_file_that_somebody_keeps_locked_is_refused_once_the_patience_of_a_write_is_over(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/plane.db?busy_timeout=0.1"
    async with opened(url) as database, opened(url, made=False) as other:
        go, begun, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()

        async def keep(tx: Tx) -> None:
            await tx.query("SELECT 1 AS one")
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(60)

        keeping = asyncio.create_task(other.write(keep))
        await begun.wait()
        try:
            found = await refused(asking(database))
        finally:
            go.set()
            await keeping
        assert found.shown.startswith(
            "plane.db cannot be written: waited for 0.1 s: another process holds the write lock"
        )


async def test_an_error_that_is_not_known_is_shown_by_its_kind_alone(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path}/plane.db") as database:

        class Plain:
            dialect = "sqlite"

            async def write(self, work: Any, **_: Any) -> None:
                raise Timeout(f"{database.path} may or may not have taken it")

        plain: Any = Plain()
        found = await refused(asking(plain))
        assert found.shown == "it takes no writes (timeout)"
        assert database.described(found.error) == "plane.db may or may not have taken it"


@every_postgres
@pytest.mark.usefixtures("eagerly")
async def test_a_standby_can_be_read_and_is_refused_until_it_is_promoted(own_postgres: PostgresServer) -> None:
    own_postgres.stop()
    own_postgres.settings["wal_level"] = "replica"
    own_postgres.start()
    async with opened(own_postgres.url()) as database:
        assert await asking(database).refusal() is None
    own_postgres.stop()
    (own_postgres.directory / "data" / "standby.signal").touch()
    own_postgres.start()
    # Left to itself the plane does not even connect to one; a URL may say otherwise.
    async with opened(f"{own_postgres.url()}&target_session_attrs=any", made=False) as database:
        assert await database.read(lambda tx: tx.query("SELECT pg_is_in_recovery() AS standby")) == [{"standby": True}]
        question = asking(database)
        assert (await refused(question)).shown == (
            "Postgres only reads: it is a standby; name the primary as the database, or wait for the failover to end"
        )
        with own_postgres.connect() as connection:
            connection.execute("SELECT pg_promote()")
        await taken(question)


@every_postgres
@pytest.mark.usefixtures("eagerly")
async def test_a_server_whose_disk_is_full_is_refused_from_the_first_write_that_fails_until_there_is_room(
    postgres_server: PostgresServer,
) -> None:
    name = f"small_{os.getpid()}"
    place = postgres_server.directory / name  # which the server's user can reach
    with small_disk(place, 64) as disk, postgres_server.connect() as connection:
        space = disk.place / "space"
        space.mkdir()
        owner = (postgres_server.directory / "data").stat()
        os.chown(space, owner.st_uid, owner.st_gid)
        connection.execute(f"CREATE TABLESPACE {name} LOCATION '{space}'")
        connection.execute(f"CREATE DATABASE {name} TABLESPACE {name}")
        try:
            async with opened(postgres_server.url(name)) as database:
                await database.write(lambda tx: tx.query("CREATE TABLE filling (text TEXT)"))
                question = asking(database)
                assert await question.refusal() is None
                disk.fill()
                fill = "INSERT INTO filling (text) SELECT md5(CAST(n AS text)) FROM generate_series(1, 100000) AS n"
                with pytest.raises(NoRoom, match="has no room left on a disk; nothing was changed"):
                    await database.write(lambda tx: tx.query(fill))
                assert (await refused(question)).shown == (
                    "Postgres has no room left on a disk; free space there, or give it more"
                )
                assert (await refused(question)).shown.startswith("Postgres has no room"), "and again"
                disk.free()
                await taken(question)
                await database.write(lambda tx: tx.query(fill))
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            connection.execute(f"DROP TABLESPACE {name}")


async def test_databases_that_describe_themselves_are_known(tmp_path: Path) -> None:
    assert isinstance(SqliteDatabase(str(tmp_path / "plane.db")), write_probe.Describes)
