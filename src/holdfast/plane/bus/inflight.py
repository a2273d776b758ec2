"""In-flight messages of one consumer: runs handlers, then acks, nacks with a delay, or dead-letters each message.

The same for every bus; the bus passes in the messages, and how to ack and nack them.

Promises:

- Never more handlers at the same time than the concurrency. A message is settled once, after its handler has ended. It
  is acked only if the handler returned without being cancelled.
- Messages with the same key are handled one after another, in the order in which they were taken, unless the
  consumption is not `ordered`. A nacked message may be passed by later ones, and other consumers handle their own.
- A dead letter is stored before its message is dropped; if that fails, the message stays.
- `drain` lets handlers finish for a while. Then it cancels them and nacks their messages, even if a handler
  swallows the cancellation and returns normally.

Clock: the wall clock for the age of messages, the event loop's for signals of progress and for draining.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from holdfast.core.backoff import Backoff
from holdfast.core.failpoints import ARMED, areach
from holdfast.core.ports import Clock, Entropy
from holdfast.flows.log import log_event
from holdfast.plane.bus.delivery_rules import (
    DEAD_LETTER_RETRY_NS,
    Ack,
    DeadLetterDecision,
    DeliveryEnd,
    DeliveryState,
    Kind,
    Limits,
    Nack,
    before,
    decide,
    end_of,
)
from holdfast.plane.db.ports import Consumption, Handler
from holdfast.plane.model.records import Delivery
from holdfast.types import NS

Dead: TypeAlias = Callable[[Delivery, str, str], Awaitable[None]]
"""Stores a message that is not delivered again, with a reason for people and a code for programs."""

_CANCEL_LIMIT_S: Final = 5.0  # for a handler to see that it was cancelled

_log = logging.getLogger("holdfast")


@dataclass(slots=True, eq=False)
class InFlightMessage:
    """A message in flight."""

    delivery: Delivery
    handle: Any  # the bus's own
    signalled_s: float  # when the bus last heard that it is being worked on; the loop's clock
    lost: int = 0
    problem: str | None = None  # why it could not be read


Settle: TypeAlias = Callable[[InFlightMessage, Ack | Nack], Awaitable[None]]


class InFlight:
    """See the module. Belongs to one event loop."""

    def __init__(
        self,
        how: Consumption,
        handler: Handler,
        dead: Dead,
        settle: Settle,
        *,
        clock: Clock,
        entropy: Entropy,
        backoff: Backoff,
        freed: Callable[[], None],
    ) -> None:
        """`freed` is called whenever there is room for more."""
        self._how = how
        self._handler = handler
        self._dead = dead
        self._settle = settle
        self._clock = clock
        self._draw = entropy.below
        self._freed = freed
        self._limits = Limits(how.max_failures, how.max_age_ns, backoff, how.judges_lost)
        self._queue: deque[InFlightMessage] = deque()
        self._behind: dict[
            str, deque[InFlightMessage]
        ] = {}  # by key: those that wait for the one that is being handled
        self._running: dict[asyncio.Task[None], InFlightMessage] = {}
        self._count = 0
        self._draining = False
        self._stopped: set[InFlightMessage] = set()
        self.tally: Counter[str] = Counter()

    @property
    def handling(self) -> int:
        """How many handlers run."""
        return len(self._running)

    @property
    def held(self) -> int:
        """How many messages are in flight, waiting ones included."""
        return self._count

    @property
    def free(self) -> int:
        """How many more there is room for."""
        return 0 if self._draining else max(0, self._how.concurrency - self._count)

    async def take(self, messages: Sequence[InFlightMessage]) -> None:
        """Handle messages as slots become free. Messages that come while draining are nacked."""
        if self._draining:
            await self._all_back(messages)
            return
        self._count += len(messages)
        self._queue.extend(messages)
        self._start()

    def silent_since(self, before_s: float) -> list[InFlightMessage]:
        """The messages in flight without a progress signal since then; the caller signals them now."""
        waiting = (each for line in (self._queue, *self._behind.values()) for each in line)
        found = [taken for taken in (*self._running.values(), *waiting) if taken.signalled_s <= before_s]
        now_s = asyncio.get_running_loop().time()
        for taken in found:
            taken.signalled_s = now_s
        return found

    async def drain(self, grace_ns: int) -> None:
        """Finish or nack everything."""
        self._draining = True
        waiting = [taken for line in (self._queue, *self._behind.values()) for taken in line]
        for line in (self._queue, *self._behind.values()):
            line.clear()
        self._count -= len(waiting)
        await self._all_back(waiting)
        if not self._running:
            return
        _, late = await asyncio.wait([*self._running], timeout=grace_ns / NS)
        for task in late:
            self._stopped.add(self._running[task])
            task.cancel()
        if late:
            _, deaf = await asyncio.wait(late, timeout=_CANCEL_LIMIT_S)
            for task in deaf:  # it is delivered again when its time has ended
                text = "a handler does not stop when it is cancelled"
                log_event(_log, logging.WARNING, text, subject=self._how.subject, group=self._how.group)
                self._count -= self._running.pop(task, None) is not None

    async def _all_back(self, messages: Sequence[InFlightMessage]) -> None:
        for taken in messages:
            await self._settled(taken, Nack(0, counts=False), Kind.STOPPED)

    def _start(self) -> None:
        while self._queue and len(self._running) < self._how.concurrency and not self._draining:
            taken = self._queue.popleft()
            key = taken.delivery.message.key
            if key and self._how.ordered:
                if key in self._behind:
                    self._behind[key].append(taken)
                    continue
                self._behind[key] = deque()
            task = asyncio.get_running_loop().create_task(self._handled(taken))
            self._running[task] = taken
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        taken = self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_event(_log, logging.ERROR, "a message could not be settled", error, subject=self._how.subject)
        if taken is None:
            return
        self._count -= 1
        self._stopped.discard(taken)
        key = taken.delivery.message.key
        if key and self._how.ordered and (waiting := self._behind.pop(key, None)):
            self._queue.extendleft(reversed(waiting))
        self._start()
        self._freed()

    async def _handled(self, taken: InFlightMessage) -> None:
        again = taken.delivery.deliveries > 1 or taken.lost  # of a first delivery there is nothing to be judged
        verdict: Ack | Nack | DeadLetterDecision | None = before(self._standing(taken), self._limits) if again else None
        end = DeliveryEnd(Kind.STOPPED)
        try:
            if verdict is None:
                end = await self._outcome(taken)
                handled = end.kind is Kind.HANDLED
                verdict = Ack() if handled else decide(end, self._standing(taken), self._limits, self._draw)
            if isinstance(verdict, DeadLetterDecision):
                verdict = await self._buried(taken, verdict)
        except asyncio.CancelledError:
            end, verdict = DeliveryEnd(Kind.STOPPED), Nack(0, counts=False)
        await self._settled(taken, verdict, end.kind)

    async def _outcome(self, taken: InFlightMessage) -> DeliveryEnd:
        """Run the handler. Raises `CancelledError` only if the consumer is to stop."""
        if taken.problem is not None:
            return DeliveryEnd(Kind.UNREADABLE, text=taken.problem)
        try:
            await self._handler(taken.delivery)
            end = end_of(None)
        except asyncio.CancelledError as error:
            if self._told_to_stop():
                raise
            end = DeliveryEnd(Kind.ERROR, text=f"something that the handler waited for was cancelled {error}".rstrip())
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is an outcome
            end = end_of(error)
            if end.kind is Kind.ERROR:
                told = {"subject": self._how.subject, "message": taken.delivery.message.id}
                log_event(_log, logging.WARNING, "a handler failed", error, **told)
        return DeliveryEnd(Kind.STOPPED) if taken in self._stopped else end

    def _told_to_stop(self) -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    async def _buried(self, taken: InFlightMessage, letter: DeadLetterDecision) -> Ack | Nack:
        try:
            if self._how.on_dead is not None:
                await self._how.on_dead(taken.delivery, letter.reason, str(letter.code))
            await self._dead(taken.delivery, letter.reason, str(letter.code))
        except Exception as error:  # noqa: BLE001 - whatever it is, the message must not be lost with it
            told = {"subject": self._how.subject, "message": taken.delivery.message.id}
            log_event(_log, logging.ERROR, "a dead letter could not be written; it is tried again", error, **told)
            self.tally["burials_failed"] += 1
            return Nack(DEAD_LETTER_RETRY_NS, counts=False)
        self.tally["dead"] += 1
        return Ack()

    async def _settled(self, taken: InFlightMessage, verdict: Ack | Nack, kind: Kind) -> None:
        self.tally[str(kind)] += 1
        if ARMED:
            await areach("plane.bus.settle")
        await self._settle(taken, verdict)

    def _standing(self, taken: InFlightMessage) -> DeliveryState:
        delivery = taken.delivery
        since_ns = max(delivery.first_ns, delivery.message.not_before_ns)
        age_ns = max(0, self._clock.now().wall - since_ns)
        return DeliveryState(delivery.deliveries, delivery.failures, age_ns, taken.lost)
