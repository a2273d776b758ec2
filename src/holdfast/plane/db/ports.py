"""The seam of the plane: a database that keeps state, and a bus that carries messages, with one transaction for both.

A message is *staged* in the same transaction as the state that it tells of; so there is no moment at which one exists
without the other. The embedded bus reads the staged rows themselves; other buses are fed from them by a relay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from holdfast.core.ports import Observer
from holdfast.plane.model.records import Delivery, Message
from holdfast.types import NS

STANDSTILL_NS: Final = 5 * NS
"""After which Postgres ends a transaction in which nothing is said, and gives its rows to those who wait for them. The
plane's transactions only compute between two statements, so this one belongs to a process, or a host, that stands
still; it must not hold up a whole pool until it is found out. If it wakes up, it finds that nothing was changed."""

T = TypeVar("T")

Row: TypeAlias = Mapping[str, Any]
Dialect: TypeAlias = Literal["sqlite", "postgres"]
Handler: TypeAlias = Callable[[Delivery], Awaitable[None]]


class Tx(Protocol):
    """One open transaction. Work inside it awaits this and nothing else, so that it runs in any color."""

    @property
    def dialect(self) -> Dialect:
        """Which SQL it speaks."""
        ...

    @property
    def holds(self) -> bool:
        """Whether rows that are read to be written stay as they are until the commit. If not, what is put checks it."""
        ...

    async def query(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Run one statement, with places written `:name`; the rows that it returns, as mappings."""
        ...

    async def query_many(self, statement: str, parameters: Sequence[Mapping[str, Any]]) -> int:
        """Run one statement that returns no rows, once for each set of parameters. How many rows it has changed."""
        ...

    async def put(
        self, statement: str, parameters: Mapping[str, Any] | None = None, *, rows: int | None = None
    ) -> None:
        """Run one statement that writes, and whose answer is not needed; it returns a row for each changed row.

        It may be sent later, with others that were put, but before the next `query` or `query_many` and before the
        commit; so its error may come from there. Those that go together do not see what the others write, and must
        not write the same row. `RowMissing`, and nothing of the work is written, unless it changes `rows` rows.
        """
        ...

    def notify(self, channel: str) -> None:
        """Wake those who wait at the channel, in all processes, once the transaction is committed.

        It may not be durable yet; whatever they write because of it is only with it.
        """
        ...

    def after(self, call: Callable[[], None]) -> None:
        """Call this on the event loop once the transaction is committed and durable. Never otherwise."""
        ...


class SharedTx(Tx, Protocol):
    """A transaction that leases in the same database can join (`core.ports.SharesTransactions`)."""

    def step(self, step: Callable[[Any], T]) -> T:
        """Run a step with the connection of the transaction, which the step must not end."""
        ...


Work: TypeAlias = Callable[[Tx], Awaitable[T]]


class ChannelListener(Protocol):
    """A subscription to one channel. Notifications are hints and never the truth."""

    def each(self, call: Callable[[], None]) -> None:
        """Call this at each notification, on the event loop, instead of waiting. Earlier ones since `listen` count."""
        ...

    async def wait(self, timeout_ns: int) -> bool:
        """Wait for a notification. Earlier ones since `listen` or the last wait count. False: none came in time."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Database(Protocol):
    """Where state is kept. Errors: `Unavailable` (nothing happened), `Timeout` (may have happened), `Misconfigured`."""

    @property
    def dialect(self) -> Dialect:
        """Which SQL it speaks."""
        ...

    @property
    def file(self) -> str | None:
        """The path of the file that it is; None: it is a server."""
        ...

    async def write(self, work: Work[T], *, checked: bool = False, lasting: bool = True) -> T:
        """Run the work in one transaction, commit it durably, and return its result. An error rolls it back.

        The work may be run again from its start when the database asks for that (busy, serialization), so it must
        change nothing outside the transaction. Work of concurrent callers may share one commit.

        `checked`: what is put names with `rows`, and in its conditions, all that the work was told by queries. Then
        nothing has to be held between the two, and a database for which that is dear first tries without (`Tx.holds`).
        When something was not as it was read, the work is run again, and holds it.

        Not `lasting`: it may return before the commit is durable. It is before any later one that is.
        """
        ...

    async def read(self, work: Work[T], *, one_view: bool = True, lasting: bool = True) -> T:
        """Run work that changes nothing. `one_view`: all of its statements see one state; else each its own.

        `lasting`: what it has seen is durable when it returns. Not so for a read that is not reported to users.
        """
        ...

    def listen(self, channel: str) -> ChannelListener:
        """Listen to a channel."""
        ...

    def statistics(self) -> Mapping[str, int]:
        """Counts and gauges. Reading them costs no I/O."""
        ...

    async def close(self) -> None:
        """Give back connections and threads."""
        ...


@runtime_checkable
class ServerDatabase(Protocol):
    """A database on a server, in which leases can be, too."""

    @property
    def server_url(self) -> str:
        """How the server is reached, with the password."""
        ...


class Along(Protocol):
    """Something that is done by the very transaction that claims messages, where the bus is in that database."""

    @property
    def ready(self) -> bool:
        """Whether it can be done now."""
        ...

    async def work(self, tx: Tx, keys: Sequence[str]) -> None:
        """Do it, for messages with these keys, or none. Called again, perhaps for others, if it is made again."""
        ...

    def done(self) -> None:
        """The transaction is over and durable, and its messages are about to be handled."""
        ...

    def undone(self) -> None:
        """The transaction failed, or its outcome is unknown."""
        ...


@dataclass(frozen=True, slots=True)
class Consumption:
    """How a group consumes a subject."""

    subject: str
    group: str
    concurrency: int = 32
    ack_wait_ns: int = 30_000_000_000  # without an in-progress signal, after which another consumer gets the message
    max_failures: int = 5  # errors; busy and store trouble do not count
    max_age_ns: int = 24 * 3600 * 1_000_000_000  # after which a message that never succeeded is a dead letter
    judges_lost: bool = False  # the handler itself knows what it has begun that was not heard of again
    lasting: bool = True  # what is handled is durable before; False: the handler writes, which makes it so, or is safe
    ordered: bool = True  # one message of a key at a time; False: the handler itself batches messages of one key
    along: Along | None = None  # done with each claim, if the bus is in the database that is meant
    also: tuple[str, ...] = ()  # more subjects of the same group, which share the concurrency
    on_dead: Callable[[Delivery, str, str], Awaitable[None]] | None = None
    """Called with a message, reason and code before it becomes a dead letter. If it fails, it is called again later."""

    @property
    def subjects(self) -> tuple[str, ...]:
        """All subjects that are consumed."""
        return (self.subject, *self.also)


class Bus(Protocol):
    """Carries messages to groups of consumers, each message at least once to each group of its subject."""

    @property
    def prompt(self) -> bool:
        """Whether what is staged by this process now is on its way as soon as it is committed, as far as is known."""
        ...

    @property
    def within(self) -> bool:
        """Whether its messages lie in the database.

        Then what a handler has written is on the disk before it is there that the message was handled.
        """
        ...

    async def stage(self, tx: Tx, messages: Sequence[Message]) -> None:
        """Make the messages part of a transaction: delivered if it commits, and never if it does not."""
        ...

    async def publish(self, messages: Sequence[Message]) -> None:
        """Publish without other state: durable when it returns."""
        ...

    def consume(self, how: Consumption, handler: Handler) -> AbstractAsyncContextManager[Consumer]:
        """Deliver to a handler while the block runs.

        Leaving the block drains: in-flight messages are finished or nacked, and no unhandled message is acknowledged. A
        handler that returns has handled the message. `RetryLater` nacks it with exactly its delay,
        and does not count as a failure if its cause is `LockBusy` or `BackendError`. Any other error counts, and too
        many of them end in a dead letter.
        """
        ...

    async def pending(self, subject: str, group: str) -> int:
        """How many messages wait, delivered or not."""
        ...

    async def span(self, subject: str, group: str) -> tuple[int, int] | None:
        """The places of the first and of the last message that wait, delivered or not; None: none does.

        A message keeps its place. One that comes later has a higher one, as far as the clocks of publishers agree.
        """
        ...

    def statistics(self) -> Mapping[str, int]:
        """Counts of deliveries by outcome, and of messages in flight. Reading them costs no I/O."""
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...


class Consumer(Protocol):
    """A running consumption."""

    @property
    def handling(self) -> int:
        """How many messages are being handled now."""
        ...

    def pause(self) -> None:
        """Take no more messages; those in flight continue."""
        ...

    def resume(self) -> None:
        """Take messages again."""
        ...


class Audit(Observer, Protocol):
    """Records what happens to leases and to guarded writes. The caller that made it closes it, after the plane."""

    def statistics(self) -> object:
        """What it has written and what not: a dataclass of numbers."""
        ...
