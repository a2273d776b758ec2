"""The plane's database in Postgres: trouble with the server, with other transactions, and with the pool."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

import psycopg
import pytest
import pytest_asyncio

from holdfast.errors import BadInput, Misconfigured, Timeout, Unavailable
from holdfast.plane.db.ports import Tx
from holdfast.plane.db.postgres.database import PostgresDatabase
from holdfast.types import MS, NS
from support.fixtures.databases import THINGS, insert, numbers, until
from support.fixtures.postgres import PostgresConnect, every_postgres
from support.servers.postgres import PostgresServer

pytestmark = [pytest.mark.asyncio, every_postgres]

LONG = 60 * NS


@pytest_asyncio.fixture
async def base(postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    opened = PostgresDatabase(postgres_url)
    await opened.write(lambda tx: tx.query(THINGS))
    yield opened
    await opened.close()


async def test_a_server_that_restarts_heals_by_itself(own_postgres: PostgresServer) -> None:
    """Every connection of the pool is dead then; the next works find out, and are run again on new ones."""
    base = PostgresDatabase(own_postgres.url())
    await base.write(lambda tx: tx.query(THINGS))
    await asyncio.gather(*(base.write(partial(insert, number=n)) for n in range(20)))
    for ending in (own_postgres.stop, own_postgres.kill):
        await asyncio.to_thread(ending)
        await asyncio.to_thread(own_postgres.start)
        first = len(await numbers(base)) * 100
        written = await asyncio.gather(*(base.write(partial(insert, number=first + n)) for n in range(20)))
        assert written == [first + n for n in range(20)]
    assert base.statistics()["run_again"] > 0
    assert base.statistics()["unknown"] == 0
    await base.close()


async def test_a_server_that_is_down_is_unavailable_and_back_when_it_is_back(own_postgres: PostgresServer) -> None:
    base = PostgresDatabase(own_postgres.url())
    await base.write(lambda tx: tx.query(THINGS))
    await asyncio.to_thread(own_postgres.stop)

    with pytest.raises(Unavailable):
        await base.write(partial(insert, number=1))
    with pytest.raises(Unavailable, match="cannot be reached"):
        await base.read(lambda tx: tx.query("SELECT 1"))

    await asyncio.to_thread(own_postgres.start)
    written = False
    while not written:
        try:
            written = await base.write(partial(insert, number=2)) == 2
        except Unavailable:
            await asyncio.sleep(0.05)
    assert await numbers(base) == [2]
    await base.close()


async def test_acknowledged_writes_survive_restarts_in_the_middle(own_postgres: PostgresServer) -> None:
    base = PostgresDatabase(own_postgres.url())
    await base.write(lambda tx: tx.query(THINGS))
    acknowledged: set[int] = set()
    unknown: set[int] = set()
    done = False

    async def writer(first: int) -> None:
        number = first
        while not done:
            number += 10
            try:
                await base.write(partial(insert, number=number))
            except Unavailable:
                await asyncio.sleep(0.01)
            except Timeout:
                unknown.add(number)
            else:
                acknowledged.add(number)

    def reached(count: int) -> bool:
        return len(acknowledged) >= count

    writers = [asyncio.create_task(writer(n)) for n in range(10)]
    for count in (20, 40):
        await until(partial(reached, count))
        await asyncio.to_thread(own_postgres.stop)
        await asyncio.to_thread(own_postgres.start)
    enough = len(acknowledged) + 20
    await until(partial(reached, enough))
    done = True
    await asyncio.gather(*writers)

    found = set(await numbers(base))
    assert acknowledged <= found <= acknowledged | unknown
    await base.close()


async def test_bells_ring_again_after_a_restart(own_postgres: PostgresServer) -> None:
    here, there = PostgresDatabase(own_postgres.url()), PostgresDatabase(own_postgres.url())
    await there.write(lambda tx: tx.query(THINGS))
    listener = here.listen("a")
    assert await listener.wait(LONG) is True  # it listens
    await asyncio.to_thread(own_postgres.stop)
    await asyncio.to_thread(own_postgres.start)

    assert await listener.wait(LONG) is True  # it listens again, and may have missed something

    async def work(tx: Tx) -> None:
        await insert(tx, 1)
        tx.notify("a")

    await there.write(work)
    assert await listener.wait(LONG) is True
    await asyncio.gather(here.close(), there.close())


async def test_when_all_connections_are_busy_it_says_so_and_nothing_has_happened(
    postgres_url: str, base: PostgresDatabase
) -> None:
    small = PostgresDatabase(postgres_url, pool_max=2, pool_timeout_ns=100 * MS)
    inside, leave = asyncio.Semaphore(0), asyncio.Event()

    async def slow(tx: Tx) -> None:
        await tx.query("SELECT 1")
        inside.release()
        await leave.wait()

    async def hold() -> None:
        while not leave.is_set():
            with contextlib.suppress(Unavailable):  # a busy machine may need longer than that for a connection
                await small.write(slow)

    holders = [asyncio.create_task(hold()) for _ in range(2)]
    for _ in holders:
        await inside.acquire()
    with pytest.raises(Unavailable, match=r"all 2 connections to .* were busy for 0.1 s"):
        await small.write(partial(insert, number=1))
    leave.set()
    await asyncio.gather(*holders)

    assert await small.write(partial(insert, number=2)) == 2
    assert await numbers(base) == [2]
    await small.close()


async def test_a_deadlock_is_run_again_and_both_succeed(base: PostgresDatabase) -> None:
    await base.write(lambda tx: tx.query("INSERT INTO thing (id, note) VALUES (1, ''), (2, '')"))
    met = asyncio.Barrier(2)
    tries = 0

    async def touch(tx: Tx, order: tuple[int, int]) -> None:
        nonlocal tries
        tries += 1
        append = "UPDATE thing SET note = note || 'x' WHERE id = :id"
        await tx.query(append, {"id": order[0]})
        if tries <= 2:
            await met.wait()
        await tx.query(append, {"id": order[1]})

    await asyncio.gather(
        base.write(partial(touch, order=(1, 2))),
        base.write(partial(touch, order=(2, 1))),
    )

    rows = await base.read(lambda tx: tx.query("SELECT note FROM thing"))
    assert [row["note"] for row in rows] == ["xx", "xx"]
    # The one that is run again may overtake the other, which is still waking up, and meet it once more.
    assert tries > 2
    assert base.statistics()["run_again"] == tries - 2


async def test_a_row_that_stays_locked_is_unavailable(
    postgres_url: str, base: PostgresDatabase, postgres_connect: PostgresConnect
) -> None:
    await base.write(partial(insert, number=1))
    hasty = PostgresDatabase(postgres_url, lock_timeout_ns=50 * MS)
    holder = postgres_connect()
    holder.execute("SELECT * FROM thing FOR UPDATE")

    with pytest.raises(Unavailable, match="keeps locked"):
        await hasty.write(lambda tx: tx.query("DELETE FROM thing"))
    holder.rollback()

    assert await numbers(base) == [1]
    await hasty.close()


async def test_a_statement_that_takes_too_long_is_stopped(postgres_url: str) -> None:
    hasty = PostgresDatabase(postgres_url, statement_timeout_ns=50 * MS)

    with pytest.raises(Unavailable, match="too long"):
        await hasty.read(lambda tx: tx.query("SELECT pg_sleep(60)"))
    await hasty.close()


async def test_a_connection_lost_during_the_commit_leaves_the_outcome_open(
    base: PostgresDatabase, postgres_connect: PostgresConnect
) -> None:
    """A deferred trigger waits inside COMMIT for a lock that we hold, and there its session is ended."""
    watcher, holder = postgres_connect(autocommit=True), postgres_connect()
    watcher.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END $$"
    )
    watcher.execute(
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON thing DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION wait()"
    )
    holder.execute("SELECT pg_advisory_lock(42)")
    write = asyncio.create_task(base.write(partial(insert, number=1)))
    find = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
    await until(lambda: watcher.execute(find).fetchone())
    watcher.execute(f"SELECT pg_terminate_backend(pid) FROM ({find}) waiting")

    with pytest.raises(Timeout, match="may or may not"):
        await write
    holder.rollback()
    assert base.statistics()["unknown"] == 1


async def test_a_deferred_constraint_that_fails_at_the_commit_undoes_everything(base: PostgresDatabase) -> None:
    async def work(tx: Tx) -> None:
        await insert(tx, 1)
        await tx.query("CREATE TABLE child (parent BIGINT REFERENCES thing (id) DEFERRABLE INITIALLY DEFERRED)")
        await tx.query("INSERT INTO child (parent) VALUES (999)")

    with pytest.raises(BadInput, match="do not fit"):
        await base.write(work)

    assert await numbers(base) == []


async def test_a_cancelled_work_frees_its_rows_and_its_connection(
    postgres_url: str, postgres_connect: PostgresConnect, base: PostgresDatabase
) -> None:
    small = PostgresDatabase(postgres_url, pool_max=1)
    watching: psycopg.Connection[tuple[object, ...]] = postgres_connect(autocommit=True)
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"

    async def stuck(tx: Tx) -> None:
        await insert(tx, 1)
        await tx.query("SELECT pg_sleep(60)")

    for _ in range(3):
        task = asyncio.create_task(small.write(stuck))
        while watching.execute(asleep).fetchone() != (1,):  # noqa: ASYNC110 - the server channels no listener
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert await small.write(partial(insert, number=1)) == 1
    await small.close()


async def test_a_client_that_is_gone_in_the_middle_of_a_statement_frees_its_rows(
    postgres_url: str, postgres_connect: PostgresConnect
) -> None:
    patient = PostgresDatabase(postgres_url, statement_timeout_ns=600 * NS)
    connection = await patient._pool.connect()  # as the database makes them
    pid = connection.info.backend_pid
    asked = asyncio.create_task(connection.execute("SELECT pg_sleep(600)"))
    watching: psycopg.Connection[tuple[object, ...]] = postgres_connect(autocommit=True)
    state = "SELECT state FROM pg_stat_activity WHERE pid = %s"
    while watching.execute(state, [pid]).fetchone() != ("active",):  # noqa: ASYNC110 - the server channels no listener
        await asyncio.sleep(0.01)
    connection.pgconn.finish()  # as the kernel does for a process that is killed
    with pytest.raises(psycopg.OperationalError):
        await asked
    while watching.execute(state, [pid]).fetchone():  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.05)
    await patient.close()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("/postgres?", "/no_such_database?"), "does not exist"),
        (("postgres@", "no_such_user@"), "does not exist"),
    ],
    ids=["database", "user"],
)
async def test_what_can_never_work_is_misconfigured(
    postgres_server: PostgresServer, change: tuple[str, str], problem: str
) -> None:
    base = PostgresDatabase(postgres_server.url().replace(*change), pool_timeout_ns=LONG)

    with pytest.raises(Misconfigured, match=problem):
        await base.read(lambda tx: tx.query("SELECT 1"))
    await base.close()


async def test_a_session_has_limits_and_commits_durably(base: PostgresDatabase) -> None:
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit")

    async def settings(tx: Tx) -> list[str]:
        ask = "SELECT current_setting(:name) AS it"
        return [(await tx.query(ask, {"name": name}))[0]["it"] for name in names]

    assert await base.write(settings) == ["30s", "10s", "5s", "on"]


async def test_isolation_is_read_committed_for_writes_and_one_view_for_reads(base: PostgresDatabase) -> None:
    ask = "SELECT current_setting('transaction_isolation') AS it"

    assert await base.write(lambda tx: tx.query(ask)) == [{"it": "read committed"}]
    assert await base.read(lambda tx: tx.query(ask)) == [{"it": "repeatable read"}]


async def test_a_dead_idle_connection_costs_nothing_but_another_try(
    base: PostgresDatabase, postgres_connect: PostgresConnect
) -> None:
    await asyncio.gather(*(base.write(partial(insert, number=n)) for n in range(10)))
    killer: psycopg.Connection[tuple[object, ...]] = postgres_connect(autocommit=True)
    killer.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'holdfast' AND datname = current_database()"
    )

    assert await base.write(partial(insert, number=99)) == 99
