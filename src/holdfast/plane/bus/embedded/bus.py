"""The bus in the database of the plane: its rows are the queue, and nothing else has to run.

Promises: each message is delivered at least once to each group of its subject, and never if the transaction that staged
it was undone. A message id is one message for as long as it is there and for `KEEP_NS` after it was handled. The
highest priority goes first, then the oldest. Consumers are woken by the commit that stages a message; the look at the
clock every `poll_ns` is only for hints that were lost. A message whose consumer is not heard of for `ack_wait` is
delivered again; one that is being handled is not, however long that takes. A claim costs the same whether few or many
messages wait, are due later, or are done.

Does not promise an order across consumers, or of a nacked message: a later one of its key may pass it.

Clock: the wall clock that is passed in, for what is due and for ages. Where several hosts share a database, a
difference between their clocks shifts when a silent consumer's message is delivered again, and nothing else: the second
handler of a message is what fences are for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from holdfast.core.backoff import Backoff
from holdfast.core.failpoints import ARMED, areach
from holdfast.core.ports import Clock, Entropy
from holdfast.errors import BackendError, BadInput, Closed
from holdfast.plane.bus.delivery_rules import ERROR_BACKOFF
from holdfast.plane.bus.embedded.consumer import EmbeddedConsumer, channel_of
from holdfast.plane.bus.envelope import check_subject, rows_of
from holdfast.plane.bus.failure_counts import KEPT_NS
from holdfast.plane.bus.inflight import Dead
from holdfast.plane.bus.subscription import check_consumption
from holdfast.plane.db.batcher import Batcher, finished
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.ports import Consumer, Consumption, Database, Handler, Tx
from holdfast.plane.db.statements import put_many, script
from holdfast.plane.model.messages import STOP
from holdfast.plane.model.records import Message
from holdfast.types import NS

KEEP_NS: Final = 180 * NS
POLL_NS: Final = 5 * NS
GRACE_NS: Final = 20 * NS
STOP_KEPT_NS: Final = 3600 * NS  # a message that is left by then is for a worker that is gone

_SWEEP_EVERY_NS: Final = 20 * NS
_SWEEP_MOST: Final = 1000
_CLOSED: Final = "this bus is closed; open another"


class EmbeddedBus:
    """See `ports.Bus`. `prepare` makes its tables; the database is the caller's, who closes it after the bus."""

    def __init__(
        self,
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

        `grace_ns`: how long handlers may continue when their consumer ends.
        """
        self._database = database
        self._clock = clock
        self._entropy = entropy
        self._dead = dead
        self._backoff = backoff
        self._poll_ns = poll_ns
        self._grace_ns = grace_ns
        self._pending = script("bus_pending", database.dialect)
        self._span = script("bus_positions", database.dialect)
        self._place = 0
        self._consumers: set[EmbeddedConsumer] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._closed = False
        self._tally: Counter[str] = Counter()
        self._publications: Batcher[Sequence[Message], None] = Batcher(self._publish)

    async def prepare(self) -> None:
        """Make the tables if they are not there."""
        await prepare(self._database, "bus_schema")

    @property
    def prompt(self) -> bool:
        """See `ports.Bus`. What is committed can be claimed."""
        return True

    @property
    def within(self) -> bool:
        """See `ports.Bus`."""
        return True

    async def stage(self, tx: Tx, messages: Sequence[Message]) -> None:
        """See `ports.Bus`. An id that is known already stays the message that it is."""
        rows = rows_of(messages, now_ns := self._clock.now().wall)
        for row in rows:
            row["place"] = self._place = max(now_ns, self._place + 1)
            row["state"] = int(row["not_before_ns"] > now_ns)
            tx.notify(channel_of(row["subject"], row["recipient"]))
        await put_many(tx, "bus_insert", rows)

    async def publish(self, messages: Sequence[Message]) -> None:
        """See `ports.Bus`."""
        self._check_open()
        await self._publications.ask(messages)

    async def _publish(self, batch: Sequence[Sequence[Message]]) -> Sequence[None]:
        """Publish what several callers have, in one transaction."""
        messages = [message for each in batch for message in each]
        if ARMED:
            await areach("plane.bus.publish")
        await self._database.write(lambda tx: self.stage(tx, messages))
        if ARMED:
            await areach("plane.bus.published")
        return [None] * len(batch)

    def consume(self, how: Consumption, handler: Handler) -> AbstractAsyncContextManager[Consumer]:
        """See `ports.Bus`."""
        self._check_open()
        return self._consuming(check_consumption(how), handler)

    async def pending(self, subject: str, group: str) -> int:
        """See `ports.Bus`."""
        self._check_open()
        check_subject(subject)
        where = {"subject": subject, "recipient": group}
        rows = await self._database.read(lambda tx: tx.query(self._pending, where))
        return int(rows[0]["number"])

    async def span(self, subject: str, group: str) -> tuple[int, int] | None:
        """See `ports.Bus`."""
        self._check_open()
        check_subject(subject)
        where = {"subject": subject, "recipient": group}
        [row] = await self._database.read(lambda tx: tx.query(self._span, where))
        return None if row["first_place"] is None else (row["first_place"], row["last_place"])

    def statistics(self) -> dict[str, int]:
        """Counts of deliveries by outcome, and of messages in flight."""
        total = Counter(self._tally)
        for consumer in self._consumers:
            total.update(consumer.tally)
        return {**total, "handling": sum(each.handling for each in self._consumers)}

    async def close(self) -> None:
        """End the sweeper. Consumers are ended by leaving their blocks."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
            self._sweeping = None

    @asynccontextmanager
    async def _consuming(self, how: Consumption, handler: Handler) -> AsyncIterator[Consumer]:
        consumer = EmbeddedConsumer(
            self._database,
            how,
            handler,
            self._needed_dead(),
            clock=self._clock,
            entropy=self._entropy,
            backoff=self._backoff,
            poll_ns=self._poll_ns,
            keep_ns=KEEP_NS,
        )
        consumer.start()
        self._consumers.add(consumer)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep_forever())
        try:
            yield consumer
        finally:
            try:
                await finished(consumer.drain(self._grace_ns))
            finally:
                self._consumers.discard(consumer)
                self._tally.update(consumer.tally)

    def _needed_dead(self) -> Dead:
        if self._dead is None:
            raise BadInput("dead", "is missing", "open the bus with a place for dead letters before you consume")
        return self._dead

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(_CLOSED)

    # Forgetting.

    async def sweep(self) -> int:
        """Delete messages that were done long ago or have expired. Returns how many."""
        statement = script("bus_sweep", self._database.dialect)
        expire = script("bus_expire", self._database.dialect)
        now_ns = self._clock.now().wall
        stop = {"low": f"{STOP}.", "high": f"{STOP}/", "before_ns": now_ns - STOP_KEPT_NS}
        await self._database.write(lambda tx: tx.query(expire, stop))
        forget = script("failure_sweep", self._database.dialect)  # nacked runs: see `staleness`
        await self._database.write(lambda tx: tx.query(forget, {"before_ns": now_ns - KEPT_NS}))
        done = {"now_ns": now_ns, "most": _SWEEP_MOST}
        gone, last = 0, _SWEEP_MOST
        while last == _SWEEP_MOST:  # ends when little is left; done messages come in no faster than they are handled
            last = len(await self._database.write(lambda tx: tx.query(statement, done)))
            gone += last
        return gone

    async def _sweep_forever(self) -> None:
        while True:  # ends by cancellation
            await asyncio.sleep((_SWEEP_EVERY_NS // 2 + self._entropy.below(_SWEEP_EVERY_NS)) / NS)
            with contextlib.suppress(BackendError):
                await self.sweep()
