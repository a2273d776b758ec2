"""An outbox in Postgres, for asyncio: what `holdfast.guards.outbox` is, awaited, on a `psycopg.AsyncConnection`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.ports import Observer
from holdfast.guards.admission import GuardStatistics
from holdfast.guards.bearer import Fenced
from holdfast.guards.messaging.outbox_flow import OutboxFlow, prepared
from holdfast.guards.messaging.outbox_message import OutboxMessage
from holdfast.guards.messaging.outbox_postgres import awaited_postgres
from holdfast.guards.sql.psycopg_driver import AsyncConnection

__all__ = ["Outbox", "OutboxMessage", "prepare"]


async def prepare(connection: AsyncConnection[Any]) -> None:
    """Make the table of the outbox and the fence ledger, if they are not there. Part of an open transaction."""
    await prepared(awaited_postgres(connection))


class Outbox:
    """The outbox of the database behind one connection, which stays the caller's."""

    def __init__(self, connection: AsyncConnection[Any], *, observer: Observer | None = None) -> None:
        self._flow = OutboxFlow(awaited_postgres(connection), observer)

    async def add(self, lease: Fenced, topic: str, body: bytes | str, headers: Mapping[str, str] | None = None) -> str:
        """Put a message into the transaction that is open on the connection, and return its id.

        `FencedOut` when a newer holder has been here, `LeaseLost` when the lease is known to be lost, `BadInput` when
        no transaction is open. Text is sent as UTF-8. The lock, the fence and the id are added to the headers.
        """
        return await self._flow.add(lease, topic, body, headers)

    async def enter(self, lease: Fenced) -> None:
        """Register the fence, so that no older holder adds a message any more. `FencedOut` if this one is older."""
        await self._flow.enter(lease)

    async def seen(self, key: str) -> int | None:
        """The highest fence that has been here under this lock; None: none has. For people and tests."""
        return await self._flow.seen(key)

    def statistics(self) -> GuardStatistics:
        """What this outbox has decided since it was made."""
        return self._flow.admission.statistics()
