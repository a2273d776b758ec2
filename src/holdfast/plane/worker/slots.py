"""The places of one worker in one pool: who may be let in, what runs there now, and what will not go away.

Promises: never more attempts at once than there are places, and never more of one topic than it allows; a function that
does not stop keeps its place until it has ended, and the worker announces, and takes, fewer meanwhile. What is not let
in goes back to the scheduler, and has cost no attempt; or, for a while, to the bus, if the scheduler has counted that
another worker has a place of its topic. What has waited for a while is looked up before it is begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from holdfast.errors import BackendError, RetryLater
from holdfast.flows.log import say
from holdfast.plane.app import App, JobFunction
from holdfast.plane.db.ports import Along, Consumer
from holdfast.plane.model.assignment import Assignment, order_of
from holdfast.plane.model.messages import work_subject
from holdfast.plane.model.records import Delivery, Heartbeat, Message
from holdfast.plane.worker.attempt import Attempt, NotHere, Workplace
from holdfast.plane.worker.executor import Interruption
from holdfast.plane.worker.hand_back import give_back
from holdfast.plane.worker.staleness import LATE_NS
from holdfast.types import MS, NS

ROOM_NS: Final = 100 * MS
"""For so long an attempt waits here for others of its topic, which are over at once."""

PASSES_MAX: Final = 16
PASS_NS: Final = 15 * MS
"""For so long, and up to twice as long, nobody gets what is passed on; others are then as quick as whoever did so."""

_log: Final = logging.getLogger("holdfast.plane.worker")


class WorkerPool:
    """One pool of one worker."""

    def __init__(
        self, app: App, pool: str, places: int, workplace: Workplace, announce: Callable[[], None] = lambda: None
    ) -> None:
        """`announce` is called when there is news for the registry."""
        self._announce = announce
        self._app = app
        self._place = workplace
        self.pool = pool
        self.places = places
        self.draining = False
        self.interrupted = 0  # attempts that were running when the time to finish them was over
        self.attempts: dict[Attempt, None] = {}  # in the order in which they were let in
        self._stuck: Counter[str] = Counter()  # by topic
        self._consumer: Consumer | None = None
        self._left = asyncio.Event()  # an attempt is over
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def worker(self) -> str:
        """How this worker is known in this pool."""
        return self._place.worker

    @property
    def stuck(self) -> int:
        """How many functions run on although they were told to stop."""
        return self._stuck.total()

    def open(self, consumer: Consumer) -> None:
        """Messages come from here."""
        self._consumer = consumer
        self._adjust()

    def drain(self) -> None:
        """Take nothing more."""
        self.draining = True
        self._adjust()

    async def empty(self) -> None:
        """Return when no attempt is being made."""
        await self._empty.wait()

    def interrupt(self, within_ns: int) -> None:
        """The time to finish is over: stop what still runs, and wait for that no longer than so."""
        self.interrupted += len(self.attempts)
        for attempt in self.attempts:
            attempt.interrupt(Interruption.DRAINED, "its worker is ending")
            if attempt.execution is not None:
                attempt.execution.hasten(within_ns)

    @property
    def along(self) -> Along:
        """What is done with the claim of messages."""
        return self._place.desk.claimed

    def close(self) -> None:
        """No message will come any more."""
        self._place.desk.claimed.close()

    async def handle(self, delivery: Delivery) -> None:
        """One attempt, from the queue of its topic or from the shared queue of the pool."""
        try:
            await self._handle(delivery)
        finally:
            await self._place.desk.claimed.leave(delivery.message.key)

    async def _handle(self, delivery: Delivery) -> None:
        place, order = self._place, order_of(delivery.message)
        if self.draining:
            place.statistics.turned_away += 1
            raise RetryLater(0.0, NotHere(f"worker {place.worker} is ending"))
        known = place.finished.get(order.name)
        if known is not None and await self._repeated(order, known):
            return
        job = self._app.functions.get(order.topic)
        if job is None:
            place.statistics.refused += 1
            await give_back(place, order, f"worker {place.worker} does not know {order.topic}")
            return
        if not self._room_for(job) and not await self._room_soon(job):
            if order.counted and delivery.deliveries <= PASSES_MAX:
                place.statistics.passed_on += 1
                delay_ns = PASS_NS + place.entropy.below(PASS_NS)
                raise RetryLater(delay_ns / NS, NotHere(f"another worker has a place for {order.topic}"))
            place.statistics.full += 1
            await give_back(place, order, f"worker {place.worker} has no place for another {order.topic}")
            return
        late = abs(place.clock.now().wall - order.at_ns) > LATE_NS  # or the clocks disagree: see `currency`
        again = known is not None or delivery.deliveries > 1
        await self._make(Attempt(place, order, job, delivery, may_be_over=late or again), job)

    async def stop(self, delivery: Delivery) -> None:
        """One message on `stop.<worker>`. What is not here any more has nothing to stop.

        If it names a fence, it means the run under that fence, and not a later one of the same attempt.
        """
        body = delivery.message.body
        fence = body.get("run_fence")
        for attempt in self.attempts:
            order = attempt.order
            if (order.job, order.attempt) != (body.get("job"), body.get("attempt")):
                continue
            if fence not in (None, attempt.run_fence):
                continue
            attempt.interrupt(Interruption.STOPPED, f"stopped: {body.get('reason') or 'no reason was given'}")

    def heartbeat(self, at_ns: int, host: str, pid: int) -> Heartbeat:
        """What this worker says about itself in this pool: a place that is blocked is none, and nobody is at work."""
        return Heartbeat(
            worker=self.worker,
            pool=self.pool,
            topics=self._app.topics(self.pool),
            capacity=self.places - self.stuck,
            active=len(self.attempts),
            at_ns=at_ns,
            draining=self.draining,
            host=host,
            pid=pid,
            places=self._scarce(),
            by_topic=True,
        )

    @property
    def subjects(self) -> tuple[str, ...]:
        """The queues that it takes attempts from: the shared one of the pool, and one for each topic."""
        pool = self.pool
        return (work_subject(pool), *(work_subject(pool, topic) for topic in self._app.topics(pool)))

    def _scarce(self) -> dict[str, int]:
        """The places of topics that have fewer than there are here. When it is leaving: what it still has of each."""
        most = {topic: self._app.functions[topic].max_concurrency for topic in self._app.topics(self.pool)}
        if self.draining:
            running = Counter(each.order.topic for each in self.attempts)
            return {topic: running[topic] for topic in most}
        fewer = {topic: places for topic, places in most.items() if places is not None and places < self.places}
        return {topic: max(0, places - self._stuck[topic]) for topic, places in fewer.items()}

    async def _repeated(self, order: Assignment, known: Message) -> bool:
        """Say the result of an attempt once more, unless nobody wants it. False: it has to be run again.

        So it is when another worker has spoken of it since: our result came after that, and counts no more. That worker
        is at it, which our lease will find out, or was lost; then repeating the result would keep the attempt from ever
        being finished. What is said once more is another message, one for each time that the attempt was sent: our
        first word may have come while the job was taken back, and a bus would drop the same word.
        """
        place = self._place
        try:
            if place.currency is not None and known.fence is not None:
                now_ns = place.clock.now().wall
                look = await place.currency.look(order.name, known.fence.fence, now_ns, order.fence)
                if not look.wanted:
                    place.statistics.outdated += 1
                    return True
                if look.overtaken:
                    place.finished.forget(order.name)
                    return False
            await place.bus.publish([replace(known, id=f"{known.id}:{order.fence or 0}")])
        except BackendError as error:
            place.statistics.unreachable += 1
            raise place.later(error) from error
        place.statistics.repeated += 1
        return True

    async def _make(self, attempt: Attempt, job: JobFunction) -> None:
        self.attempts[attempt] = None
        self._empty.clear()
        try:
            await attempt.make()
        finally:
            self.attempts.pop(attempt, None)
            self._left.set()
            self._leave(attempt, job)
            if not self.attempts:
                self._empty.set()

    def _room_for(self, job: JobFunction) -> bool:
        if len(self.attempts) + self.stuck >= self.places:
            return False
        if job.max_concurrency is None:
            return True
        running = sum(each.order.topic == job.topic for each in self.attempts)
        return running + self._stuck[job.topic] < job.max_concurrency

    async def _room_soon(self, job: JobFunction) -> bool:
        """Whether there is room in a moment: those before it may be over at once."""
        if job.topic not in self._place.brief:
            return False
        try:
            async with asyncio.timeout(ROOM_NS / NS):
                while not self._room_for(job):
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            return False
        return not self.draining

    def _leave(self, attempt: Attempt, job: JobFunction) -> None:
        """The attempt is over; its function may not be."""
        execution = attempt.execution
        if execution is None or not execution.begun or execution.ending.done():
            return
        self._place.statistics.overran += 1
        self._stuck[job.topic] += 1
        execution.ending.add_done_callback(partial(self._freed, attempt, job))
        self._adjust()
        self._announce()

    def _freed(self, attempt: Attempt, job: JobFunction, _: asyncio.Future[Any]) -> None:
        self._stuck[job.topic] -= 1
        text = "a function has ended after all, and its place is free again"
        say(_log, logging.WARNING, text, job=attempt.order.job, attempt=attempt.order.attempt, topic=job.topic)
        self._adjust()
        self._announce()

    def _adjust(self) -> None:
        """Take messages while there is a place that is not blocked by a function that does not stop."""
        if self._consumer is None:
            return
        if self.draining or self.stuck >= self.places:
            self._consumer.pause()
        else:
            self._consumer.resume()
