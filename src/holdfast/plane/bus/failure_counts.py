"""How often a message on NATS has failed, kept in the plane's database, because the server only counts deliveries.

Most messages never fail, and cost nothing here. Clock: the wall clock that is passed in, to forget what is long over.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from holdfast.core.ports import Clock
from holdfast.errors import Unavailable
from holdfast.plane.db.ports import Database, Row
from holdfast.plane.db.statements import script
from holdfast.plane.model.records import Message
from holdfast.types import NS

KEPT_NS: Final = 30 * 86_400 * NS
_LIMIT_S: Final = 3.0  # messages that arrive wait for the answer


class NatsFailures:
    """The counts of one plane."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        names = ("note", "get", "forget", "sweep")
        self._sql = {name: script(f"failure_{name}", database.dialect) for name in names}

    async def of(self, message: Message, group: str) -> int:
        """How often it has failed so far."""
        rows = await self._read("get", {"id": message.id, "recipient": group})
        return int(rows[0]["failures"]) if rows else 0

    async def note(self, message: Message, group: str) -> int:
        """It has failed once more; how often that makes."""
        values = {"id": message.id, "recipient": group, "at_ns": self._clock.now().wall}
        rows = await self._database.write(lambda tx: tx.query(self._sql["note"], values))
        return int(rows[0]["failures"])

    async def forget(self, message: Message, group: str) -> None:
        """It is done with."""
        values = {"id": message.id, "recipient": group}
        await self._database.write(lambda tx: tx.query(self._sql["forget"], values))

    async def sweep(self) -> None:
        """Forget what is long over."""
        values = {"before_ns": self._clock.now().wall - KEPT_NS}
        await self._database.write(lambda tx: tx.query(self._sql["sweep"], values))

    async def _read(self, name: str, values: dict[str, Any]) -> list[Row]:
        try:
            async with asyncio.timeout(_LIMIT_S):
                return await self._database.read(lambda tx: tx.query(self._sql[name], values))
        except TimeoutError:
            raise Unavailable("the database does not say how often a message has failed") from None
