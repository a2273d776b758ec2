"""A database that is only looked at.

Promises: nothing is written to it, not even missing tables: a read-only command must not create a plane, nor migrate
one under the processes that use it. Reading works as in any other database.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from holdfast.errors import Misconfigured
from holdfast.plane.db.ports import ChannelListener, Database, Dialect, Work

T = TypeVar("T")


class SchemaMissing(Misconfigured):
    """Tables are missing or older, and a read-only command neither creates nor migrates them. Names the fix."""

    def __init__(self, problem: str, flags: str = "") -> None:
        """`flags`: options that name the same database, where the default would not."""
        self.problem = problem
        super().__init__(
            f"{problem}, and a command that only looks changes nothing; type `holdfast up --prepare{flags}` once, "
            "or start the plane with this version"
        )


class ReadOnlyDatabase:
    """See `ports.Database`. Closing it closes the one behind it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def dialect(self) -> Dialect:
        """See `ports.Database`."""
        return self._database.dialect

    @property
    def file(self) -> str | None:
        """See `ports.Database`."""
        return self._database.file

    async def write(self, work: Work[T], *, checked: bool = False, lasting: bool = True) -> T:
        """Refused. Commands that look have nothing to write but tables that are missing."""
        raise SchemaMissing("the database does not have all tables of a plane")

    async def read(self, work: Work[T], *, one_view: bool = True, lasting: bool = True) -> T:
        """See `ports.Database`."""
        return await self._database.read(work, one_view=one_view, lasting=lasting)

    def listen(self, channel: str) -> ChannelListener:
        """See `ports.Database`."""
        return self._database.listen(channel)

    def statistics(self) -> Mapping[str, int]:
        """See `ports.Database`."""
        return self._database.statistics()

    async def close(self) -> None:
        """See `ports.Database`."""
        await self._database.close()
