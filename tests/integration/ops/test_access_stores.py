"""Leases on the accounts that `holdfast access` prints, on a cluster, behind Sentinels and in Postgres."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
import redis.exceptions

import holdfast
from holdfast.errors import BackendError, LeaseLost, Misconfigured
from holdfast.ops.access import AccessText
from holdfast.ops.access.postgres import postgres_access
from holdfast.ops.access.redis import redis_access, sentinel_access
from support.servers.redis import RedisServer, redis_executables, start_redis
from support.servers.sentinel import SERVICE, start_sentinel
from support.servers.store_sites import start_cluster_node

pytestmark = [pytest.mark.server, pytest.mark.threat("X7")]

PASSWORD = "of-a-test"
LIMIT_S = 60.0


def whole_life(url: str) -> None:
    """Everything that a service does with locks: take, renew, wait, wake the next waiter, release."""
    with holdfast.connect(url) as locks, holdfast.connect(url) as others:
        for fair in (False, True):
            lease = locks.lock("app:job", ttl=600, fair=fair).acquire(timeout=LIMIT_S)
            fences: list[int] = []

            def wait(fair: bool = fair, fences: list[int] = fences) -> None:
                with others.lock("app:job", ttl=600, timeout=LIMIT_S, fair=fair) as following:
                    fences.append(following.fence or 0)

            waiter = threading.Thread(target=wait)
            waiter.start()
            lease.renew()
            assert lease.release()
            waiter.join(LIMIT_S)
            assert fences[0] > (lease.fence or 0)


def operated(url: str, holders: str) -> None:
    """What an operator does: list, break, read the audit records. The user of services reads no records."""
    with holdfast.connect(holders) as locks, holdfast.connect(url) as operators:
        held = locks.lock("app:stuck", ttl=600).acquire()
        assert [each.key for each in operators.list(prefix="app:stuck")] == ["app:stuck"]
        assert operators.force_release("app:stuck", reason="test") is not None
        with pytest.raises(LeaseLost):
            held.renew()
        assert [each.key for each in operators.audit()] == ["app:stuck"]
        with pytest.raises(BackendError):
            locks.audit()


def apply(server: RedisServer, made: AccessText) -> None:
    for line in made.text.splitlines():
        server.cli(*shlex.split(line))
    for user in made.accounts:
        server.cli("ACL", "SETUSER", user, "on", f">{PASSWORD}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The places of a cluster whose only accounts are the printed ones."""
    with ExitStack() as stack:
        node = start_cluster_node(stack)
        apply(node, redis_access(prefix="app:"))
        node.cli("ACL", "SETUSER", "default", "off")
        yield f"127.0.0.1:{node.port}"


def test_locks_of_a_cluster_need_the_printed_users_and_no_more(cluster: str) -> None:
    services = f"redis+cluster://holdfast-locks:{PASSWORD}@{cluster}"
    whole_life(services)
    operated(f"redis+cluster://holdfast-operator:{PASSWORD}@{cluster}", services)
    with holdfast.connect(services) as locks, pytest.raises(Misconfigured):
        locks.lock("other:job").try_acquire()


def test_locks_behind_sentinels_need_the_printed_users_and_no_more() -> None:
    executable = redis_executables()[-1]
    with start_redis(executable) as primary, start_sentinel(executable, primary.port) as sentinel:
        apply(primary, redis_access(prefix="app:"))
        apply(sentinel, sentinel_access())
        for server in (primary, sentinel):
            server.cli("ACL", "SETUSER", "default", "off")
        asks = f"?sentinel_username=holdfast-sentinel&sentinel_password={PASSWORD}"
        place = f"127.0.0.1:{sentinel.port}/{SERVICE}{asks}"
        services = f"redis+sentinel://holdfast-locks:{PASSWORD}@{place}"
        whole_life(services)
        operated(f"redis+sentinel://holdfast-operator:{PASSWORD}@{place}", services)
        with sentinel.client(username="holdfast-sentinel", password=PASSWORD, decode_responses=True) as raw:
            assert raw.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
            for words in (("SENTINEL", "FAILOVER", SERVICE), ("SENTINEL", "MASTERS"), ("ACL", "LIST")):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    raw.execute_command(*words)


def test_leases_in_postgres_need_the_printed_roles_and_no_more(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(postgres_access(name="team").text.encode())
    place = postgres_url.partition("@")[2]
    owner, service, reader = (f"postgresql://team_{role}@{place}" for role in ("owner", "plane", "reader"))
    with holdfast.connect(service) as locks, pytest.raises(Misconfigured, match="holdfast access postgres"):
        locks.lock("app:job").try_acquire()  # the tables are made by their owner
    with holdfast.connect(owner) as locks:
        assert locks.lock("app:first").acquire().release()
    whole_life(service)
    with holdfast.connect(service) as locks, holdfast.connect(reader) as readers:
        lease = locks.lock("app:read", ttl=600).acquire()
        assert [each.key for each in readers.list(prefix="app:read")] == ["app:read"]
        with pytest.raises(Misconfigured):
            readers.lock("app:other").try_acquire()
        assert lease.release()
    with psycopg.connect(service, autocommit=True) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'").fetchall()
        assert tables
        for [name] in tables:
            for statement in (f"DROP TABLE holdfast.{name}", f"TRUNCATE holdfast.{name}"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement.encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("CREATE TABLE holdfast.mine (a int)")
