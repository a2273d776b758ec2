"""Messages that nobody will try again, kept with the dead letters so that they are seen and not silently gone."""

from __future__ import annotations

import json
from typing import Final

from holdfast.core.ports import Clock
from holdfast.plane.db.ports import Database
from holdfast.plane.jobrows import sql
from holdfast.plane.model.records import Delivery

_LETTER: Final = sql("deadletter_insert")


class Undelivered:
    """Where a bus puts what it gives up. Keeping the same message twice keeps it once."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def __call__(self, delivery: Delivery, reason: str, code: str) -> None:
        """Keep one message, and why."""
        message = delivery.message
        body = {"subject": message.subject, "group": delivery.group, "message": dict(message.body)}
        values = {
            "id": f"{message.id}@{delivery.group}",
            "job": str(message.body.get("job") or ""),
            "tenant": str(message.body.get("tenant") or ""),
            "topic": str(message.body.get("topic") or message.subject),
            "reason": reason,
            "code": code,
            "last_state": None,
            "attempts": delivery.deliveries,
            "at_ns": self._clock.now().wall,
            "made_ns": 0,
            "body": json.dumps(body, separators=(",", ":"), ensure_ascii=False, default=str),
        }
        await self._database.write(lambda tx: tx.query(_LETTER, values))
