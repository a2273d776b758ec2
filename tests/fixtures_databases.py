"""Fixtures with databases of the plane: a SQLite file and a real Postgres, for tests that hold on both.

`plane_url` names an empty database of the test's own, on each engine. `database` is opened there, has a table `thing`
(`id`, `name` unique, `note`) and is closed at the end.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import pytest_asyncio

from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Database, Tx
from servers_postgres import PostgresExecutable, PostgresServer, postgres_executables

NEWEST_POSTGRES: Final = [
    pytest.param(each, id=str(each), marks=pytest.mark.server) for each in postgres_executables()[-1:]
]

THINGS: Final = "CREATE TABLE thing (id BIGINT NOT NULL PRIMARY KEY, name TEXT UNIQUE, note TEXT)"


@pytest.fixture(scope="session")
def _plane_postgres(
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
) -> Iterator[Callable[[], str]]:
    """A database that the tests of this worker share, each in a schema of its own; made when it is first asked for."""
    with ExitStack() as stack:

        @cache
        def url() -> str:
            return stack.enter_context(_postgres_servers(postgres_executables()[-1]).database())

        yield url


@pytest.fixture(params=["sqlite", *NEWEST_POSTGRES])
def plane_url(request: pytest.FixtureRequest, tmp_path: Path, _plane_postgres: Callable[[], str]) -> str:
    """An empty database of this test's own, on each engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal"
    schema = f"plane_{uuid.uuid4().hex}"
    with psycopg.connect(_plane_postgres(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return f"{_plane_postgres()}&options=-csearch_path%3D{schema}"


@pytest_asyncio.fixture
async def database(plane_url: str) -> AsyncIterator[Database]:
    """An open database with the table `thing`."""
    opened = open_database(plane_url)
    await opened.write(lambda tx: tx.query(THINGS))
    yield opened
    await opened.close()


async def insert(tx: Tx, number: int, name: str | None = None, note: Any = None) -> int:
    """Part of a work: one row."""
    values = {"id": number, "name": name, "note": note}
    rows = await tx.query("INSERT INTO thing (id, name, note) VALUES (:id, :name, :note) RETURNING id", values)
    return int(rows[0]["id"])


async def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    """Return when the condition holds. It must come to hold."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - what is looked at lives in threads and in other processes
            await asyncio.sleep(0.002)


async def numbers(database: Database) -> list[int]:
    """The ids that are there."""
    rows = await database.read(lambda tx: tx.query("SELECT id FROM thing ORDER BY id"))
    return [row["id"] for row in rows]
