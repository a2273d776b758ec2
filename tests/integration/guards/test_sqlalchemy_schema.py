"""The database under a SQLAlchemy guard: transactions, the ledger, schemas, and tables that were not prepared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, OperationalError

from holdfast.errors import FencedOut, Misconfigured
from holdfast.guards.settings import sql
from holdfast.guards.sqlalchemy import GuardedTable, fence_column, ledger_table
from support.fixtures.guards import carried
from support.guards.subjects_sqlalchemy import engine_for, prepare

A, B = carried(1), carried(2)

METADATA = sa.MetaData()
INVOICES = sa.Table(
    "invoices",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("total", sa.Integer),
    fence_column(),
)
LEDGER = ledger_table(METADATA)


def rows_in(connection: sa.Connection) -> int:
    """How many rows there are, and entries of the ledger."""
    return sum(len(connection.execute(sa.select(table)).all()) for table in (INVOICES, LEDGER))


def test_a_connection_that_commits_every_statement_is_refused(database_url: str) -> None:
    prepare(database_url, METADATA)
    engine = engine_for(database_url).execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        table = GuardedTable(connection, INVOICES)
        for step in (table.insert, table.upsert):
            with pytest.raises(Misconfigured, match="AUTOCOMMIT"):
                step(A, 42, {"total": 1})
        assert rows_in(connection) == 0


def _legacy(_engine: sa.Engine) -> None:
    """The driver begins before the first statement that writes."""


def _own_begin(engine: sa.Engine) -> None:
    """What SQLAlchemy's manual says to do for real transactions on every version of Python."""

    @event.listens_for(engine, "connect")
    def _(dbapi: Any, _record: object) -> None:
        dbapi.isolation_level = None

    @event.listens_for(engine, "begin")
    def _(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")


def _pep249(engine: sa.Engine) -> None:
    @event.listens_for(engine, "connect")
    def _(dbapi: Any, _record: object) -> None:
        dbapi.autocommit = False


since_312 = pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has autocommit=False from Python 3.12 on")


@pytest.mark.parametrize("mode", [_legacy, _own_begin, pytest.param(_pep249, marks=since_312)])
def test_on_sqlite_the_write_lock_is_taken_before_the_read_that_decides(
    tmp_path: Path, mode: Callable[[sa.Engine], None]
) -> None:
    """At each read of a step, another connection to the file tries to write, and cannot."""
    url = f"sqlite:///{tmp_path / 'app.db'}"
    prepare(url, METADATA)
    engine, impatient = engine_for(url), sa.create_engine(url, poolclass=sa.NullPool, connect_args={"timeout": 0})
    mode(engine)
    tried: list[str] = []

    with engine.connect() as mine, impatient.connect() as other:

        @event.listens_for(mine, "before_cursor_execute")
        def _(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
            if statement.startswith("SELECT"):
                with pytest.raises(OperationalError, match="locked"), other.begin():
                    other.execute(sa.insert(INVOICES).values(id=42, total=9))
                tried.append(statement)

        table = GuardedTable(mine, INVOICES)
        table.enter(B, 42)
        mine.rollback()
        table.insert(B, 42, {"total": 1})
        table.delete(B, 42)
        mine.rollback()
        assert len(tried) >= 3
        event.remove(mine, "before_cursor_execute", _)
        assert rows_in(mine) == 0, "and it was one transaction, that was rolled back as one"


def test_the_ledger_is_the_one_that_every_other_guard_uses(database_url: str) -> None:
    ours, theirs = engine_for(database_url), engine_for(database_url)
    with ours.connect() as connection:
        METADATA.create_all(connection)
        made = sa.inspect(connection).get_columns(LEDGER.name)
        with pytest.raises(IntegrityError), connection.begin_nested():
            connection.execute(sa.insert(LEDGER).values(place="p", resource="r", fence=-1))
        if connection.dialect.name == "sqlite":
            with pytest.raises(IntegrityError), connection.begin_nested():
                connection.exec_driver_sql(f"INSERT INTO {LEDGER.name} (place, resource, fence) VALUES ('p', 'r', 'x')")
        connection.rollback()
        METADATA.drop_all(connection)
        connection.commit()
    with theirs.connect() as connection:
        connection.exec_driver_sql(sql(f"ledger_{'sqlite' if connection.dialect.name == 'sqlite' else 'postgres'}"))
        installed = sa.inspect(connection).get_columns(LEDGER.name)

    def shape(columns: Any) -> list[Any]:
        return [(each["name"], each["type"]._type_affinity, each["nullable"], each["default"]) for each in columns]

    assert shape(made) == shape(installed)


def test_the_ledger_lies_in_the_schema_of_the_table(postgres_url: str) -> None:
    metadata = sa.MetaData(schema="billing")
    bills = sa.Table("bills", metadata, sa.Column("id", sa.Text, primary_key=True), fence_column())
    assert ledger_table(metadata) is ledger_table(metadata, schema="billing")
    with engine_for(postgres_url).connect() as connection:
        connection.execute(sa.schema.CreateSchema("billing"))
        metadata.create_all(connection)
        table = GuardedTable(connection, bills)
        table.enter(B, "x")
        with pytest.raises(FencedOut):
            table.insert(A, "x", {})
        assert connection.execute(sa.text("SELECT fence FROM billing.holdfast_guard_fence")).scalar() == 2
        connection.rollback()


def test_a_table_that_was_not_prepared_says_how_to_prepare_it(database_url: str) -> None:
    metadata = sa.MetaData()
    bare = sa.Table("bare", metadata, sa.Column("id", sa.Integer, primary_key=True))
    with engine_for(database_url).connect() as connection:
        with pytest.raises(Misconfigured, match=r"no column 'holdfast_fence' .*fence_column\(\)"):
            GuardedTable(connection, bare)
        metadata.create_all(connection)
        connection.commit()
        promised = sa.Table("bare", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), fence_column())
        for step in ("enter", "insert"):
            with pytest.raises(Misconfigured, match="holdfast guard install bare"):
                getattr(GuardedTable(connection, promised), step)(A, 42, *([{}] if step == "insert" else []))
            connection.rollback()


def test_a_transaction_that_keeps_a_snapshot_cannot_enter_what_it_does_not_see(postgres_url: str) -> None:
    prepare(postgres_url, METADATA)
    engine = engine_for(postgres_url)
    with engine.connect() as other, engine.connect().execution_options(isolation_level="REPEATABLE READ") as mine:
        table = GuardedTable(mine, INVOICES)
        with pytest.raises(Misconfigured, match="READ COMMITTED"):
            table.enter(B, 42)
        mine.rollback()
        with other.begin():
            GuardedTable(other, INVOICES).insert(A, 42, {"total": 1})
        assert table.enter(B, 42) is not None, "a row that the snapshot has is entered as ever"
        mine.commit()
        assert table.seen(42) == 2
        with other.begin():
            GuardedTable(other, INVOICES).update(B, 42, {"total": 2})
        with pytest.raises(OperationalError, match="could not serialize"):
            table.update(B, 42, {"total": 3})
        mine.rollback()
