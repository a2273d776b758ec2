"""Whether a Postgres server has room for more, and why it takes no writes, in words.

A client cannot read the free space of a server, and a transaction that changes nothing fits on a full disk. So the lack
of space is detected by the first write of this process that is refused for want of room. From then on there is none
until something that needs room is written: a table for the length of a transaction, of which nothing stays.

Does not promise to know of a full disk before a write has failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import psycopg

from holdfast.errors import BackendError, Misconfigured
from holdfast.plane.db.ports import Tx, Work
from holdfast.plane.db.postgres.errors import is_standby
from holdfast.plane.db.write_probe import NoRoom

NEEDED: Final = 1_000_000
"""As much as the largest payload."""

_MAKE: Final = "CREATE TEMPORARY TABLE plane_room (filling TEXT NOT NULL) ON COMMIT DROP"
_AS_IT_IS: Final = "ALTER TABLE plane_room ALTER COLUMN filling SET STORAGE EXTERNAL"  # not compressed to nothing
_FILL: Final = "INSERT INTO plane_room (filling) VALUES (repeat('x', CAST(:size AS integer)))"


class PostgresRoom:
    """What one process knows of it."""

    def __init__(self) -> None:
        self._missing: NoRoom | None = None

    def note(self, error: BaseException) -> None:
        """A write has failed."""
        if isinstance(error, NoRoom):
            self._missing = error

    async def check(self, write: Callable[[Work[None]], Awaitable[None]]) -> None:
        """Return if no write has missed it, or if it is there again; else raise `NoRoom`."""
        if self._missing is None:
            return
        with suppress(Misconfigured):  # an account that may make no such table finds out by the next write
            await write(_fill)
        self._missing = None


def described(error: BackendError) -> str:
    """Why the server takes no writes, and what to do about it. Names no address."""
    if isinstance(error, NoRoom):
        return "Postgres has no room left on a disk; free space there, or give it more"
    if isinstance(error.__cause__, psycopg.Error) and is_standby(error.__cause__):
        return "Postgres only reads: it is a standby; name the primary as the database, or wait for the failover to end"
    return f"Postgres takes no writes ({type(error).__name__.lower()}); the log of this process and its own say why"


async def _fill(tx: Tx) -> None:
    await tx.query(_MAKE)
    await tx.query(_AS_IT_IS)
    await tx.query(_FILL, {"size": NEEDED})
