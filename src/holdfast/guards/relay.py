"""The relay of an outbox: sends what was committed, in order per key, at least once.

    relay = Relay(lambda: psycopg.connect(url), publish)       # publish(message: OutboxMessage) sends it, and returns
    relay.run()                                                # until stop(); or run_once() from a loop of your own

Promises: a message is marked as sent only after `publish` has returned; the messages of one key are sent in the order
of their commits, each after the one before it was sent, however many relays run; one that cannot be sent holds
back its own key and no other (`relay_flow` says when it is tried again and when it is parked). In Postgres relays share
the work; on a SQLite file one at a time is let in, and the others find nothing to do.

Does not promise that a message is sent once. After a crash or a broken connection one is sent again under the same id,
and where the connection of a relay broke while `publish` was still on its way, that can be after later ones: consumers
keep the ids that they have handled. `publish` should have a time limit: in Postgres a transaction is open meanwhile.

A parked message holds back its key until `retry` or `discard` is called with its id; with `skip_parked` the later ones
continue without it. Sent messages are deleted after `retention`.

Clock: the database's for when a message is due and how long it is kept, the monotonic one for the pauses of `run`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from holdfast.errors import BadInput
from holdfast.flows.log import OutageLog
from holdfast.guards.messaging.outbox_message import OutboxMessage
from holdfast.guards.messaging.outbox_store import OutboxStore, blocking_store
from holdfast.guards.messaging.relay_flow import Backlog, RelayFlow, RelaySettings, RelayStatistics, seconds
from holdfast.runtime.run_sync import run_now
from holdfast.runtime.thread_runtime import Wakeup
from holdfast.types import Duration

if TYPE_CHECKING:
    from holdfast.guards.outbox import Connection

__all__ = ["Backlog", "Relay", "RelayStatistics"]

RETENTION = timedelta(days=7)
SWEEP_EVERY_S = 600.0

log = logging.getLogger("holdfast.guards")


class Relay:
    """One sender of messages, on a connection of its own. Used by one thread at a time, but for `stop`."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        publish: Callable[[OutboxMessage], object],
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
                raise BadInput(field, f"{type(given).__name__} cannot be called", "give a function")
        settings = RelaySettings.checked(max_attempts, backoff, backoff_max, retention, skip_parked, outages)

        async def opened() -> OutboxStore:
            return blocking_store(connect())

        async def sending(message: OutboxMessage) -> object:
            return publish(message)

        self._flow = RelayFlow(opened, sending, settings)
        self._stopping = False
        self._wakeup = Wakeup()  # not an event: a signal handler may call `stop` at any point of `run`

    def run_once(self, limit: int | None = None) -> int:
        """Send what is due, at most `limit` messages, and return how many were sent. Raises the database's errors."""
        return run_now(self._flow.run_once(limit))

    def run(self, interval: Duration = 1) -> None:
        """Send due messages, poll every `interval`, delete old ones, until `stop` is called.

        Errors of the database are logged, and tried again after the next `interval`.
        """
        pause_s, next_sweep = seconds("interval", interval), 0.0
        trouble = OutageLog(log, "the relay has failed and goes on", "the relay works again", level=logging.ERROR)
        try:
            while not self._stopping:
                try:
                    self.run_once()
                    if time.monotonic() >= next_sweep:
                        self.sweep()
                        next_sweep = time.monotonic() + SWEEP_EVERY_S
                    trouble.ended()
                except Exception as error:  # noqa: BLE001 - whatever it is, a relay must not end in the night
                    trouble.met(error, again_s=pause_s)
                self._wakeup.wait(pause_s)
            self._stopping = False
        finally:
            self.close()

    def stop(self) -> None:
        """Have `run` return when what it is doing is done. From any thread, and from a signal handler."""
        self._stopping = True
        self._wakeup.notify()

    def sweep(self) -> int:
        """Delete the messages that were sent longer than `retention` ago, and return how many."""
        return run_now(self._flow.sweep())

    def backlog(self) -> Backlog:
        """What is in the outbox now. For alerts: what waits for long, and what is parked."""
        return run_now(self._flow.backlog())

    def parked(self, limit: int = 100) -> list[OutboxMessage]:
        """The messages that were given up, the oldest first."""
        return run_now(self._flow.parked(limit))

    def retry(self, message_id: str) -> bool:
        """Have a parked message tried again. False: there is none of this id."""
        return run_now(self._flow.settle("retry", message_id))

    def discard(self, message_id: str) -> bool:
        """Delete a parked message, so that the later ones of its key are sent. False: there is none of this id."""
        return run_now(self._flow.settle("discard", message_id))

    def statistics(self) -> RelayStatistics:
        """What this relay has done since it was made."""
        return self._flow.statistics()

    def close(self) -> None:
        """Close the connection. The next call opens another."""
        run_now(self._flow.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_about: object) -> None:
        self.close()
