"""Names of tables and columns that are no names: they are refused, and the database is as it was."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput, HoldfastError
from holdfast.guards.install import install
from holdfast.guards.sql.identifiers import TableNames, check_name, quoted
from support.servers.postgres import PostgresServer

pytestmark = pytest.mark.threat("X5")

PIECES = (
    *(
        '"',
        "'",
        "`",
        ";",
        "--",
        "/*",
        "*/",
        "$$",
        "\\",
        "(",
        ")",
        ".",
        ",",
        " ",
        "\n",
        "\0",
        "%s",
        ":a",
        "?",
        "$1",
        "{x}",
    ),
    *("DROP TABLE invoices", "invoices", "a", "é", "٣", "_", "9", "\u202e", "\ud800", "pg_catalog", "x" * 60),
)
NAMES = st.one_of(st.lists(st.sampled_from(PIECES), max_size=5).map("".join), st.text(max_size=8))
LESS = settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
CATALOG = """SELECT n.nspname || '.' || c.relname || '.' || coalesce(a.attname, '') FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' ORDER BY 1"""


@pytest.fixture(scope="module")
def quiet_postgres(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with postgres_server.database() as url, contextlib.closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("CREATE TABLE invoices (id bigint PRIMARY KEY)")
        yield connection


@pytest.fixture
def quiet_sqlite() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY)")
        yield connection


def tried(connection: Any, table: str, column: str, fence: str) -> None:
    with contextlib.suppress(HoldfastError):
        install(connection, table, id=column, fence_column=fence, trigger="strict")


@LESS
@given(table=NAMES, column=NAMES, fence=NAMES)
@example(table='invoices"; DROP TABLE invoices; --', column="id", fence="f")
@example(table="invoices", column='id" FROM invoices; --', fence="f")
@example(table="invoices", column="id", fence='f" bigint; DROP TABLE invoices; --')
def test_no_name_changes_a_postgres_that_it_does_not_name(
    quiet_postgres: psycopg.Connection[Any], table: str, column: str, fence: str
) -> None:
    before = quiet_postgres.execute(CATALOG).fetchall()
    for names in ((table, column, fence), ("nothing", column, fence), (table, "id", "f")):
        if names[0] != "invoices":
            tried(quiet_postgres, *names)
    with contextlib.suppress(BadInput):
        TableNames.checked("invoices", column, fence)
        return  # those could be meant
    tried(quiet_postgres, "invoices", column, fence)
    assert quiet_postgres.execute(CATALOG).fetchall() == before


@LESS
@given(table=NAMES, column=NAMES, fence=NAMES)
@example(table='invoices"; DROP TABLE invoices; --', column="id", fence="f")
def test_no_name_changes_a_sqlite_that_it_does_not_name(
    quiet_sqlite: sqlite3.Connection, table: str, column: str, fence: str
) -> None:
    before = quiet_sqlite.execute("SELECT name, sql FROM sqlite_master").fetchall()
    for names in ((table, column, fence), ("nothing", column, fence)):
        if names[0] != "invoices":
            tried(quiet_sqlite, *names)
    assert quiet_sqlite.execute("SELECT name, sql FROM sqlite_master").fetchall() == before


@given(NAMES)
def test_what_is_taken_for_a_name_is_one_word_between_its_quotes(name: str) -> None:
    try:
        check_name("table", name)
    except BadInput:
        return
    assert not set(name) & set("\"'`;.()$%:?\\ \n\0")
    assert quoted(name) == f'"{name}"'
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE TABLE {quoted(name)} (a)")
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)
