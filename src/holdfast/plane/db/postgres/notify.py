"""Hints between the processes at one Postgres database, with NOTIFY.

Promises: the channels that a commit notified at are told to every other process that listens, in one notification for
all commits since the last; after a lost connection all subscriptions are notified, because hints may have been missed.

Hints are sent after the commit, on a connection of their own, and not inside the transaction. Postgres lets only one
transaction at a time commit with a NOTIFY in it, and holds that turn until the commit is on disk: ten writers got a
third of the commits that they get without. What it costs: a process that dies between its commit and its hint gives
none; then the waits of the others end by themselves, as they must anyway.

Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import psycopg

from holdfast.core.ports import Entropy
from holdfast.plane.db.notifier import DatabaseNotifier
from holdfast.types import NS

CHANNEL: Final = "holdfast_plane"
_LOOK_EVERY_S: Final = 15.0  # a connection that says nothing for so long is asked whether it is alive
_LOOK_LIMIT_S: Final = 5.0
_LAST_WORD_S: Final = 2.0
_AGAIN_NS: Final = NS // 2
_PAYLOAD_BYTES_MAX: Final = 7_900  # Postgres takes 7,999
_EVERYTHING: Final = "*"

Connect = Callable[[], Awaitable[psycopg.AsyncConnection[Any]]]


def payload_of(channels: Iterable[str], instance: str = "") -> str:
    """The payload of a notification. `instance`: the sender, which does not need it; "": every process does."""
    names = "\n".join(sorted(channels))
    if len(names.encode()) > _PAYLOAD_BYTES_MAX - len(instance) - 1:
        names = _EVERYTHING
    return f"{instance}\n{names}"


class PostgresHints:
    """One task that listens, once there is a listener, and one that tells, once there was a notification."""

    def __init__(self, connect: Connect, notifier: DatabaseNotifier, entropy: Entropy) -> None:
        self._connect = connect
        self._notifier = notifier
        self._entropy = entropy
        self._instance = entropy.token()[:16]
        self._pending: set[str] = set()
        self._something = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self.reconnects = 0

    def listen(self) -> None:
        """Begin to listen, if that was not done before."""
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._kept_up(self._receive))

    def notify(self, channels: Iterable[str]) -> None:
        """Send a hint soon."""
        self._pending.update(channels)
        self._something.set()
        self._all_sent.clear()
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._kept_up(self._send_pending))

    async def close(self) -> None:
        """Send what is to be sent, if that can be done soon, and end both tasks."""
        if self._sending is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORD_S):
                    await self._all_sent.wait()
        tasks = [each for each in (self._listening, self._sending) if each is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _kept_up(self, use: Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]]) -> None:
        """Use a connection, and another when it is lost, until cancelled."""
        while True:  # ends by cancellation
            with contextlib.suppress(psycopg.Error, OSError, TimeoutError):
                connection = await self._connect()
                try:
                    await use(connection)
                finally:
                    await connection.close()
            self.reconnects += 1
            await asyncio.sleep((_AGAIN_NS // 2 + self._entropy.below(_AGAIN_NS)) / NS)

    async def _receive(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(f"LISTEN {CHANNEL}")
        self._notifier.notify_all()  # for notifications while this process did not listen
        while True:  # ends when the connection does
            async for notification in connection.notifies(timeout=_LOOK_EVERY_S):
                self._on_notification(notification.payload)
            async with asyncio.timeout(_LOOK_LIMIT_S):
                await connection.execute("SELECT 1")

    def _on_notification(self, payload: str) -> None:
        instance, _, channels = payload.partition("\n")
        if instance == self._instance:
            return  # our own subscriptions were notified immediately
        if channels == _EVERYTHING:
            self._notifier.notify_all()
        else:
            self._notifier.notify(channels.split("\n"))

    async def _send_pending(self, connection: psycopg.AsyncConnection[Any]) -> None:
        # It would have to wait for the disk like any other commit; and the loss of a hint with the server's power
        # does no harm.
        await connection.execute("SET synchronous_commit = off")
        while True:  # ends when the connection does
            await self._something.wait()
            self._something.clear()
            channels, self._pending = self._pending, set()
            try:
                payload = payload_of(channels, self._instance)
                async with asyncio.timeout(_LOOK_LIMIT_S):
                    await connection.execute("SELECT pg_notify($1, $2)", [CHANNEL, payload])
            except BaseException:
                self._pending |= channels  # for the next connection
                self._something.set()
                raise
            if not self._pending:
                self._all_sent.set()
