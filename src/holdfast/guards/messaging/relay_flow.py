"""What a relay does, color-free: take the first message of a key that is due, hand it to the bus, and mark it.

A message is marked only after `publish` has returned, so one that was sent and not marked (the relay died, its
connection broke) is sent again: at least once. The next message of a key is looked for after that, so the order of a
key is kept, whatever else is on the way. When `publish` raises, what it raises decides:

    ConnectionError, TimeoutError, OSError,     the bus is not there. The message is tried again, forever; after a few
    BackendError, RetryLater, and `outages`     in a row the run ends, and the next one tries again
    any other Exception                         the bus does not want this message. After `max_attempts` it is parked,
                                                and waits for a person

Either way the message is not tried again before a pause that doubles each time, and other keys continue meanwhile.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from threading import RLock as Mutex  # a signal handler may enter it again
from typing import Any, Final

from holdfast.errors import BackendError, BadInput, RetryLater
from holdfast.flows.log import log_event
from holdfast.guards.messaging.outbox_message import OutboxMessage, message_of
from holdfast.guards.messaging.outbox_store import OutboxStore, step
from holdfast.types import MS, NS, Duration, duration_ns

log = logging.getLogger("holdfast.guards")

OUTAGES_MAX: Final = 3  # in a row, until a run is ended
SWEEP_ROWS: Final = 1000
_ERROR_CHARS_MAX: Final = 500
_OUTAGE: Final = (OSError, BackendError, RetryLater)  # ConnectionError and TimeoutError are OSErrors


@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """What one relay has done since it was made. `parked` is the number to alert on."""

    sent: int = 0
    refused: int = 0  # the bus did not want a message
    unreachable: int = 0  # the bus was not there
    parked: int = 0  # given up, until a person decides
    swept: int = 0


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is in the outbox now, of all keys."""

    waiting: int
    parked: int
    oldest_s: float  # how long the oldest of them has been there; 0.0 when there is none


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """How a relay goes about it, checked."""

    max_attempts: int
    backoff_ms: int
    backoff_max_ms: int
    retention_ms: int | None
    skip_parked: bool
    outages: tuple[type[Exception], ...]

    @classmethod
    def checked(
        cls,
        max_attempts: object,
        backoff: Duration,
        backoff_max: Duration,
        retention: Duration | None,
        skip_parked: bool,
        outages: object,
    ) -> RelaySettings:
        """The settings in integers, or `BadInput`."""
        if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or not 1 <= max_attempts <= 1_000_000:
            raise BadInput("max_attempts", f"{max_attempts!r} is not a number of attempts", "give 1 or more")
        if not isinstance(outages, tuple) or not all(isinstance(e, type) and issubclass(e, Exception) for e in outages):
            raise BadInput("outages", f"{outages!r} are not kinds of errors", "give a tuple of exception classes")
        first = duration_ns("backoff", backoff, low_ns=MS) // MS
        last = duration_ns("backoff_max", backoff_max, low_ns=first * MS) // MS
        kept = None if retention is None else duration_ns("retention", retention) // MS
        return cls(max_attempts, first, last, kept, bool(skip_parked), (*_OUTAGE, *outages))

    def pause_ms(self, attempts: int) -> int:
        """How long a message rests that has failed so often."""
        return min(self.backoff_max_ms, self.backoff_ms << min(attempts, 40))


class _End(Enum):
    EMPTY = auto()  # there is nothing that is due
    SENT = auto()
    REFUSED = auto()
    UNREACHABLE = auto()


class RelayFlow:
    """The steps of one relay. Used by one thread or task at a time."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[OutboxStore]],
        publish: Callable[[OutboxMessage], Awaitable[object]],
        settings: RelaySettings,
    ) -> None:
        self._connect = connect
        self._publish = publish
        self._settings = settings
        self._store: OutboxStore | None = None
        self._mutex = Mutex()
        self._counts: Counter[str] = Counter()

    async def run_once(self, limit: int | None) -> int:
        """Send what is due, and return how many were sent."""
        if limit is not None:
            _check_number("limit", limit)
        sent = outages = 0
        store = await self._opened()
        try:
            async with store.turn() as ours:
                while ours and outages < OUTAGES_MAX and (limit is None or sent < limit):
                    end = await self._one(store)
                    if end is _End.EMPTY:
                        break
                    sent += end is _End.SENT
                    outages = outages + 1 if end is _End.UNREACHABLE else 0
        except BaseException:
            await self.close()  # whatever it was in the middle of is undone with the connection
            raise
        return sent

    async def sweep(self) -> int:
        """Delete messages that were sent longer ago than they are kept."""
        if self._settings.retention_ms is None:
            return 0
        swept = 0
        while True:
            values = {"age_ms": self._settings.retention_ms, "limit": SWEEP_ROWS}
            gone = len(await self._ask("sweep", **values))
            swept += gone
            self._count("swept", gone)
            if gone < SWEEP_ROWS:
                return swept

    async def backlog(self) -> Backlog:
        """Count what is waiting."""
        [found] = await self._ask("backlog")
        return Backlog(found["waiting"], found["parked"], max(0, found["oldest_ms"] or 0) / 1000)

    async def parked(self, limit: int) -> list[OutboxMessage]:
        """What was given up."""
        _check_number("limit", limit)
        return [message_of(row) for row in await self._ask("parked", limit=limit)]

    async def settle(self, verb: str, message_id: str) -> bool:
        """Have a parked message tried again, or deleted."""
        if not isinstance(message_id, str):
            raise BadInput("message_id", f"{type(message_id).__name__} is not an id", "give OutboxMessage.id")
        return bool(await self._ask(verb, message_id=message_id))

    def statistics(self) -> RelayStatistics:
        """The counts so far."""
        with self._mutex:
            return RelayStatistics(**self._counts)

    async def close(self) -> None:
        """Close the connection; the next step opens another."""
        store, self._store = self._store, None
        if store is not None:
            try:
                await store.close()
            except Exception as error:  # noqa: BLE001 - it is of no use any more, and must not hide why
                log.debug("the connection of a relay could not be closed: %s", error)

    async def _opened(self) -> OutboxStore:
        if self._store is None:
            store = await self._connect()
            try:
                await store.own()
            except BaseException:
                await store.close()
                raise
            self._store = store
        return self._store

    async def _ask(self, name: str, **values: Any) -> list[dict[str, Any]]:
        store = await self._opened()
        try:
            return await store.run(step(store.dialect, name, **values))
        except BaseException:
            await self.close()
            raise

    async def _one(self, store: OutboxStore) -> _End:
        """Take one message to the bus, and write down what came of it."""
        async with store.hold():
            found = await store.run(step(store.dialect, "head_past_parked" if self._settings.skip_parked else "head"))
            if not found:
                return _End.EMPTY
            [row] = found
            message = message_of(row)
            try:
                await self._publish(message)
            except Exception as error:  # noqa: BLE001 - whatever a bus raises is about this message, or about the bus
                return await self._failed(store, row, message, error)
            await store.run(step(store.dialect, "sent", id=row["id"]))
        self._count("sent")
        return _End.SENT

    async def _failed(self, store: OutboxStore, row: dict[str, Any], message: OutboxMessage, error: Exception) -> _End:
        unreachable = isinstance(error, self._settings.outages)
        text = f"{type(error).__name__}: {error}".replace("\0", "")[:_ERROR_CHARS_MAX]
        values = {
            "refusals": 0 if unreachable else 1,
            "error": text,
            "delay_ms": self._settings.pause_ms(row["attempts"]),
        }
        await store.run(step(store.dialect, "failed", id=row["id"], **values))
        if not unreachable and row["refusals"] + 1 >= self._settings.max_attempts:
            await store.run(step(store.dialect, "park", id=row["id"]))
            self._count("parked")
            told = {"message": message.id, "key": message.key, "refusals": self._settings.max_attempts, "error": text}
            log_event(log, logging.ERROR, "outbox: a message is parked", **told)
        else:
            told = {"message": message.id, "key": message.key, "error": text}
            log_event(log, logging.WARNING, "outbox: a message was not sent, and will be again", **told)
        self._count("unreachable" if unreachable else "refused")
        return _End.UNREACHABLE if unreachable else _End.REFUSED

    def _count(self, name: str, number: int = 1) -> None:
        with self._mutex:
            self._counts[name] += number


def _check_number(field: str, number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise BadInput(field, f"{number!r} is not a number of messages", "give 1 or more")


def seconds(name: str, value: Duration) -> float:
    """A pause for a loop, checked, in the unit that events wait in."""
    return duration_ns(name, value, low_ns=MS) / NS
