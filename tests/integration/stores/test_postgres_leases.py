"""What only the Postgres store meets: lost sessions, locks of others, isolation levels, dropped tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.errors import BackendError, BadInput, LeaseLost, Misconfigured, Timeout, Unavailable
from holdfast.runtime.run_sync import run_now
from holdfast.stores.postgres.engine import PostgresStore, open_engine
from holdfast.testing.conformance import AsyncioWorld, BlockingWorld, World
from holdfast.testing.conformance.environment import CALL_NS
from holdfast.testing.proxy import FaultProxy
from holdfast.types import MS, NS, AcquireRequest, Busy, Grant
from support.fixtures.postgres import PostgresConnect, every_postgres
from support.load.processes import until
from support.servers.postgres import PostgresServer

pytestmark = pytest.mark.server

LIMIT_S = 20.0


@pytest.fixture(params=[BlockingWorld, AsyncioWorld], ids=["blocking", "asyncio"])
def world(request: pytest.FixtureRequest, postgres_url: str) -> World:
    """A place for scenarios in each color, on a database of the test's own."""
    return world_at(request.param, postgres_url)


def world_at(kind: type[World], url: str) -> World:
    if kind is AsyncioWorld:
        return AsyncioWorld(lambda: open_engine(url).asynchronous())
    return BlockingWorld(lambda: open_engine(url).blocking)


def play(world: World, scenario: Callable[[World], Any]) -> None:
    async def whole() -> None:
        try:
            await scenario(world)
        finally:
            await world.close()

    world.drive(whole())


def ask(key: str, token: str, ttl_ns: int = 60 * NS) -> AcquireRequest:
    return AcquireRequest(key, token.encode().hex(), "svc@host:1/abc", "family", ttl_ns)


def granted(store: PostgresStore, key: str, token: str, ttl_ns: int = 60 * NS) -> Grant:
    answer = run_now(store.acquire(ask(key, token, ttl_ns), CALL_NS))
    assert isinstance(answer, Grant)
    return answer


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    engine = open_engine(postgres_url)
    yield engine.blocking
    engine.close()


# Restarts and lost sessions.


@every_postgres
@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
def test_a_lease_outlives_the_server_even_where_commits_are_not_durable_by_default(
    own_postgres: PostgresServer, crash: bool
) -> None:
    """The server of the tests has synchronous_commit = off, and a crash loses such commits."""
    engine = open_engine(own_postgres.url())
    grant = granted(engine.blocking, "job", "ada")
    (own_postgres.kill if crash else own_postgres.stop)()
    with pytest.raises(Unavailable, match="cannot be reached"):
        run_now(engine.blocking.ping(CALL_NS))
    own_postgres.start()
    assert isinstance(run_now(engine.blocking.acquire(ask("job", "ben"), CALL_NS)), Busy)
    holding = run_now(engine.blocking.inspect("job", CALL_NS))
    assert holding is not None
    assert holding.fence == grant.fence
    assert run_now(engine.blocking.release("job", grant.token, None, 0, CALL_NS))
    assert granted(engine.blocking, "job", "ben").fence > grant.fence
    engine.close()


def test_sessions_that_ended_while_idle_are_replaced_unnoticed(world: World, postgres_connect: PostgresConnect) -> None:
    async def scenario(world: World) -> None:
        opened = await world.open()
        grant = await world.grant(opened, world.ask("job"))
        terminate(postgres_connect)
        # A forced release is never asked for twice, so the end of the session was noticed before.
        assert await opened.force_release("job", "ops", "why", CALL_NS) is not None
        terminate(postgres_connect)
        assert (await world.grant(opened, world.ask("job"))).fence > grant.fence

    play(world, scenario)


def test_a_session_that_ends_in_the_middle_of_an_acquire_is_asked_again(
    store: PostgresStore, postgres_connect: PostgresConnect
) -> None:
    granted(store, "other", "ada")
    with ThreadPoolExecutor(1) as threads, CounterLocked(postgres_connect, store, "job"):
        waiting = threads.submit(granted, store, "job", "ada")
        until(lambda: waits_for_lock(postgres_connect), "the acquire waits for a lock")
        terminate(postgres_connect, "wait_event_type = 'Lock'")
        until(lambda: waits_for_lock(postgres_connect), "it was asked again")
        assert not waiting.done()
    assert waiting.result(LIMIT_S).fence > 0


def test_a_release_whose_session_ended_is_never_reported_as_not_owned(
    store: PostgresStore, postgres_connect: PostgresConnect
) -> None:
    grant = granted(store, "job", "ada")
    blocker = postgres_connect()
    blocker.execute("SELECT FROM holdfast.holdfast_lease FOR KEY SHARE")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: run_now(store.release("job", grant.token, None, 0, CALL_NS)))
        until(lambda: waits_for_lock(postgres_connect), "the release waits for a lock")
        terminate(postgres_connect, "wait_event_type = 'Lock'")
        until(lambda: waits_for_lock(postgres_connect), "it was asked again")
        blocker.rollback()
        assert waiting.result(LIMIT_S) is True


# Locks of others, time limits.


def test_a_lock_of_another_transaction_ends_in_congestion_and_changes_nothing(
    world: World, postgres_connect: PostgresConnect
) -> None:
    async def scenario(world: World) -> None:
        opened = await world.open()
        await world.grant(opened, world.ask("other"))
        assert isinstance(opened, PostgresStore)
        with CounterLocked(postgres_connect, opened, "job"):
            with pytest.raises(Unavailable, match="keeps a row or table locked") as caught:
                await opened.acquire(world.ask("job"), 3 * NS)
            assert caught.value.congested
            with postgres_connect(autocommit=True) as other:
                other.execute("SELECT 1")
        assert await opened.inspect("job", CALL_NS) is None
        await world.grant(opened, world.ask("job"))

    play(world, scenario)


def test_a_locked_table_ends_in_congestion_too(store: PostgresStore, postgres_connect: PostgresConnect) -> None:
    granted(store, "other", "ada")
    blocker = postgres_connect()
    blocker.execute("LOCK TABLE holdfast.holdfast_lease IN ACCESS EXCLUSIVE MODE")
    for work in (
        lambda: store.acquire(ask("job", "ben"), 3 * NS),
        lambda: store.release("other", "x", None, 0, 3 * NS),
    ):
        with pytest.raises(Unavailable) as caught:
            run_now(work())
        assert caught.value.congested
    blocker.rollback()
    granted(store, "job", "ben")


def test_a_hung_server_ends_in_a_timeout_and_the_next_call_gets_its_own_answer(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """The limit of a call holds to within 50 ms. A busy machine may delay one try, so there are some."""
    database = postgres_url.partition("@/")[2].partition("?")[0]
    with FaultProxy(str(postgres_server.directory / ".s.PGSQL.5432")) as proxy:
        for kind in (BlockingWorld, AsyncioWorld):
            world = world_at(kind, f"postgresql://postgres@127.0.0.1:{proxy.port}/{database}")
            overshoots: list[float] = []

            async def scenario(world: World, seen: list[float] = overshoots) -> None:
                opened = await world.open()
                limit = time.monotonic() + LIMIT_S
                while not seen or (min(seen) > 0.05 and time.monotonic() < limit):
                    await opened.ping(CALL_NS)
                    proxy.stall("to_client")
                    began = time.monotonic()
                    with pytest.raises(Timeout):
                        await opened.acquire(world.ask("hung", 50 * MS), 200 * MS)
                    seen.append(time.monotonic() - began - 0.2)
                    began = time.monotonic()
                    with pytest.raises(Unavailable):  # a new connection is not answered either
                        await opened.ping(200 * MS)
                    seen[-1] = max(seen[-1], time.monotonic() - began - 0.2)
                    proxy.resume()
                    assert await opened.inspect(world.fresh_key(), CALL_NS) is None
                    await world.until_granted(opened, world.ask(world.fresh_key()))

            play(world, scenario)
            assert min(overshoots) <= 0.05, overshoots


def test_more_callers_than_connections_wait_their_turn(postgres_url: str) -> None:
    engine = open_engine(f"{postgres_url}&pool_max=2")

    def work(number: int) -> None:
        for turn in range(5):
            grant = granted(engine.blocking, f"key:{number}:{turn}", "ada")
            assert run_now(engine.blocking.release(grant.key, grant.token, None, 0, CALL_NS))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    engine.close()


def test_a_server_without_a_free_session_is_unavailable(own_postgres: PostgresServer) -> None:
    own_postgres.stop()
    own_postgres.settings |= {"max_connections": "4", "superuser_reserved_connections": "0"}
    own_postgres.start()
    taken = []
    with pytest.raises(psycopg.OperationalError):
        for _ in range(10):
            taken.append(own_postgres.connect())
    engine = open_engine(own_postgres.url())
    with pytest.raises(Unavailable, match="too many clients"):
        run_now(engine.blocking.ping(CALL_NS))
    for each in taken:
        each.close()
    until(lambda: answers(engine.blocking), "the server has a free session")
    engine.close()


def test_a_server_that_only_reads_is_unavailable(
    postgres_url: str, postgres_connect: PostgresConnect, store: PostgresStore
) -> None:
    granted(store, "job", "ada")
    with postgres_connect(autocommit=True) as admin:
        row = admin.execute("SELECT current_database()").fetchone()
        assert row is not None
        admin.execute(f"ALTER DATABASE {row[0]} SET default_transaction_read_only = on")
    engine = open_engine(postgres_url)
    with pytest.raises(Unavailable):
        run_now(engine.blocking.acquire(ask("job", "ben"), CALL_NS))
    with postgres_connect(autocommit=True, options="-c default_transaction_read_only=off") as admin:
        admin.execute(f"ALTER DATABASE {row[0]} RESET default_transaction_read_only")
    engine.close()


# Isolation, concurrency.


@every_postgres
def test_serializable_by_default_is_contention_and_no_failure(
    postgres_url: str, postgres_connect: PostgresConnect
) -> None:
    with postgres_connect(autocommit=True) as admin:
        row = admin.execute("SELECT current_database()").fetchone()
        assert row is not None
        admin.execute(f"ALTER DATABASE {row[0]} SET default_transaction_isolation = 'serializable'")
    engine = open_engine(postgres_url)
    inside: list[int] = []
    fences: list[int] = []

    def work(number: int) -> None:
        limit = time.monotonic() + 2 * LIMIT_S
        turns = 0
        while turns < 5:
            assert time.monotonic() < limit
            answer = run_now(engine.blocking.acquire(ask("hot", f"{number}:{turns}"), CALL_NS))
            if isinstance(answer, Busy):
                time.sleep(0.001)
                continue
            turns += 1
            inside.append(number)
            assert inside == [number]
            fences.append(answer.fence)
            inside.remove(number)
            assert run_now(engine.blocking.release("hot", answer.token, None, 0, CALL_NS))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert fences == sorted(set(fences))
    engine.close()


def test_many_keys_in_opposite_orders_never_wait_for_each_other_forever(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    keys = [f"key:{number}" for number in range(40)]

    def work(number: int) -> None:
        for turn in range(5):
            order = keys if (number + turn) % 2 else keys[::-1]
            asks = [ask(key, f"{number}:{turn}:{key}") for key in order]
            answers = run_now(engine.blocking.acquire_many(asks, 4 * CALL_NS))
            grants = [each for each in answers if isinstance(each, Grant)]
            assert run_now(engine.blocking.release_many(grants, 4 * CALL_NS)) == [True] * len(grants)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert run_now(engine.blocking.holdings("key:", 100, CALL_NS)) == []
    engine.close()


def test_concurrent_first_uses_create_the_tables_once(postgres_url: str, postgres_connect: PostgresConnect) -> None:
    together = threading.Barrier(8)

    def work(number: int) -> int:
        engine = open_engine(postgres_url)
        together.wait(LIMIT_S)
        fence = granted(engine.blocking, f"key:{number}", "ada").fence
        engine.close()
        return fence

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))
    with postgres_connect(autocommit=True) as other:
        assert other.execute("SELECT value FROM holdfast.holdfast_meta WHERE name = 'schema'").fetchall() == [("1",)]


# Fences.


@pytest.mark.requires("R28")
@pytest.mark.parametrize(
    "loss",
    [
        "TRUNCATE holdfast.holdfast_fence, holdfast.holdfast_lease",
        "DROP TABLE holdfast.holdfast_fence, holdfast.holdfast_lease CASCADE",
        "DROP SCHEMA holdfast CASCADE",
    ],
)
def test_fences_go_on_after_their_tables_were_emptied_or_dropped(
    store: PostgresStore, postgres_connect: PostgresConnect, loss: str
) -> None:
    before = granted(store, "job", "ada").fence
    with postgres_connect(autocommit=True) as admin:
        admin.execute(loss.encode())
    assert granted(store, "job", "ben").fence > before


@pytest.mark.requires("R28")
def test_a_counter_ahead_of_the_clock_goes_on_above_at_a_part_of_its_pace(
    store: PostgresStore, postgres_connect: PostgresConnect
) -> None:
    def next_fence(token: str) -> int:
        grant = granted(store, "job", token)
        assert run_now(store.release("job", grant.token, None, 0, CALL_NS))
        return grant.fence

    hour = 3_600_000_000
    last = next_fence("ada")
    with postgres_connect(autocommit=True) as admin:
        admin.execute(b"UPDATE holdfast.holdfast_fence SET value = value + %s", [hour])
        second = next_fence("ben")
        assert last + hour < second < last + 2 * hour
        assert next_fence("cid") > second
        admin.execute(b"UPDATE holdfast.holdfast_fence SET clock_us = clock_us + %s", [hour])  # the clock was set back
        assert second < next_fence("dan") <= second + hour


def test_the_range_of_fences_has_an_end(store: PostgresStore, postgres_connect: PostgresConnect) -> None:
    grant = granted(store, "job", "ada")
    assert run_now(store.release("job", grant.token, None, 0, CALL_NS))
    with postgres_connect(autocommit=True) as admin:
        admin.execute("UPDATE holdfast.holdfast_fence SET value = 9007199254740991")
    with pytest.raises(Misconfigured, match="fence counter"):
        granted(store, "job", "ben")


def test_time_is_that_of_the_server(store: PostgresStore) -> None:
    before = time.time_ns()
    found = run_now(store.time_ns(CALL_NS))
    assert before - NS < found < time.time_ns() + NS  # the server is on this host


# Tables.


def test_reading_creates_nothing(postgres_url: str, postgres_connect: PostgresConnect) -> None:
    engine = open_engine(postgres_url)
    assert run_now(engine.blocking.inspect("job", CALL_NS)) is None
    assert run_now(engine.blocking.holdings("", 10, CALL_NS)) == []
    assert run_now(engine.blocking.audit(10, CALL_NS)) == []
    assert not run_now(engine.blocking.has_tables(CALL_NS))
    with postgres_connect(autocommit=True) as other:
        assert other.execute("SELECT to_regnamespace('holdfast')").fetchall() == [(None,)]
    granted(engine.blocking, "job", "ada")
    assert run_now(engine.blocking.has_tables(CALL_NS))
    engine.close()


def test_two_schemas_are_two_stores(postgres_url: str) -> None:
    first, second = open_engine(postgres_url), open_engine(f"{postgres_url}&schema=public")
    granted(first.blocking, "job", "ada")
    granted(second.blocking, "job", "ben")
    first.close()
    second.close()


def test_a_newer_or_foreign_schema_is_left_alone(postgres_url: str, postgres_connect: PostgresConnect) -> None:
    admin = postgres_connect(autocommit=True)
    admin.execute("CREATE SCHEMA holdfast")
    admin.execute("CREATE TABLE holdfast.holdfast_meta (name text PRIMARY KEY, value text)")
    for rows, problem in ((("format", "theirs"), "not Holdfast's"), (("format", "holdfast"), "newer Holdfast")):
        admin.execute("DELETE FROM holdfast.holdfast_meta")
        admin.execute("INSERT INTO holdfast.holdfast_meta VALUES (%s, %s), ('schema', '99')", rows)
        engine = open_engine(postgres_url)
        with pytest.raises(Misconfigured, match=problem):
            granted(engine.blocking, "job", "ada")
        engine.close()
    assert admin.execute("SELECT to_regclass('holdfast.holdfast_lease')").fetchall() == [(None,)]


def test_a_role_without_rights_is_told_where_to_find_them(
    postgres_url: str, store: PostgresStore, postgres_connect: PostgresConnect
) -> None:
    granted(store, "job", "ada")
    role = f"weak_{time.monotonic_ns()}"
    admin = postgres_connect(autocommit=True)
    admin.execute(f"CREATE ROLE {role} LOGIN")
    try:
        engine = open_engine(postgres_url.replace("postgres@", f"{role}@"))
        with pytest.raises(Misconfigured, match="holdfast access postgres"):
            granted(engine.blocking, "job", "ben")
        admin.execute(f"GRANT USAGE ON SCHEMA holdfast TO {role}")
        admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO {role}")
        assert isinstance(run_now(engine.blocking.acquire(ask("job", "ben"), CALL_NS)), Busy)
        assert granted(engine.blocking, "other", "ben").fence > 0
        assert run_now(engine.blocking.force_release("job", "ops", "why", CALL_NS)) is not None
        engine.close()
    finally:
        admin.execute(f"DROP OWNED BY {role}")
        admin.execute(f"DROP ROLE {role}")


def test_audit_records_are_append_only(store: PostgresStore, postgres_connect: PostgresConnect) -> None:
    granted(store, "job", "ada")
    assert run_now(store.force_release("job", "ops", "why", CALL_NS)) is not None
    admin = postgres_connect(autocommit=True)
    for change in (b"DELETE FROM", b"TRUNCATE", b"UPDATE"):
        with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
            admin.execute(change + b" holdfast.holdfast_audit" + (b" SET actor = ''" if change == b"UPDATE" else b""))
    assert len(run_now(store.audit(10, CALL_NS))) == 1


def test_expired_leases_and_waiters_are_removed_now_and_then(
    store: PostgresStore, postgres_connect: PostgresConnect
) -> None:
    for number in range(20):
        granted(store, f"key:{number}", "ada", ttl_ns=MS)
    granted(store, "kept", "ada")
    admin = postgres_connect(autocommit=True)

    def swept() -> bool:
        store._until_sweep = 0
        run_now(store.acquire(ask("kept", "ada"), CALL_NS))
        return admin.execute("SELECT key FROM holdfast.holdfast_lease").fetchall() == [("kept",)]

    until(swept, "only the living lease is left")


# Ownership in the caller's own transaction.


def test_a_condition_keeps_the_lease_until_the_transaction_ends(
    postgres_url: str, postgres_connect: PostgresConnect
) -> None:
    table = postgres_connect(autocommit=True)
    table.execute("CREATE TABLE account (id int PRIMARY KEY, amount int)")
    table.execute("INSERT INTO account VALUES (1, 100)")
    with holdfast.connect(postgres_url) as locks, holdfast.connect(postgres_url) as others:
        lease = locks.lock("account:1", ttl=0.6, auto_renew=False).acquire()
        condition = lease.condition()
        mine = postgres_connect()
        with condition.transaction(mine) as connection:
            connection.execute("UPDATE account SET amount = amount - 30 WHERE id = 1")
            until(lambda: not others.inspect("account:1").held, "the lease expires")
            assert others.lock("account:1", ttl=5).try_acquire() is None  # not while the transaction is open
        others.lock("account:1", ttl=30).acquire(timeout=LIMIT_S).release()
        with pytest.raises(LeaseLost), condition.transaction(mine) as connection:
            connection.execute("UPDATE account SET amount = 0 WHERE id = 1")
        parameters = {**condition.parameters, "amount": 0}
        late = table.execute(
            f"UPDATE account SET amount = %(amount)s WHERE id = 1 AND {condition}".encode(), parameters
        )
        assert late.rowcount == 0
        assert not condition.holds(table)
    assert table.execute("SELECT amount FROM account").fetchall() == [(70,)]


def test_a_condition_does_not_hold_up_renewals(postgres_url: str, postgres_connect: PostgresConnect) -> None:
    with holdfast.connect(postgres_url) as locks:
        lease = locks.lock("job", ttl=5).acquire()
        mine = postgres_connect()
        with lease.condition().transaction(mine):
            lease.renew()
        assert lease.release()


def test_a_condition_names_what_is_wrong(postgres_url: str, postgres_server: PostgresServer) -> None:
    with holdfast.connect(postgres_url) as locks, locks.lock("job", ttl=5) as lease:
        condition = lease.condition()
        with postgres_server.connect() as elsewhere:
            with pytest.raises(Misconfigured, match="another database"):
                condition.holds(elsewhere)
            with pytest.raises(BadInput, match="no transaction open"):
                condition.ensure(elsewhere)
        with pytest.raises(BadInput, match=r"psycopg\.Connection"):
            condition.holds(object())  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="attached database"):
            lease.condition(schema="main")


# Waiters.


def test_a_waiter_whose_listening_session_ends_still_gets_the_lock(
    postgres_url: str, postgres_connect: PostgresConnect
) -> None:
    with holdfast.connect(postgres_url) as locks, holdfast.connect(postgres_url) as others:
        lease = locks.lock("job", ttl=30).acquire()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(lambda: others.lock("job", ttl=30).acquire(timeout=LIMIT_S).release())
            until(lambda: locks.inspect("job").waiters, "the waiter is in the queue")
            terminate(postgres_connect, "query LIKE 'LISTEN%'")
            lease.release()
            assert waiting.result(LIMIT_S)


def test_one_release_notifies_one_waiter(postgres_url: str, postgres_connect: PostgresConnect) -> None:
    engine = open_engine(postgres_url)
    grant = granted(engine.blocking, "job", "ada")
    watches = [run_now(open_engine(postgres_url).blocking.watch("job")) for _ in range(3)]
    admin = postgres_connect(autocommit=True)

    def queued() -> int:
        ((number,),) = admin.execute("SELECT count(*) FROM holdfast.holdfast_waiter").fetchall()
        return int(number)

    for number, watch in enumerate(watches, 1):
        assert not run_now(watch.wait(300 * MS))
        assert queued() == number
    assert run_now(engine.blocking.release("job", grant.token, None, 0, CALL_NS))
    assert queued() == 2
    until(lambda: run_now(watches[0].wait(MS)), "the first one is woken")
    for watch in watches:
        run_now(watch.close())
    assert queued() == 0
    engine.close()


# Helpers.


class CounterLocked:
    """Another transaction that keeps the fence counter of a key locked."""

    def __init__(self, connect: PostgresConnect, store: PostgresStore, key: str) -> None:
        self._connection = connect()
        self._key = key

    def __enter__(self) -> None:
        slot = b"(SELECT holdfast.holdfast_slot(%s))"
        self._connection.execute(
            b"INSERT INTO holdfast.holdfast_fence VALUES (" + slot + b", 1, 1) "
            b"ON CONFLICT (slot) DO UPDATE SET value = holdfast_fence.value",
            [self._key],
        )

    def __exit__(self, *_: object) -> None:
        self._connection.rollback()
        self._connection.close()


def terminate(connect: PostgresConnect, which: str = "true") -> None:
    """End other sessions of Holdfast in this database, and wait until they have ended."""
    with connect(autocommit=True) as admin:
        admin.execute(
            b"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() "
            b"AND application_name = 'holdfast' AND " + which.encode()
        )


def waits_for_lock(connect: PostgresConnect) -> bool:
    with connect(autocommit=True) as admin:
        found = admin.execute(
            "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast' "
            "AND wait_event_type = 'Lock'"
        )
        return bool(found.fetchall())


def answers(store: PostgresStore) -> bool:
    try:
        run_now(store.ping(CALL_NS))
    except BackendError:
        return False
    return True
