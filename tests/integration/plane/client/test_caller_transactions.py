"""Jobs that are submitted in a transaction of the caller's own exist if and only if it commits. Real databases."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from holdfast.errors import BadInput, RowExists, RowMissing
from holdfast.plane import Client
from integration.plane.client.conftest import POSTGRES, ClientPlane
from integration.plane.client.test_client import LIMIT_S, unique
from support.client_app import Receipt, charge

pytestmark = pytest.mark.asyncio

STACKS = [
    pytest.param("plane_on_a_file", id="sqlite"),
    *(pytest.param("plane_on_postgres", id=each, marks=pytest.mark.server) for each in POSTGRES),
]


@pytest.fixture(params=STACKS)
def place(request: pytest.FixtureRequest) -> ClientPlane:
    """A running plane."""
    plane: ClientPlane = request.getfixturevalue(request.param)
    return plane


def file_of(url: str) -> str:
    return url.removeprefix("sqlite:///").partition("?")[0]


def engine_url(url: str, *, awaited: bool) -> str:
    if url.startswith("sqlite"):
        return f"sqlite{'+aiosqlite' if awaited else ''}:///{file_of(url)}"
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


@contextmanager
def by_driver(url: str) -> Iterator[Any]:
    connection: Any = sqlite3.connect(file_of(url)) if url.startswith("sqlite") else psycopg.connect(url)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def by_engine(url: str) -> Iterator[Any]:
    engine = sa.create_engine(engine_url(url, awaited=False))
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def by_session(url: str) -> Iterator[Any]:
    engine = sa.create_engine(engine_url(url, awaited=False))
    try:
        with Session(engine) as session:
            yield session
    finally:
        engine.dispose()


@asynccontextmanager
async def by_awaited_driver(url: str) -> AsyncIterator[Any]:
    if url.startswith("sqlite"):
        async with aiosqlite.connect(file_of(url)) as connection:
            yield connection
        return
    other = await psycopg.AsyncConnection.connect(url)
    try:
        yield other
    finally:
        await other.close()


@asynccontextmanager
async def by_awaited_engine(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(engine_url(url, awaited=True))
    try:
        async with engine.connect() as connection:
            yield connection
    finally:
        await engine.dispose()


@asynccontextmanager
async def by_awaited_session(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(engine_url(url, awaited=True))
    try:
        async with AsyncSession(engine) as session:
            yield session
    finally:
        await engine.dispose()


def begin(connection: Any) -> None:
    """A session and the drivers begin automatically; a connection of SQLAlchemy does with its first statement."""
    if isinstance(connection, sa.Connection):
        connection.begin()


async def begin_awaited(connection: Any) -> None:
    if isinstance(connection, AsyncConnection):
        await connection.begin()


@pytest.mark.parametrize("opened", [by_driver, by_engine, by_session])
async def test_a_blocking_transaction_decides_whether_the_job_exists(
    place: ClientPlane, opened: Callable[[str], Any]
) -> None:
    def transact() -> tuple[str, str]:
        with Client.blocking(config=place.config) as client, opened(place.database) as connection:
            begin(connection)
            gone = client.submit(charge, invoice=1, connection=connection)
            connection.rollback()
            with pytest.raises(RowMissing):
                gone.status()
            begin(connection)
            kept = client.submit(charge, invoice=2, amount=5, connection=connection)
            with pytest.raises(RowMissing):
                kept.status()  # not committed yet
            connection.commit()
            assert kept.result(timeout=LIMIT_S) == Receipt(2, 5)
            return gone.id, kept.id

    gone, kept = await asyncio.to_thread(transact)
    async with Client(config=place.config) as client:
        with pytest.raises(RowMissing):
            await client.job(gone).status()
        assert (await client.job(kept).status()).attempt == 1


@pytest.mark.parametrize("opened", [by_awaited_driver, by_awaited_engine, by_awaited_session])
async def test_an_awaited_transaction_decides_whether_the_job_exists(
    place: ClientPlane, opened: Callable[[str], Any]
) -> None:
    async with Client(config=place.config) as client, opened(place.database) as connection:
        await begin_awaited(connection)
        gone = await client.submit(charge, invoice=1, connection=connection)
        await connection.rollback()
        await begin_awaited(connection)
        kept = await client.submit(charge, invoice=2, amount=5, connection=connection)
        with pytest.raises(RowMissing):
            await kept.status()
        await connection.commit()
        assert await kept.result(timeout=LIMIT_S) == Receipt(2, 5)
        with pytest.raises(RowMissing):
            await gone.status()


@pytest.mark.server
async def test_the_bus_of_a_plane_may_be_elsewhere(plane_on_servers: ClientPlane) -> None:
    async with Client(config=plane_on_servers.config) as client, by_awaited_driver(plane_on_servers.database) as own:
        gone = await client.submit(charge, invoice=1, connection=own)
        await own.rollback()
        kept = await client.submit(charge, invoice=2, amount=5, connection=own)
        await own.commit()
        assert await kept.result(timeout=LIMIT_S) == Receipt(2, 5)
        with pytest.raises(RowMissing):
            await gone.status()


CRASH = """
import os, sqlite3, sys
from holdfast.plane import Client
config, url, job = sys.argv[1:]
if url.startswith("sqlite"):
    connection = sqlite3.connect(url.removeprefix("sqlite:///").partition("?")[0])
else:
    import psycopg
    connection = psycopg.connect(url)
with Client.blocking(config=config) as client:
    client.submit("invoice.charge", {"invoice": 1}, id=job, connection=connection)
    os._exit(7)
"""


async def test_a_process_that_dies_before_the_commit_leaves_no_job(place: ClientPlane, tmp_path: Path) -> None:
    job = unique("crashed")
    command = [sys.executable, "-c", CRASH, str(place.config), place.database, job]
    done = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, timeout=LIMIT_S, check=False)
    assert done.returncode == 7
    async with Client(config=place.config) as client:
        with pytest.raises(RowMissing):
            await client.job(job).status()


async def test_keys_and_checks_hold_in_a_transaction(place: ClientPlane) -> None:
    key = unique("order")
    async with Client(config=place.config) as client, by_awaited_driver(place.database) as connection:
        first = await client.submit(charge, invoice=1, idempotency_key=key, connection=connection)
        again = await client.submit(charge, invoice=1, idempotency_key=key, connection=connection)
        assert (first.new, again.new, again.id) == (True, False, first.id)
        with pytest.raises(RowExists):
            await client.submit(charge, invoice=2, idempotency_key=key, connection=connection)
        with pytest.raises(BadInput, match="invoice"):
            await client.submit(charge, invoice="seven", connection=connection)
        late = await client.submit(charge, invoice=3, delay=600, connection=connection)
        await connection.commit()
        assert await first.result(timeout=LIMIT_S) == Receipt(1, 1)
        assert "to start at" in str((await late.status()).waiting)
        assert await late.cancel()


async def test_a_connection_that_cannot_carry_the_job_is_refused(
    place: ClientPlane, plane_on_a_file: ClientPlane, tmp_path: Path
) -> None:
    async with Client(config=place.config) as client:
        with sqlite3.connect(tmp_path / "other.db") as other, pytest.raises(BadInput, match="another database"):
            await client.submit(charge, invoice=1, connection=other)
        for strange in (object(), "sqlite:///plane.db"):
            with pytest.raises(BadInput, match="no connection that can be used"):
                await client.submit(charge, invoice=1, connection=strange)
        with by_driver(place.database) as connection:
            if place is plane_on_a_file:
                connection.isolation_level = None
            else:
                connection.autocommit = True
            with pytest.raises(BadInput, match="no transaction open"):
                await client.submit(charge, invoice=1, connection=connection)
        with by_engine(place.database) as engine_connection, pytest.raises(BadInput, match="no transaction open"):
            await client.submit(charge, invoice=1, connection=engine_connection)
    async with Client(plane_on_a_file.address) as remote:
        with by_driver(place.database) as connection, pytest.raises(BadInput, match="cannot be used through the HTTP"):
            await remote.submit(charge, invoice=1, connection=connection)

    def blocking() -> None:
        with Client.blocking(config=place.config) as client, pytest.raises(BadInput, match="needs an event loop"):
            client.submit(charge, invoice=1, connection=AsyncSession())

    await asyncio.to_thread(blocking)
