"""What an outbox does, color-free: put a message into the caller's own transaction, if its fence is not stale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import uuid4

from holdfast.core.failpoints import reach
from holdfast.core.lease.fencing import Accepted, Outcome, Rule, Stale
from holdfast.core.ports import Observer
from holdfast.errors import BadInput
from holdfast.guards.admission import Admission
from holdfast.guards.bearer import Fenced
from holdfast.guards.messaging.outbox_message import drafted
from holdfast.guards.messaging.outbox_store import OutboxStore, definitions, step
from holdfast.guards.sql.statements import SqlQuery
from holdfast.types import check_key

_PREPARING: Final = 0x686F6C64666173  # "holdfas": an advisory lock, for IF NOT EXISTS does not cover two at one moment


class OutboxFlow:
    """The steps of one outbox on one connection."""

    def __init__(self, store: OutboxStore, observer: Observer | None) -> None:
        self._store = store
        self.admission = Admission("outbox", observer=observer)

    async def add(self, lease: Fenced, topic: str, body: bytes | str, headers: Mapping[str, str] | None) -> str:
        """Put a message in, and return its id."""
        draft = drafted(topic, body, headers)
        if not self._store.in_transaction:
            raise BadInput(
                "connection",
                "has no transaction open",
                "begin the one in which the data is written: the message is sent if it is committed, and only then",
            )
        presented = await self.admission.admit(
            lease, f"outbox {draft.topic}", Rule.AT_LEAST, lambda: self.seen(lease.key)
        )
        key, fence, message_id = presented.key, presented.checked_fence, uuid4().hex
        async with self._store.transaction():
            outcome = await self._noted(key, fence, message_id)
            reach("guard.reserved")
            if isinstance(outcome, Accepted):
                values = {"message_id": message_id, "key": key, "fence": fence, **draft._asdict()}
                await self._store.run(step(self._store.dialect, "add", **values))
                reach("guard.written")
        return self.admission.written(presented, outcome)

    async def enter(self, lease: Fenced) -> None:
        """Register the fence."""
        presented = await self.admission.admit(lease, "outbox", Rule.AT_LEAST, lambda: self.seen(lease.key))
        async with self._store.transaction():
            outcome = await self._noted(presented.key, presented.checked_fence, "")
        self.admission.entered(presented, outcome)

    async def seen(self, key: str) -> int | None:
        """The highest fence that has added, or entered, under this lock."""
        found = await self._store.run(step(self._store.dialect, "noted", key=check_key("key", key)))
        return found[0]["fence"] if found else None

    async def _noted(self, key: str, fence: int, value: str) -> Outcome[str]:
        if await self._store.run(step(self._store.dialect, "note", key=key, fence=fence)):
            return Accepted(value)
        newest = await self.seen(key)
        if newest is None:
            raise RuntimeError("a fence was refused, and none is noted")
        return Stale(newest)


async def prepared(store: OutboxStore) -> None:
    """Make the tables, if they are not there."""
    async with store.transaction():
        if store.dialect == "postgres":
            await store.run(SqlQuery("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": _PREPARING}))
        for statement in definitions(store.dialect):
            await store.run(SqlQuery(statement, {}))
