"""A guarded table through SQLAlchemy 2, Core or ORM, on SQLite and Postgres.

    from holdfast.guards.sqlalchemy import GuardedTable, fence_column, ledger_table

    invoices = Table("invoices", metadata, Column("id", Integer, primary_key=True), Column("total"), fence_column())
    ledger_table(metadata)                              # so that create_all and Alembic make it

    with engine.begin() as connection:
        with GuardedTable(connection, invoices, key="invoice:{id}").section(lease, 42) as row:
            row.update(total=row["total"] + 5)

For mapped classes there is `GuardedEntity`, whose section hands out the instance itself.

Promises: what `rows` says. **The guard never commits**: a step is part of the transaction that the connection or
session is in, or that SQLAlchemy begins with the first statement, and takes effect when you commit it. Until then the
row (on SQLite: the database) is locked, so no other writer overtakes you. If you commit inside a section the lock is
gone, and the next write checks the fence again; if you roll back, the registration is gone too, and the next write
raises `NotEntered`. A refused step changes nothing and ends nothing: the transaction is still yours to finish, and on
SQLite it may hold the write lock until then.

Needs SQLite 3.35 or Postgres, and a connection that is not set to AUTOCOMMIT.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

try:
    import sqlalchemy as sa
    from sqlalchemy.orm import Session
except ModuleNotFoundError as error:
    from holdfast.errors import Misconfigured

    raise Misconfigured(
        f'this guard needs a library that is not installed ({error.name}): pip install "holdfast[sqlalchemy]"'
    ) from error

from holdfast.errors import BadInput
from holdfast.guards.bearer import Bearer, Fenced
from holdfast.guards.settings import TableSettings
from holdfast.guards.sql.table import AnyGuardedTable, B_contra, GuardedRow
from holdfast.guards.sqlalchemy.orm import GuardedEntity
from holdfast.guards.sqlalchemy.rows import table_flow
from holdfast.guards.sqlalchemy.schema import fence_column, ledger_table
from holdfast.guards.sqlalchemy.session_events import Guarded, unguarded

__all__ = [
    "Guarded",
    "GuardedEntity",
    "GuardedRow",
    "GuardedTable",
    "fence_column",
    "ledger_table",
    "unguarded",
]


class GuardedTable(AnyGuardedTable[B_contra]):
    """A table behind a guard, on one SQLAlchemy connection or session.

    Columns go by their key in the `Table`. On a session, instances that are loaded already do not see what is written
    here; `GuardedEntity` is for them.
    """

    @overload
    def __init__(
        self: GuardedTable[Fenced],
        connection: sa.Connection | Session,
        table: sa.Table | type[Any],
        *,
        allow_degraded: Literal[False] = False,
        **settings: Unpack[TableSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: GuardedTable[Bearer],
        connection: sa.Connection | Session,
        table: sa.Table | type[Any],
        *,
        allow_degraded: Literal[True],
        **settings: Unpack[TableSettings],
    ) -> None: ...
    def __init__(
        self,
        connection: sa.Connection | Session,
        table: sa.Table | type[Any],
        *,
        allow_degraded: bool = False,
        **settings: Unpack[TableSettings],
    ) -> None:
        """`TableSettings` lists the settings; `id` is the primary key unless you say otherwise."""
        if not isinstance(connection, sa.Connection | Session):
            raise BadInput(
                "connection",
                f"{type(connection).__name__} is not a connection",
                "give a sqlalchemy.Connection or an orm.Session; holdfast.guards.aio.sqlalchemy has the awaited guard",
            )
        super().__init__(table_flow(connection, table, settings, allow_degraded))
