"""One consumer of the embedded bus: in turns, it settles handled messages and claims as many as it has slots for.

A turn is one transaction: acks, nacks, progress signals and a claim share it, and messages that finish during a turn
are settled by the next. So the busier it is, the more messages share a
commit. A turn that fails is repeated with everything that belongs to it; nothing is acknowledged twice, because a claim
is named by its delivery number. What a consumer wants done with each claim (`Along`) is part of the transaction.

Clock: the wall clock that is passed in, for what is due; the event loop's, for when to look.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from holdfast.core.backoff import Backoff
from holdfast.core.failpoints import ARMED, areach
from holdfast.core.ports import Clock, Entropy
from holdfast.flows.log import OutageLog, log_event
from holdfast.plane.bus.delivery_rules import Ack, Nack
from holdfast.plane.bus.envelope import Unreadable, message_of, unreadable_row
from holdfast.plane.bus.inflight import Dead, InFlight, InFlightMessage
from holdfast.plane.db.ports import Along, ChannelListener, Consumption, Database, Handler, Row, Tx
from holdfast.plane.db.statements import put_many, script
from holdfast.plane.model.records import Delivery
from holdfast.types import MS, NS

_PROMOTE_MOST: Final = 1000
_REST_MIN_NS: Final = MS  # when something is due that another process is just changing
_AGAIN_NS: Final = 500 * MS  # after a turn that failed
_LAST_TURNS: Final = 3  # that are tried when the consumer ends
_SOON_NS: Final = 50 * MS  # nacks with less delay are for other consumers, which have to know when they are due
_LATE_S: Final = 5.0  # for the turn that is under way then

_log = logging.getLogger("holdfast")


def channel_of(subject: str, group: str) -> str:
    """Where the consumers of a queue listen."""
    return f"bus:{group}:{subject}"


class _Settlement(NamedTuple):
    taken: InFlightMessage
    verdict: Ack | Nack
    at_ns: int  # when it was nacked: delays count from then, not from the write


class _Found(NamedTuple):
    rows: Sequence[Row]
    next_ns: int | None  # when the next one is due; None: unknown, or none will be


class EmbeddedConsumer:
    """See `ports.Consumer`."""

    def __init__(
        self,
        database: Database,
        how: Consumption,
        handler: Handler,
        dead: Dead,
        *,
        clock: Clock,
        entropy: Entropy,
        backoff: Backoff,
        poll_ns: int,
        keep_ns: int,
    ) -> None:
        self._database = database
        self._how = how
        self._clock = clock
        self._entropy = entropy
        self._poll_ns = poll_ns
        self._keep_ns = keep_ns
        self._in_flight = InFlight(
            how, handler, dead, self._settle, clock=clock, entropy=entropy, backoff=backoff, freed=self._wakened
        )
        self._settled: list[_Settlement] = []
        self._may_have_more = True  # whether there may be something to claim
        self._next_ns: int | None = 0  # when the next message is due, as far as is known
        self._paused = False
        self._ending = False
        self._wake = asyncio.Event()
        self._claimed_s = 0.0  # when something was claimed, or could have been
        kind = "_several" if how.also else ""  # of one subject, the index alone gives the order
        names = {each: f"bus_{each}{kind}" for each in ("claim", "promote", "next_due")}
        names |= {each: f"bus_{each}" for each in ("nack", "extend")}
        self._sql = {each: script(name, database.dialect) for each, name in names.items()}
        self._queue = {"recipient": how.group, "subject": how.subject, "subjects": json.dumps(how.subjects)}
        self._listeners: list[ChannelListener] = []

    @property
    def handling(self) -> int:
        """See `ports.Consumer`."""
        return self._in_flight.handling

    @property
    def tally(self) -> Counter[str]:
        """The outcome of deliveries."""
        return self._in_flight.tally

    def pause(self) -> None:
        """See `ports.Consumer`."""
        self._paused = True

    def resume(self) -> None:
        """See `ports.Consumer`."""
        self._paused = False
        self._may_have_more = True
        self._wakened()

    def start(self) -> None:
        """Begin to take messages."""
        loop = asyncio.get_running_loop()
        for subject in self._how.subjects:
            listener = self._database.listen(channel_of(subject, self._how.group))
            listener.each(self._notified)
            self._listeners.append(listener)
        self._turning = loop.create_task(self._turns())

    async def drain(self, grace_ns: int) -> None:
        """Take no more, let handlers finish for a while, give back the rest, and tell the database."""
        self._ending = True
        await self._in_flight.drain(grace_ns)
        self._wakened()
        _, late = await asyncio.wait([self._turning], timeout=_LATE_S + _LAST_TURNS * _AGAIN_NS / NS)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        for listener in self._listeners:
            listener.close()
        if self._settled:
            text = "messages could not be settled, and will be delivered again"
            log_event(_log, logging.WARNING, text, subject=self._how.subject, messages=len(self._settled))

    # Hints.

    def _wakened(self) -> None:
        self._wake.set()

    def _notified(self) -> None:
        self._may_have_more = True
        self._wakened()

    async def _settle(self, taken: InFlightMessage, verdict: Ack | Nack) -> None:
        # Starts no turn: the slot is free in a moment, and one turn settles and claims together.
        self._settled.append(_Settlement(taken, verdict, self._clock.now().wall))

    # Turns.

    async def _turns(self) -> None:
        failed = 0
        trouble = OutageLog(_log, "a queue does not answer", "a queue answers again", subject=self._how.subject)
        while not self._over(failed):
            self._wake.clear()
            try:
                more = await self._turn()
                failed = 0
                trouble.ended()
            except Exception as error:  # noqa: BLE001 - in any case in-flight messages go on, and are settled later
                failed += 1
                trouble.met(error)
                await asyncio.sleep((_AGAIN_NS // 2 + self._entropy.below(_AGAIN_NS // 2)) / NS)
                continue
            if not more and not self._over(failed):
                await self._rest()

    def _over(self, failed: int) -> bool:
        over = self._ending and not self._in_flight.held and (not self._settled or failed >= _LAST_TURNS)
        return over and not self._in_flight.handling

    async def _rest(self) -> None:
        """Wait until there is something to do."""
        loop = asyncio.get_running_loop()
        waits = [self._poll_ns / NS]
        if self._in_flight.held:
            waits.append(self._signal_s)
        if self._next_ns is not None and not self._paused and self._in_flight.free:
            waits.append(max(_REST_MIN_NS, self._next_ns - self._clock.now().wall) / NS)
        timer = loop.call_later(min(waits), self._wakened)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    @property
    def _signal_s(self) -> float:
        """How often the database is told that a message is being worked on."""
        return self._how.ack_wait_ns / NS / 3

    async def _turn(self) -> bool:
        """Run one transaction, if there is work. Returns whether there may be more immediately."""
        now_ns = self._clock.now().wall
        loop_s = asyncio.get_running_loop().time()
        due = self._next_ns is not None and self._next_ns <= now_ns
        self._may_have_more = (
            self._may_have_more or loop_s - self._claimed_s >= self._poll_ns / NS
        )  # a hint may have been lost
        most = 0 if self._paused or self._ending or not (self._may_have_more or due) else self._in_flight.free
        silent = self._in_flight.silent_since(loop_s - self._signal_s) if self._in_flight.held else []
        settled, self._settled = self._settled, []
        if not (most or settled or silent):
            return False
        if most:
            self._may_have_more, self._claimed_s = False, loop_s  # a notification from here on is for the next turn
        try:
            if ARMED:
                await areach("plane.bus.claim")
            along = self._how.along if most and self._how.along is not None and self._how.along.ready else None
            lasting = self._how.lasting or along is not None
            found = await self._database.write(
                lambda tx: self._work(tx, settled, silent, most, now_ns, due, along), lasting=lasting
            )
            if ARMED:
                await areach("plane.bus.claimed")
        except BaseException:
            self._settled = settled + self._settled
            self._may_have_more = True
            for taken in silent:
                taken.signalled_s = loop_s - self._signal_s
            if self._how.along is not None:
                self._how.along.undone()
            raise
        if along is not None:
            along.done()
        if most:
            await self._in_flight.take([self._taken(row, loop_s) for row in found.rows])
            self._may_have_more = self._may_have_more or len(found.rows) == most
            self._next_ns = found.next_ns
        self._remember(settled)
        return bool(self._settled) or (
            self._may_have_more and self._in_flight.free > 0 and not self._paused and not self._ending
        )

    async def _work(
        self,
        tx: Tx,
        settled: Sequence[_Settlement],
        silent: Sequence[InFlightMessage],
        most: int,
        now_ns: int,
        due: bool,
        along: Along | None,
    ) -> _Found:
        acks = [self._named(each.taken, now_ns + self._keep_ns) for each in settled if isinstance(each.verdict, Ack)]
        nacks = [self._nack_values(each, each.verdict) for each in settled if isinstance(each.verdict, Nack)]
        await put_many(tx, "bus_ack", acks)
        if nacks:
            await tx.query_many(self._sql["nack"], nacks)
            for subject in self._given_away(settled, now_ns):
                tx.notify(channel_of(subject, self._how.group))  # another consumer may be free
        if silent:
            await tx.query_many(self._sql["extend"], [self._named(each, self._until(now_ns)) for each in silent])
        if not most:
            return _Found((), None)
        queue = self._queue
        if due:
            await tx.query(self._sql["promote"], {**queue, "now_ns": now_ns, "most": _PROMOTE_MOST})
        rows = await tx.query(self._sql["claim"], {**queue, "due_ns": self._until(now_ns), "most": most})
        rows.sort(key=lambda row: (-row["priority"], row["place"]))
        if along is not None:
            await along.work(tx, [row["message_key"] for row in rows])
        if len(rows) == most and not due:
            return _Found(rows, self._next_ns)
        return _Found(rows, (await tx.query(self._sql["next_due"], queue))[0]["due_ns"])

    def _given_away(self, settled: Sequence[_Settlement], now_ns: int) -> set[str]:
        """The subjects of messages that other consumers should take soon."""
        return {
            each.taken.delivery.message.subject
            for each in settled
            if isinstance(each.verdict, Nack)
            and (self._ending or each.at_ns + each.verdict.delay_ns < now_ns + _SOON_NS)
        }

    def _remember(self, settled: Sequence[_Settlement]) -> None:
        """Remember when nacked messages are due, without a query."""
        for each in settled:
            if isinstance(each.verdict, Nack):
                due_ns = each.at_ns + each.verdict.delay_ns
                self._next_ns = due_ns if self._next_ns is None else min(self._next_ns, due_ns)
                self._may_have_more = self._may_have_more or not each.verdict.delay_ns

    def _until(self, now_ns: int) -> int:
        return now_ns + self._how.ack_wait_ns

    def _named(self, taken: InFlightMessage, due_ns: int) -> dict[str, Any]:
        delivery = taken.delivery
        return {
            "id": delivery.message.id,
            "recipient": self._how.group,
            "deliveries": delivery.deliveries,
            "due_ns": due_ns,
        }

    def _nack_values(self, each: _Settlement, verdict: Nack) -> dict[str, Any]:
        return {
            **self._named(each.taken, each.at_ns + verdict.delay_ns),
            "state": 1 if verdict.delay_ns else 0,
            "failed": int(verdict.counts),
            "excused": int(not verdict.counts),
        }

    def _taken(self, row: Row, now_s: float) -> InFlightMessage:
        try:
            message, problem = message_of(row), None
        except Unreadable as error:
            message, problem = unreadable_row(row), str(error)
        delivery = Delivery(message, self._how.group, row["deliveries"], row["failures"], row["first_ns"])
        lost = row["deliveries"] - 1 - row["failures"] - row["excused"]
        return InFlightMessage(delivery, None, now_s, lost, problem)
