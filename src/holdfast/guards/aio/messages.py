"""A fence on every message, for asyncio: what `holdfast.guards.messages` is, awaited.

    async with inbox.section(message.headers) as carried:
        await table.update(carried, 42, {"total": 5})

The outbox and its relay are in `holdfast.guards.aio.outbox` and `holdfast.guards.aio.relay`, for they need psycopg. A
record whose methods block (`SqliteRecord`) is asked on a thread, which `aclose` ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, cast, overload

from holdfast.core.ports import Observer
from holdfast.guards.bearer import CarriedFence
from holdfast.guards.messaging.headers import MESSAGE_ID_HEADER, Headers, byte_pairs, carried_in, stamped
from holdfast.guards.messaging.inbox_flow import InboxFlow, InboxStatistics, OnStale
from holdfast.guards.records import FenceRecord, ThreadedRecord, check_record, off_the_loop

__all__ = [
    "MESSAGE_ID_HEADER",
    "Inbox",
    "InboxStatistics",
    "byte_pairs",
    "carried_in",
    "stamped",
]

C_co = TypeVar("C_co", bound=CarriedFence | None, covariant=True)
M = TypeVar("M")
P = ParamSpec("P")
R = TypeVar("R")


class Inbox(Generic[C_co]):
    """The door of a consumer on an event loop."""

    @overload
    def __init__(
        self: Inbox[CarriedFence],
        record: FenceRecord,
        place: str = "messages",
        *,
        on_stale: Literal["raise"] = "raise",
        observer: Observer | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Inbox[CarriedFence | None],
        record: FenceRecord,
        place: str = "messages",
        *,
        on_stale: Literal["drop"],
        observer: Observer | None = None,
    ) -> None: ...
    def __init__(
        self,
        record: FenceRecord,
        place: str = "messages",
        *,
        on_stale: OnStale = "raise",
        observer: Observer | None = None,
    ) -> None:
        """`record` remembers what was seen. `on_stale` is explained in `holdfast.guards.messages`."""
        self._thread = off_the_loop(check_record(record))
        self._owned = self._thread is not record
        self._flow = InboxFlow(self._thread, place, on_stale, observer)

    async def admit(self, headers: Headers | None) -> C_co:
        """Register the fence of a message, and return it, for the guards behind. None: stale, with `on_stale="drop"`.

        `FencedOut` when a message of a newer holder was here, `BadInput` when there is no fence or nonsense for one,
        `Unavailable` or `Timeout` when the record does not answer: the message was not admitted then.
        """
        return cast("C_co", await self._flow.admit(headers))

    @asynccontextmanager
    async def section(self, headers: Headers | None) -> AsyncIterator[C_co]:
        """`admit`, and then the block: `async with inbox.section(message.headers) as carried:`."""
        yield await self.admit(headers)

    def handler(
        self, headers: Callable[[Any], Headers | None]
    ) -> Callable[
        [Callable[Concatenate[M, CarriedFence, P], Awaitable[R]]], Callable[Concatenate[M, P], Awaitable[R | None]]
    ]:
        """Put the inbox before a handler, which gets the fence after the message. `headers` reads a message's own.

        What is dropped is not handled, and None is returned.
        """

        def guarded(
            handle: Callable[Concatenate[M, CarriedFence, P], Awaitable[R]],
        ) -> Callable[Concatenate[M, P], Awaitable[R | None]]:
            @wraps(handle)
            async def handled(message: M, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
                carried = await self.admit(headers(message))
                return None if carried is None else await handle(message, carried, *args, **kwargs)

            return handled

        return guarded

    async def seen(self, key: str) -> int | None:
        """The highest fence that a message of this lock has brought; None: none has. For people and tests."""
        return await self._flow.seen(key)

    def statistics(self) -> InboxStatistics:
        """What this inbox has decided since it was made."""
        return self._flow.statistics()

    async def aclose(self) -> None:
        """End the thread, if there is one. The record stays the caller's."""
        if self._owned and isinstance(self._thread, ThreadedRecord):
            await asyncio.to_thread(self._thread.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_about: object) -> None:
        await self.aclose()
