"""Checks whether the database accepts writes, for the readiness of a process.

A full disk, a read-only file or file system, a standby, a lock that is never released: all of them can still be read.
So the check really writes and commits: at most once in `EVERY_S`, however often it is called, and after a refusal too,
so that it notices the end of the trouble. Before that it asks the database whether there is room left, where the
database can know that.

Promises: `refusal` answers within about `PATIENCE_S`. A try that takes longer says nothing yet: what was last known
holds, for a database under load is slow and well; a lock that stays is found out when the patience of a write is over.
What is said for strangers has the name of a file, and neither its directory nor an address.

Clock: the event loop's; the wall clock, for people.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, Protocol, runtime_checkable

from holdfast.core.ports import Clock
from holdfast.errors import BackendError, Closed, Unavailable
from holdfast.plane.db.ports import Database, Tx

EVERY_S: Final = 5.0
PATIENCE_S: Final = 1.0

_TOUCH: Final = {
    "sqlite": "INSERT INTO plane_meta (name, value) VALUES ('written', :value) "
    "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    # A transaction with a number of its own is written down and synced as any other, and leaves no row to clean up.
    "postgres": "SELECT txid_current() AS number",
}


class NoRoom(Unavailable):
    """The disk of the database is full, or nearly. Nothing was changed."""


@runtime_checkable
class Describes(Protocol):
    """A database that knows more about itself than its errors say."""

    async def check_room(self) -> None:
        """Return if there is room for more, as far as is known; else raise `NoRoom`."""
        ...

    def described(self, error: BackendError) -> str:
        """Why it takes no writes, and what to do about it; without an address or a directory."""
        ...


class Refusal(NamedTuple):
    """Why nothing can be written."""

    shown: str  # to every client
    error: BackendError  # to those who run the process


class Writability:
    """The question, put to one database again and again. Belongs to the event loop of the database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._due = float("-inf")
        self._trying: asyncio.Task[None] | None = None
        self._refusal: Refusal | None = None

    async def refusal(self) -> Refusal | None:
        """What stands in the way of a write; None: nothing, as far as is known."""
        loop = asyncio.get_running_loop()
        if self._trying is None and loop.time() >= self._due:
            self._trying = loop.create_task(self._try(loop), name="try to write")
        if (trying := self._trying) is not None:
            await asyncio.wait((trying,), timeout=PATIENCE_S)
            if trying.done():
                trying.result()  # an unexpected error is raised
        return self._refusal

    async def _try(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            if isinstance(self._database, Describes):
                await self._database.check_room()
            await self._database.write(self._touch)
            self._refusal = None
        except BackendError as error:
            self._refusal = Refusal(self._shown(error), error)
        except Closed:
            self._refusal = None  # which looking at it says as well
        finally:
            self._due = loop.time() + EVERY_S
            self._trying = None

    async def _touch(self, tx: Tx) -> None:
        values = {"value": str(self._clock.now().wall)} if tx.dialect == "sqlite" else None
        await tx.query(_TOUCH[tx.dialect], values)

    def _shown(self, error: BackendError) -> str:
        if isinstance(self._database, Describes):
            return self._database.described(error)
        return f"it takes no writes ({type(error).__name__.lower()})"
