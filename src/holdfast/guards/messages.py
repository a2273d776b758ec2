"""A fence on every message, refused by the consumer when it is stale. For any bus that has headers.

    bus.publish("invoices", body, headers=stamped(lease))        # LeaseLost, and nothing sent, if the lease is lost

    inbox = Inbox(SqliteRecord("fences.db"), place="billing")
    with inbox.section(message.headers) as carried:              # FencedOut if a newer holder's message was here
        table.update(carried, 42, {"total": 5})                  # … and the guard of the storage has the last word

Promises: `section` registers the fence of a message durably before its handler runs; a message whose fence is below the
highest that was registered for its lock does not get to the handler. Does not promise that a handler which is already
running stops when a newer message arrives at another consumer: hand `carried` on to the guard of whatever it writes to.
Nor that a message is handled once: the same fence is accepted as often as it comes, and telling a repetition from a new
message is done by a message id (the outbox sends one).

**Late is stale.** A consumer cannot tell a message that was sent in time and arrives late from one that a holder sent
after it had lost its lock. Both carry fence 1 and come after a message of fence 2, and both are refused. On a bus that
keeps the order of one key (a partition, a stream, the relay of the outbox) no message is late in this sense. Elsewhere
decide what a message is: for a command ("set the total to 5") being refused is right, for the state has moved on; a
fact that stays true ("42 was paid") should not go through an inbox, or only with a handler for `FencedOut` that takes
it all the same. With `on_stale="drop"` stale messages are counted, logged and passed over, which suits a bus that would
deliver a refused one forever.

`place` is the name space in the record: one for each group of consumers that gets each message once. Two services that
both get every message need two places, or one would refuse what the other has gone ahead of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast, overload

from holdfast.core.ports import Observer
from holdfast.errors import BadInput
from holdfast.guards.bearer import CarriedFence
from holdfast.guards.messaging.headers import MESSAGE_ID_HEADER, Headers, byte_pairs, carried_in, stamped
from holdfast.guards.messaging.inbox_flow import InboxFlow, InboxStatistics, OnStale
from holdfast.guards.outbox import Outbox, OutboxMessage, prepare
from holdfast.guards.records import FenceRecord, check_record
from holdfast.guards.relay import Relay
from holdfast.runtime.run_sync import run_now

__all__ = [
    "MESSAGE_ID_HEADER",
    "Inbox",
    "InboxStatistics",
    "Outbox",
    "OutboxMessage",
    "Relay",
    "byte_pairs",
    "carried_in",
    "prepare",
    "stamped",
]

C_co = TypeVar("C_co", bound=CarriedFence | None, covariant=True)
M = TypeVar("M")
P = ParamSpec("P")
R = TypeVar("R")


class Inbox(Generic[C_co]):
    """The door of a consumer. Safe from any thread if its record is."""

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
        """`record` remembers what was seen; it must be a blocking one. `on_stale` is explained above."""
        if not getattr(check_record(record), "blocking", True):
            raise BadInput(
                "record", f"{type(record).__name__} is for an event loop", "use holdfast.guards.aio.messages with it"
            )
        self._flow = InboxFlow(record, place, on_stale, observer)

    def admit(self, headers: Headers | None) -> C_co:
        """Register the fence of a message, and return it, for the guards behind. None: stale, with `on_stale="drop"`.

        `FencedOut` when a message of a newer holder was here, `BadInput` when there is no fence or nonsense for one,
        `Unavailable` or `Timeout` when the record does not answer: the message was not admitted then.
        """
        return cast("C_co", run_now(self._flow.admit(headers)))

    @contextmanager
    def section(self, headers: Headers | None) -> Iterator[C_co]:
        """`admit`, and then the block: `with inbox.section(message.headers) as carried:`."""
        yield self.admit(headers)

    def handler(
        self, headers: Callable[[Any], Headers | None]
    ) -> Callable[[Callable[Concatenate[M, CarriedFence, P], R]], Callable[Concatenate[M, P], R | None]]:
        """Put the inbox before a handler, which gets the fence after the message. `headers` reads a message's own.

        What is dropped is not handled, and None is returned.
        """

        def guarded(handle: Callable[Concatenate[M, CarriedFence, P], R]) -> Callable[Concatenate[M, P], R | None]:
            @wraps(handle)
            def handled(message: M, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
                carried = self.admit(headers(message))
                return None if carried is None else handle(message, carried, *args, **kwargs)

            return handled

        return guarded

    def seen(self, key: str) -> int | None:
        """The highest fence that a message of this lock has brought; None: none has. For people and tests."""
        return run_now(self._flow.seen(key))

    def statistics(self) -> InboxStatistics:
        """What this inbox has decided since it was made."""
        return self._flow.statistics()
