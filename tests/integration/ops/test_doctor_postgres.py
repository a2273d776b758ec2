"""Each finding of `holdfast doctor` about Postgres, produced on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

import holdfast
from holdfast.core.diagnosis import Severity
from holdfast.errors import Misconfigured
from holdfast.plane.process.components import open_components
from holdfast.plane.settings.settings import Settings
from holdfast.stores.postgres.diagnosis import PostgresFacts, findings
from holdfast.types import NS, Guarantee
from support.harness.doctor import Look, answered, awaited, bad, of
from support.load.processes import until
from support.servers.pgbouncer import PROGRAM, start_pgbouncer
from support.servers.postgres import PostgresExecutable, PostgresServer, start_postgres

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def durable(postgres_executable: PostgresExecutable) -> Iterator[PostgresServer]:
    """A server that loses nothing and may have standbys."""
    settings = {"fsync": "on", "full_page_writes": "on", "wal_level": "replica", "max_wal_senders": "4"}
    with start_postgres(postgres_executable, settings) as server:
        yield server


def with_settings(url: str, **settings: object) -> str:
    """The URL whose sessions have these settings."""
    return f"{url}&options={quote(' '.join(f'-c {name}={value}' for name, value in settings.items()))}"


def test_a_durable_server_keeps_its_grade_and_a_lock_that_demands_it(durable: PostgresServer, look: Look) -> None:
    url = durable.url()
    found = look(url)
    assert (found.grade, found.limits) == (Guarantee.FENCED, ())
    assert bad(found) <= {"round_trip", "threads", "ttl_resolution"}  # a busy machine
    assert {"round_trip", "clock", "ttl_resolution", "threads"} <= {each.check for each in found.findings}
    with holdfast.connect(url) as locks:
        locks.lock("money", guarantee="fenced").acquire().release()


def test_a_server_that_does_not_sync_is_graded_down(postgres_url: str) -> None:
    found = answered(postgres_url)
    assert of(found, "persistence").found == "fsync off, full_page_writes off"
    assert (found.grade, found.limits) == (Guarantee.EFFICIENCY_ONLY, ("persistence",))
    with holdfast.connect(postgres_url) as locks, pytest.raises(Misconfigured, match="promises efficiency_only: persi"):
        locks.lock("money", guarantee="fenced").acquire(timeout=5)
    with holdfast.connect(postgres_url, guarantee="fenced") as locks, pytest.raises(Misconfigured, match="fsync off"):
        locks.lock("money").acquire(timeout=5)


def test_a_plane_that_demands_more_than_its_leases_have_does_not_start(postgres_url: str, tmp_path: Path) -> None:
    async def start(**settings: Any) -> None:
        async with open_components(Settings(guarantee="fenced", **settings)):
            pass

    says = "the plane \\(setting guarantee\\) demands fenced, and this postgres promises efficiency_only: persistence"
    with pytest.raises(Misconfigured, match=says):
        asyncio.run(start(database=postgres_url))
    asyncio.run(start(database=postgres_url, leases=f"sqlite:///{tmp_path}/leases.db"))


def test_looking_at_an_empty_database_creates_nothing(postgres_url: str, look: Look) -> None:
    found = look(postgres_url, lease=False)
    assert {each.check for each in found.findings} >= {"round_trip", "permissions"}
    assert "ttl_resolution" not in {each.check for each in found.findings}
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT to_regnamespace('holdfast')").fetchone() == (None,)


def test_limits_on_statements_and_idle_sessions_are_compared_with_requests_and_ttls(
    postgres_url: str, look: Look
) -> None:
    limited = with_settings(postgres_url, statement_timeout=1500, idle_session_timeout=5000)
    found = look(limited, lease=False, request_timeout_ns=2 * NS, ttl_ns=30 * NS)
    assert of(found, "statement_timeout").severity is Severity.WARNING
    assert of(found, "statement_timeout").found == "statements may take 1.5 s"
    assert of(found, "idle_timeout").severity is Severity.WARNING
    found = look(limited, lease=False, request_timeout_ns=NS, ttl_ns=15 * NS)
    assert of(found, "statement_timeout").severity is Severity.OK
    assert (of(found, "idle_timeout").severity, of(found, "idle_timeout").fix) == (Severity.OK, "")


def test_missing_rights_are_named(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS doctored")
        connection.execute("CREATE ROLE doctored LOGIN")
        try:
            ours = postgres_url.replace("postgres@", "doctored@")
            assert "CREATE on the database" in of(answered(ours), "permissions").found
            with holdfast.connect(postgres_url) as locks:
                locks.lock("job").acquire().release()
            assert "USAGE on the schema" in of(answered(ours), "permissions").found
            connection.execute("GRANT USAGE ON SCHEMA holdfast TO doctored")
            connection.execute("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA holdfast TO doctored")
            missing = of(answered(ours), "permissions")
            assert "DELETE on holdfast_fence, DELETE on holdfast_lease, DELETE on holdfast_waiter" in missing.found
            assert missing.severity is Severity.CRITICAL
            connection.execute("GRANT DELETE ON ALL TABLES IN SCHEMA holdfast TO doctored")
            assert of(answered(ours), "permissions").severity is Severity.OK
            connection.execute("ALTER ROLE doctored CONNECTION LIMIT 5")
            assert of(answered(ours), "connections").severity is Severity.WARNING
            assert of(answered(f"{ours}&pool_max=2"), "connections").severity is Severity.OK
        finally:
            connection.execute("DROP OWNED BY doctored")
            connection.execute("DROP ROLE doctored")


def test_a_server_or_database_without_free_sessions_is_seen(postgres_server: PostgresServer, postgres_url: str) -> None:
    assert of(answered(postgres_url), "connections").severity is Severity.OK
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 4")
        found = of(answered(postgres_url), "connections")
        connection.execute(f"ALTER DATABASE {name} CONNECTION LIMIT -1")
    assert (found.severity, found.found) == (Severity.WARNING, "2 more sessions are possible")


@pytest.mark.skipif(PROGRAM is None, reason="no PgBouncer (Debian's package pgbouncer)")
def test_a_pooler_is_seen_from_both_colors(postgres_server: PostgresServer, postgres_url: str) -> None:
    assert of(answered(postgres_url), "pooler").severity is Severity.OK
    with psycopg.connect(postgres_url) as connection:
        database = connection.info.dbname
    with start_pgbouncer(postgres_server, database) as pooled:
        assert of(answered(pooled), "pooler").severity is Severity.NOTE
        assert of(awaited(pooled), "pooler").severity is Severity.NOTE
    assert of(awaited(postgres_url), "pooler").severity is Severity.OK


def test_a_standby_lowers_the_grade_unless_grants_wait_for_it(durable: PostgresServer) -> None:
    with start_postgres(durable.executable, standby_of=durable) as standby, durable.connect() as admin:
        until(lambda: "1 standbys" in of(answered(durable.url()), "replicas").found, "the standby follows")
        found = answered(durable.url())
        assert (found.grade, found.limits) == (Guarantee.EFFICIENCY_ONLY, ("replicas",))
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        admin.execute("SELECT pg_reload_conf()")
        try:
            until(lambda: of(answered(durable.url()), "replicas").severity is Severity.OK, "the setting is read")
            assert answered(durable.url()).grade is Guarantee.FENCED
            local = answered(with_settings(durable.url(), synchronous_commit="local"))
            assert local.limits == ("replicas",)
        finally:
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("SELECT pg_reload_conf()")
        reader = f"{standby.url()}&target_session_attrs=any"
        found = answered(reader)
        assert (of(found, "role").severity, found.grade) == (Severity.CRITICAL, Guarantee.EFFICIENCY_ONLY)


def test_an_old_version_is_critical() -> None:
    """No such server can be started here."""
    facts = PostgresFacts(130_011, False, False, True, True, "on", "", 0, 0, 0, 90, "")
    (version, *_) = findings(facts, NS, 10)
    assert (version.severity, version.found) == (Severity.CRITICAL, "postgres 13.11")
