"""The bus on NATS JetStream, for a fleet. Messages are staged in the plane's database and relayed from there.

Promises: each message is delivered at least once to each group of its subject, and never if the transaction that staged
it was undone. A staged message survives the death of its process, of the server and of the connection; `publish` has
stored its messages when it returns, and raises `Unavailable` or `Timeout` when the server does not answer. Duplicates
of an id are dropped for two minutes, which is the window of the stream, and while the message is staged. Consumers
resume automatically when the server answers again.

Does not promise to survive a loss of power: by default the server acknowledges a message before it is on the disk
(`sync_interval` in its configuration). Use replicas or `sync_interval: always` if that matters.

Order: the messages of a key enter the stream in the order in which one process staged them. A consumer handles those of
a key one after another, in the order of the stream. Later messages pass a nacked one, and the order among several
consumers is undefined. NATS ignores priorities.

The parts: `bus.outbox` (from the database to the stream), `connection`, `naming`, `consumer`, `stores.nats.acks`,
`bus.failure_counts`.

Clock: the wall clock that is passed in for what is staged, the server's for delays, the event loop's for time limits.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import nats.js.errors

from holdfast.core.backoff import Backoff
from holdfast.core.ports import Clock, Entropy
from holdfast.errors import BadInput, Closed, HoldfastError, Misconfigured
from holdfast.flows.log import log_event
from holdfast.plane.bus.delivery_rules import ERROR_BACKOFF, DeadLetterCode
from holdfast.plane.bus.envelope import check_subject, message_of, rows_of, wire_of
from holdfast.plane.bus.failure_counts import NatsFailures
from holdfast.plane.bus.inflight import Dead
from holdfast.plane.bus.nats.connection import NatsConnection
from holdfast.plane.bus.nats.consumer import NatsConsumer
from holdfast.plane.bus.outbox import POLL_NS, PlaneOutbox, key_of, waves
from holdfast.plane.bus.subscription import check_consumption
from holdfast.plane.db.batcher import Batcher, Failed, answered, finished
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.ports import Consumer, Consumption, Database, Handler, Row, Tx
from holdfast.plane.db.statements import script
from holdfast.plane.model.messages import STOP
from holdfast.plane.model.records import Delivery, Message
from holdfast.stores.nats.acks import Outgoing
from holdfast.types import NS

GRACE_NS: Final = 20 * NS
STOP_KEPT_S: Final = 3600  # a message that is left by then is for a worker that is gone

_CLOSED: Final = "this bus is closed; open another"

_log = logging.getLogger("holdfast")


class NatsBus:
    """See `ports.Bus`. `prepare` comes first; the database is the caller's, who closes it after the bus."""

    def __init__(
        self,
        connection: NatsConnection,
        database: Database,
        clock: Clock,
        entropy: Entropy,
        *,
        dead: Dead | None = None,
        backoff: Backoff = ERROR_BACKOFF,
        poll_ns: int = POLL_NS,
        grace_ns: int = GRACE_NS,
    ) -> None:
        """`dead` is told of dead letters, and needed to consume; `backoff` is for errors without a delay of their own.

        `poll_ns`: how often to read messages that were staged and not published; `grace_ns`: how long
        handlers may continue when their consumer ends.
        """
        self._connection = connection
        self._database = database
        self._clock = clock
        self._entropy = entropy
        self._dead = dead
        self._backoff = backoff
        self._grace_ns = grace_ns
        self._outbox = PlaneOutbox(database, clock, entropy, self._send, look_ns=poll_ns)
        self._failures = NatsFailures(database, clock)
        self._consumers: set[NatsConsumer] = set()
        self._prepared = False
        self._closed = False
        self._tally: Counter[str] = Counter()
        self._publications: Batcher[Row, None] = Batcher(self._publish, apart=key_of)

    async def prepare(self) -> None:
        """Make the tables if they are not there, and begin to relay. The server need not be there yet."""
        self._check_open()
        await prepare(self._database, "bus_schema")
        await self._failures.sweep()
        self._prepared = True
        self._outbox.start()

    @property
    def prompt(self) -> bool:
        """See `ports.Bus`."""
        return self._outbox.prompt

    @property
    def within(self) -> bool:
        """See `ports.Bus`."""
        return False

    async def stage(self, tx: Tx, messages: Sequence[Message]) -> None:
        """See `ports.Bus`."""
        if not self._prepared:
            raise Misconfigured("this bus does not relay yet: call `prepare` first")
        await self._outbox.stage(tx, messages)

    async def publish(self, messages: Sequence[Message]) -> None:
        """See `ports.Bus`. What is for later is staged in the database."""
        self._check_open()
        rows = rows_of(messages, now_ns := self._clock.now().wall)
        later = [each for each in messages if each.not_before_ns > now_ns]
        if later:
            await self._database.write(lambda tx: self.stage(tx, later))
        for wave in waves([row for row in rows if row["not_before_ns"] <= now_ns]):
            for outcome in await self._publications.ask_all(wave):
                if isinstance(outcome, Failed):
                    raise outcome.error

    def consume(self, how: Consumption, handler: Handler) -> AbstractAsyncContextManager[Consumer]:
        """See `ports.Bus`. Also while the server is gone: messages come when it is back."""
        self._check_open()
        return self._consuming(check_consumption(how), handler)

    async def pending(self, subject: str, group: str) -> int:
        """See `ports.Bus`. A message that is just being relayed may be counted twice."""
        staged = await self._staged(subject, group)
        name = self._connection.names.subject(group, subject)
        context = await self._connection.stream()
        with self._connection.errors():
            try:
                info = await context.stream_info(self._connection.names.stream, subjects_filter=name)
            except nats.js.errors.NotFoundError:
                self._connection.forget_stream()
                return staged
        return staged + (info.state.subjects or {}).get(name, 0)

    async def span(self, subject: str, group: str) -> tuple[int, int] | None:
        """See `ports.Bus`. The places are those of the stream, which one server gives. What is staged has none: 0."""
        staged = await self._staged(subject, group)
        names, context = self._connection.names, await self._connection.stream()
        name = names.subject(group, subject)
        with self._connection.errors():
            try:
                first = await context.get_msg(names.stream, seq=1, subject=name, next=True)
                last = await context.get_msg(names.stream, subject=name)
            except nats.js.errors.NotFoundError:  # no message, or the last one was done while we asked
                return (0, 0) if staged else None
        return 0 if staged else first.seq or 0, last.seq or 0

    async def _staged(self, subject: str, group: str) -> int:
        self._check_open()
        check_subject(subject)
        statement = script("outbox_pending", self._database.dialect)
        where = {"subject": subject, "recipient": group}
        staged = await self._database.read(lambda tx: tx.query(statement, where))
        return int(staged[0]["number"])

    def statistics(self) -> dict[str, int]:
        """Counts of deliveries by outcome, of messages in flight, and of relayed rows."""
        total = Counter(self._tally)
        for consumer in self._consumers:
            total.update(consumer.tally)
        handling = sum(each.handling for each in self._consumers)
        return {**total, "handling": handling, "relayed": self._outbox.published}

    async def close(self) -> None:
        """Stop relaying, and close the connection. Consumers are ended by leaving their blocks."""
        self._closed = True
        await self._outbox.close()
        await self._connection.close()

    @asynccontextmanager
    async def _consuming(self, how: Consumption, handler: Handler) -> AsyncIterator[Consumer]:
        if self._dead is None:
            raise BadInput("dead", "is missing", "open the bus with a place for dead letters before you consume")
        consumer = NatsConsumer(
            self._connection,
            self._failures,
            how,
            handler,
            self._dead,
            clock=self._clock,
            entropy=self._entropy,
            backoff=self._backoff,
        )
        consumer.start()
        self._consumers.add(consumer)
        try:
            yield consumer
        finally:
            try:
                await finished(consumer.drain(self._grace_ns))
            finally:
                self._consumers.discard(consumer)
                self._tally.update(consumer.tally)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(_CLOSED)

    # To the server.

    async def _publish(self, rows: Sequence[Row]) -> Sequence[Failed | None]:
        """Publish rows whose keys all differ, in one batch. Each has its own result."""
        outcomes = await self._connection.publish([self._outgoing(row) for row in rows])
        return [None if outcome is None else Failed(outcome) for outcome in outcomes]

    def _outgoing(self, row: Row) -> Outgoing:
        data, headers = wire_of(row)
        if row["subject"].partition(".")[0] == STOP:
            headers["Nats-TTL"] = str(STOP_KEPT_S)
        return Outgoing(self._connection.names.subject(row["recipient"], row["subject"]), data, headers)

    async def _send(self, rows: Sequence[Row]) -> Sequence[Row]:
        """See `outbox.Send`."""
        done: list[Row] = []
        for row, outcome in zip(rows, await answered(self._publish, rows), strict=True):
            if outcome is None or (isinstance(outcome.error, BadInput) and await self._too_large(row, outcome.error)):
                done.append(row)
            elif not isinstance(outcome.error, HoldfastError):
                raise outcome.error
            else:
                log_event(_log, logging.INFO, "a message stays in the outbox for now", outcome.error, message=row["id"])
        return done

    async def _too_large(self, row: Row, error: BadInput) -> bool:
        """A message that the server can never take is a dead letter. Whether that could be told."""
        if self._dead is None:
            return False
        delivery = Delivery(message_of(row), row["recipient"], 0, 0, row["first_ns"])
        try:
            await self._dead(delivery, str(error), str(DeadLetterCode.TOO_LARGE))
        except Exception as caught:  # noqa: BLE001 - whatever it is, the message must not be lost with it
            log_event(
                _log, logging.ERROR, "a dead letter could not be written; it is tried again", caught, message=row["id"]
            )
            return False
        return True
