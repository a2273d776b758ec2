"""The tables of a SQLAlchemy guard: the fence column, the ledger, and what is refused before anything is sent."""

from __future__ import annotations

from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Mapper, Session

from holdfast.errors import BadInput, Misconfigured
from holdfast.guards.admission import Admission
from holdfast.guards.settings import TableSettings, described
from holdfast.guards.sql.identifiers import FENCE_COLUMN, LEDGER_TABLE, TableNames, check_name

DIALECTS: Final = ("sqlite", "postgresql")
FENCE_MARK: Final = "holdfast.fence"  # in the `info` of a column: this table is guarded


def fence_column(name: str = FENCE_COLUMN) -> sa.Column[int | None]:
    """A column for the fence, to be put into a `Table`. Rows that have never met a fence have none."""
    return sa.Column(check_name("name", name), sa.BigInteger(), nullable=True, info={FENCE_MARK: True})


def ledger_table(metadata: sa.MetaData | None = None, *, schema: str | None = None) -> sa.Table:
    """The fence ledger as a `Table`: one for each schema that has guarded tables.

    Give your own `MetaData` and it is part of `create_all` and of Alembic's migrations; the same one comes back when it
    is there already. It is the table that `holdfast guard install` makes.
    """
    metadata = sa.MetaData() if metadata is None else metadata
    schema = metadata.schema if schema is None else check_name("schema", schema)
    known = metadata.tables.get(LEDGER_TABLE if schema is None else f"{schema}.{LEDGER_TABLE}")
    if known is not None:
        return known
    instant = sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
    return sa.Table(
        LEDGER_TABLE,
        metadata,
        sa.Column("place", sa.Text(), primary_key=True),
        sa.Column("resource", sa.Text(), primary_key=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", instant, nullable=False, server_default=sa.func.current_timestamp()),
        sa.CheckConstraint("fence >= 0"),
        sa.CheckConstraint("typeof(fence) = 'integer'").ddl_if(dialect="sqlite"),
        schema=schema,
        sqlite_with_rowid=False,
    )


def check_dialect(dialect: sa.Dialect) -> str:
    """The name of a dialect that has everything a guard needs, or `Misconfigured`."""
    if dialect.name not in DIALECTS:
        raise Misconfigured(f"guards know SQLite and Postgres, not {dialect.name}")
    if not (dialect.insert_returning and dialect.update_returning and dialect.delete_returning):
        raise Misconfigured("the SQLite library is too old for a guard; 3.35 or newer is needed (RETURNING)")
    return dialect.name


def check_columns(table: sa.Table, names: TableNames) -> None:
    """`BadInput` or `Misconfigured` for columns that the guard needs and the `Table` does not have."""
    needed: dict[str | None, str] = {**dict.fromkeys(names.id_columns, "id"), names.updated_column: "updated_column"}
    for column, field in needed.items():
        if column is not None and column not in table.c:
            raise BadInput(field, f"{names.shown} has no column {column!r}", f"there is {columns_shown(table)}")
    if names.fence_column not in table.c:
        raise Misconfigured(
            f"{names.shown} has no column {names.fence_column!r} for the fence: put fence_column() into the Table (or "
            "Guarded before the mapped class), and into the database with a migration or `holdfast guard install`"
        )


def columns_shown(table: sa.Table) -> str:
    """The columns of a table, for people."""
    return ", ".join(table.c.keys())


def table_of(table: object) -> tuple[sa.Table, tuple[str, ...]]:
    """A `Table` and the keys of the columns that identify its rows, from itself or from a mapped class."""
    mapper: object = sa.inspect(table, raiseerr=False) if isinstance(table, type) else None
    if isinstance(mapper, Mapper):
        if not isinstance(mapper.local_table, sa.Table) or len(mapper.tables) != 1:
            raise BadInput(
                "table", f"{mapper.class_.__name__} is spread over several tables", "guard the one that has the fence"
            )
        return mapper.local_table, tuple(str(column.key) for column in mapper.primary_key)
    if not isinstance(table, sa.Table):
        shown = table.__name__ if isinstance(table, type) else type(table).__name__
        raise BadInput("table", f"{shown} is not a table", "give a sqlalchemy.Table or a mapped class")
    return table, tuple(str(column.key) for column in table.primary_key)


class GuardedSchema(NamedTuple):
    """A guarded table: what it is, how its columns are called, who is let in, on which kind of database."""

    table: sa.Table
    names: TableNames
    admission: Admission
    dialect: str


def described_table(
    source: sa.Connection | Session, table: object, settings: TableSettings, allow_degraded: bool
) -> GuardedSchema:
    """The schema of a guarded table, or the error that names what is wrong with it."""
    found, ids = table_of(table)
    if not ids and "id" not in settings:
        raise BadInput("id", f"{found.name} has no primary key", "name the column, or the columns, that identify a row")
    named: TableSettings = {"id": ids, **settings}
    names, admission = described("sqlalchemy", found.fullname, named, allow_degraded)
    check_columns(found, names)
    bind = source.get_bind(clause=found) if isinstance(source, Session) else source
    return GuardedSchema(found, names, admission, check_dialect(bind.dialect))
