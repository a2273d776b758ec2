"""The clock of the database: for SQLite that of this host, which is the only one that uses the file."""

from __future__ import annotations

from typing import Final

from holdfast.core.ports import Clock
from holdfast.plane.db.ports import Tx
from holdfast.plane.db.statements import sql

_NOW: Final = sql("database_now_postgres")


async def database_now(tx: Tx, clock: Clock) -> int:
    """The current time as Unix time in nanoseconds. `clock` is that of this host."""
    if tx.dialect == "postgres":
        return int((await tx.query(_NOW))[0]["now_ns"])
    return clock.now().wall
