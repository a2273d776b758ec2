"""The relay of an outbox in Postgres, for asyncio: what `holdfast.guards.relay` is, awaited.

    relay = Relay(lambda: psycopg.AsyncConnection.connect(url), publish)       # publish is an `async def`
    await relay.run()                                                          # until stop(), or until it is cancelled

A relay that is cancelled while a message is on its way has not marked it: it is sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Self

from holdfast.errors import BadInput
from holdfast.flows.log import OutageLog
from holdfast.guards.messaging.outbox_message import OutboxMessage
from holdfast.guards.messaging.outbox_postgres import awaited_postgres
from holdfast.guards.messaging.outbox_store import OutboxStore
from holdfast.guards.messaging.relay_flow import Backlog, RelayFlow, RelaySettings, RelayStatistics, seconds
from holdfast.guards.relay import RETENTION, SWEEP_EVERY_S
from holdfast.guards.sql.psycopg_driver import AsyncConnection
from holdfast.types import Duration

__all__ = ["Backlog", "Relay", "RelayStatistics"]

log = logging.getLogger("holdfast.guards")


class Relay:
    """One sender of messages, on a connection of its own. Used by one task at a time, but for `stop`."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[AsyncConnection[Any]]],
        publish: Callable[[OutboxMessage], Awaitable[object]],
        *,
        max_attempts: int = 10,
        backoff: Duration = 1,
        backoff_max: Duration = 300,
        retention: Duration | None = RETENTION,
        skip_parked: bool = False,
        outages: tuple[type[Exception], ...] = (),
    ) -> None:
        """`connect` opens a connection that the relay has for itself; it is closed, and opened again, after errors.

        A message that the bus refuses is tried `max_attempts` times, with pauses from `backoff` up to `backoff_max`.
        `outages` are what the bus's own library raises when the bus is not there, if those are not the built-in errors:
        `(redis.ConnectionError, redis.TimeoutError)`. No message is parked because of them.
        """
        for field, given in (("connect", connect), ("publish", publish)):
            if not callable(given):
                raise BadInput(field, f"{type(given).__name__} cannot be called", "give an async function")
        settings = RelaySettings.checked(max_attempts, backoff, backoff_max, retention, skip_parked, outages)

        async def opened() -> OutboxStore:
            return awaited_postgres(await connect())

        self._flow = RelayFlow(opened, publish, settings)
        self._stopping = asyncio.Event()

    async def run_once(self, limit: int | None = None) -> int:
        """Send what is due, at most `limit` messages, and return how many were sent. Raises the database's errors."""
        return await self._flow.run_once(limit)

    async def run(self, interval: Duration = 1) -> None:
        """Send due messages, poll every `interval`, delete old ones, until `stop` is called.

        Errors of the database are logged, and tried again after the next `interval`.
        """
        pause_s, next_sweep = seconds("interval", interval), 0.0
        trouble = OutageLog(log, "the relay has failed and goes on", "the relay works again", level=logging.ERROR)
        clock = asyncio.get_running_loop().time
        try:
            while not self._stopping.is_set():
                try:
                    await self.run_once()
                    if clock() >= next_sweep:
                        await self.sweep()
                        next_sweep = clock() + SWEEP_EVERY_S
                    trouble.ended()
                except Exception as error:  # noqa: BLE001 - whatever it is, a relay must not end in the night
                    trouble.met(error, again_s=pause_s)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._stopping.wait()
            self._stopping.clear()
        finally:
            await self.aclose()

    def stop(self) -> None:
        """Have `run` return when what it is doing is done. From the loop's own thread."""
        self._stopping.set()

    async def sweep(self) -> int:
        """Delete the messages that were sent longer than `retention` ago, and return how many."""
        return await self._flow.sweep()

    async def backlog(self) -> Backlog:
        """What is in the outbox now. For alerts: what waits for long, and what is parked."""
        return await self._flow.backlog()

    async def parked(self, limit: int = 100) -> list[OutboxMessage]:
        """The messages that were given up, the oldest first."""
        return await self._flow.parked(limit)

    async def retry(self, message_id: str) -> bool:
        """Have a parked message tried again. False: there is none of this id."""
        return await self._flow.settle("retry", message_id)

    async def discard(self, message_id: str) -> bool:
        """Delete a parked message, so that the later ones of its key are sent. False: there is none of this id."""
        return await self._flow.settle("discard", message_id)

    def statistics(self) -> RelayStatistics:
        """What this relay has done since it was made."""
        return self._flow.statistics()

    async def aclose(self) -> None:
        """Close the connection. The next call opens another."""
        await self._flow.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_about: object) -> None:
        await self.aclose()
