"""Databases with an outbox, for tests: a SQLite file and a Postgres, in one shape. Also the bus that remembers."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.guards.outbox import Outbox, OutboxMessage, prepare
from holdfast.guards.relay import Relay
from servers_postgres import PostgresExecutable, PostgresServer, postgres_executables


@dataclass
class Stage:
    """One database with an outbox and a table that the application writes to."""

    engine: str
    connect: Callable[[], Any]
    connection: Any

    def execute(self, statement: str) -> list[Any]:
        """Run a statement and return the rows it brings."""
        cursor = self.connection.execute(statement)
        rows = cursor.fetchall() if cursor.description else []
        cursor.close()
        return [tuple(row) for row in rows]

    @contextmanager
    def transaction(self, connection: Any = None) -> Iterator[Outbox]:
        """A transaction of the application, and the outbox in it."""
        using = self.connection if connection is None else connection
        if isinstance(using, sqlite3.Connection):
            using.execute("BEGIN")
            try:
                yield Outbox(using)
                using.execute("COMMIT")
            except BaseException:
                using.execute("ROLLBACK")
                raise
        else:
            with using.transaction():
                yield Outbox(using)

    def add(self, lease: Any, body: str, topic: str = "invoices") -> str:
        """Add one message in a transaction of its own."""
        with self.transaction() as outbox:
            return outbox.add(lease, topic, body)

    def relay(self, bus: Callable[[OutboxMessage], object], **settings: Any) -> Relay:
        """A relay that tries again as soon as it can."""
        return Relay(self.connect, bus, **{"backoff": 0.001, "backoff_max": 0.001, **settings})

    def stored(self) -> tuple[list[Any], list[Any]]:
        """Everything that a refused step must leave alone."""
        return (
            self.execute("SELECT message_id, key, fence, topic FROM holdfast_guard_outbox ORDER BY id"),
            self.execute("SELECT place, resource, fence FROM holdfast_guard_fence ORDER BY 1, 2"),
        )


@dataclass
class Bus:
    """Takes what it is given, unless it was told to fail."""

    got: list[OutboxMessage] = field(default_factory=list)
    fails: Callable[[OutboxMessage], Exception | None] = lambda message: None

    def __call__(self, message: OutboxMessage) -> None:
        error = self.fails(message)
        if error is not None:
            raise error
        self.got.append(message)

    @property
    def bodies(self) -> list[str]:
        """What was sent, in order."""
        return [message.body.decode() for message in self.got]


_NEWEST = [pytest.param(each, id=str(each), marks=pytest.mark.server) for each in postgres_executables()[-1:]]


@pytest.fixture(scope="session")
def _outbox_url(_postgres_servers: Callable[[PostgresExecutable], PostgresServer]) -> Iterator[Callable[[], str]]:
    """A database that the tests of this worker share, each in a schema of its own; made when it is first asked for."""
    with ExitStack() as stack:

        @cache
        def url() -> str:
            return stack.enter_context(_postgres_servers(postgres_executables()[-1]).database())

        yield url


@pytest.fixture(params=["sqlite", *_NEWEST])
def outbox_stage(request: pytest.FixtureRequest, tmp_path: Path, _outbox_url: Callable[[], str]) -> Iterator[Stage]:
    """A prepared outbox of the test's own, in a file and on the newest Postgres."""
    if request.param == "sqlite":
        connect: Callable[[], Any] = partial(
            sqlite3.connect, tmp_path / "outbox.db", timeout=30, isolation_level=None, check_same_thread=False
        )
    else:
        schema = f"outbox_{uuid.uuid4().hex}"
        with psycopg.connect(_outbox_url(), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        connect = partial(psycopg.connect, _outbox_url(), autocommit=True, options=f"-c search_path={schema}")
    with closing(connect()) as connection:
        prepare(connection)
        yield Stage("sqlite" if request.param == "sqlite" else "postgres", connect, connection)
