"""An outbox: a message that is sent if, and only if, the transaction that wrote the data was committed.

    prepare(connection)                                             # once; makes the table, safe to repeat

    with connection:                                                # the caller's own transaction
        with table.section(lease, 42) as row:
            row.update(total=5)
        Outbox(connection).add(lease, "invoices", b"{...}")         # gone if the transaction is rolled back

    Relay(lambda: sqlite3.connect("app.db"), publish).run()         # elsewhere: sends what was committed

Promises: a message whose fence is below the highest that has added or entered under its lock is refused (`FencedOut`),
in the same transaction; the messages of one lock come out in the order of their commits, so their fences never go down,
and a consumer's inbox never takes one of them for late. Each has an id that stays the same when it is sent again.

Does not promise to see holders that have not been here: one that writes to a guarded row and adds nothing is noted at
the row only. `add` belongs into the transaction of the guarded write, which is refused then; where a message is all
that is written, the holder calls `enter` before it decides what to send.

For SQLite (`sqlite3.Connection`) and Postgres (`psycopg.Connection`; awaited in `holdfast.guards.aio.outbox`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.core.ports import Observer
from holdfast.guards.admission import GuardStatistics
from holdfast.guards.bearer import Fenced
from holdfast.guards.messaging.outbox_flow import OutboxFlow, prepared
from holdfast.guards.messaging.outbox_message import OutboxMessage
from holdfast.guards.messaging.outbox_store import blocking_store
from holdfast.runtime.run_sync import run_now

if TYPE_CHECKING:
    import psycopg

    Connection: TypeAlias = sqlite3.Connection | psycopg.Connection[Any]

__all__ = ["Outbox", "OutboxMessage", "prepare"]


def prepare(connection: Connection) -> None:
    """Make the table of the outbox and the fence ledger, if they are not there. Part of an open transaction."""
    run_now(prepared(blocking_store(connection)))


class Outbox:
    """The outbox of the database behind one connection, which stays the caller's."""

    def __init__(self, connection: Connection, *, observer: Observer | None = None) -> None:
        self._flow = OutboxFlow(blocking_store(connection), observer)

    def add(self, lease: Fenced, topic: str, body: bytes | str, headers: Mapping[str, str] | None = None) -> str:
        """Put a message into the transaction that is open on the connection, and return its id.

        `FencedOut` when a newer holder has been here, `LeaseLost` when the lease is known to be lost, `BadInput` when
        no transaction is open. Text is sent as UTF-8. The lock, the fence and the id are added to the headers.
        """
        return run_now(self._flow.add(lease, topic, body, headers))

    def enter(self, lease: Fenced) -> None:
        """Register the fence, so that no older holder adds a message any more. `FencedOut` if this one is older."""
        run_now(self._flow.enter(lease))

    def seen(self, key: str) -> int | None:
        """The highest fence that has been here under this lock; None: none has. For people and tests."""
        return run_now(self._flow.seen(key))

    def statistics(self) -> GuardStatistics:
        """What this outbox has decided since it was made."""
        return self._flow.admission.statistics()
