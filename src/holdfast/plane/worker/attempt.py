"""One attempt at one job, from its message to its result.

The order is the promise: lease, then `job.started`, then the function, then `job.result`, then the end of the lease,
then the acknowledgement. Each step is durable before the next begins, so a crash between two of them repeats an attempt
and never loses one. Everything that is published carries the fence of the lease; a late word of an attempt that lost
its lease is told apart by it. An attempt that knows that it has lost its lease says nothing: its successor will.

One word is saved where it is not worth the trip: a topic whose last attempt took less than `BRIEF_NS` is expected to be
as quick this time, and `job.started` is said only if it turns out not to be, while the function runs. Its result says
that it has begun, too. But not where the message was delivered before: that run may have killed its worker, and only
those can be counted that were said to begin (`attempts`). An attempt that too many workers did not survive is not begun
once more, but said to have failed for good. A run that is given back is excused, and not taken for one of those.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from holdfast.aio import batch as many
from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.aio.lock import Lock
from holdfast.core.failpoints import ARMED, areach
from holdfast.core.lease.timing import settle
from holdfast.core.ports import Clock, Entropy
from holdfast.core.retry_delays import AnyDelays
from holdfast.errors import BackendError, LockBusy, RetryLater
from holdfast.flows.log import say
from holdfast.guards.bearer import CarriedFence, carried
from holdfast.plane.app import JobFunction
from holdfast.plane.bus.delivery_rules import DeadLetter, given_up
from holdfast.plane.db.ports import Bus
from holdfast.plane.jobs.progress import ProgressReporter
from holdfast.plane.locks.registry import WORKER_JOB, LockFamily
from holdfast.plane.model import messages as subjects
from holdfast.plane.model import outcome
from holdfast.plane.model.assignment import Assignment
from holdfast.plane.model.outcome import Outcome, Status
from holdfast.plane.model.records import BRIEF_NS, Delivery, Message
from holdfast.plane.worker.context import AnyContext, BlockingContext, Context
from holdfast.plane.worker.executor import Crew, Ended, Execution, Interruption, Raised, Returned, Unfinished
from holdfast.plane.worker.lease_batcher import LeaseBatcher
from holdfast.plane.worker.result_batcher import ResultBatcher
from holdfast.plane.worker.result_cache import Finished
from holdfast.plane.worker.staleness import Look, StalenessCheck, excuse, waited
from holdfast.plane.worker.statistics import WorkerStatistics
from holdfast.types import NS, Duration, Instant, duration_ns, elapsed_ns

_WANTED: Final = Look(wanted=True)

_log: Final = logging.getLogger("holdfast.plane.worker")


class NotHere(LockBusy):
    """This worker cannot run it, or not now; another may. Contention, and nobody's failure."""


@dataclass(slots=True)
class Workplace:
    """What every attempt in one pool of one worker shares."""

    worker: str  # how it is known to the registry and the scheduler
    bus: Bus
    locks: Locks
    clock: Clock
    entropy: Entropy
    crew: Crew
    finished: Finished
    statistics: WorkerStatistics
    hurried: asyncio.Event  # nobody waits any longer for what does not answer
    family: LockFamily  # of its lease
    cancel_grace_ns: int
    delays: AnyDelays
    currency: StalenessCheck | None
    brief: set[str] = field(default_factory=set)  # topics whose last attempt was over at once
    model: Lock[Lease] | None = None  # of an attempt without a time limit
    progress: ProgressReporter | None = None  # stores what functions report
    desk: LeaseBatcher = field(init=False)
    results: ResultBatcher = field(init=False)

    def __post_init__(self) -> None:
        self.desk = LeaseBatcher(self.locks, self.family)
        self.results = ResultBatcher(self.bus, self.entropy)

    def learn(self, topic: str, took_ns: int) -> None:
        """Expect the next attempt of a topic to take as long as this one."""
        (self.brief.add if took_ns < BRIEF_NS else self.brief.discard)(topic)

    def later(self, error: LockBusy | BackendError) -> RetryLater:
        """Give a message back for the time that its class of trouble asks for."""
        return self.delays.later(error, self.entropy.below)


def lease_family(
    ttl: Duration | None, renew_every: Duration | None, failures: int | None, family: LockFamily = WORKER_JOB
) -> LockFamily:
    """The leases under which attempts are made, with times that work together; what is not given is as declared."""
    chosen = family.timed(
        None if ttl is None else duration_ns("lease_ttl", ttl, low_ns=1) / NS,
        None if renew_every is None else duration_ns("lease_renew_every", renew_every, low_ns=1) / NS,
        failures,
    )
    settle(ttl=chosen.ttl, renew_every=chosen.renew_every, failures=chosen.failures)
    return chosen


class _Start:
    """The word that an attempt has begun: before its function is called, or while it runs, or not at all."""

    def __init__(self, publish: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._publish = publish
        self._timer: asyncio.TimerHandle | None = None
        self._saying: asyncio.Task[None] | None = None
        self.begun = False  # it was said, or may have been

    async def say(self, *, brief: bool) -> None:
        """Say it now, or after a while if the attempt should be over by then."""
        if not brief:
            self.begun = True
            await self._publish()
            if ARMED:
                await areach("plane.worker.started")
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(BRIEF_NS / NS, self._begin)

    def _begin(self) -> None:
        self.begun = True
        self._saying = asyncio.get_running_loop().create_task(self._publish())

    async def said(self) -> None:
        """The function has ended: what is being said is said before its result, and the rest is in that."""
        if self._saying is not None:
            await self._saying

    def drop(self) -> None:
        """Nothing more is to be said."""
        if self._timer is not None:
            self._timer.cancel()
        if self._saying is not None and not self._saying.done():
            self._saying.cancel()
        elif self._saying is not None and not self._saying.cancelled():
            self._saying.exception()  # it was told to whoever waited, or the attempt had ended otherwise


class _StallTimer:
    """Interrupts an execution that reports no progress for too long. It checks when it is due, so reports are cheap."""

    def __init__(self, after_ns: int, execution: Execution, context: AnyContext) -> None:
        self._after_ns = after_ns
        self._execution = execution
        self._context = context
        self._timer = asyncio.get_running_loop().call_later(after_ns / NS, self._check)

    def cancel(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        left_ns = self._after_ns - self._context.idle_ns()
        if left_ns > 0:
            self._timer = asyncio.get_running_loop().call_later(left_ns / NS, self._check)
        else:
            self._execution.interrupt(Interruption.STALLED, f"it reported no progress for {self._after_ns / NS:g} s")


class Attempt:
    """One attempt in the making."""

    def __init__(
        self, place: Workplace, order: Assignment, job: JobFunction, came: Delivery, *, may_be_over: bool
    ) -> None:
        self._place = place
        self._job = job
        self._came = came
        self._may_be_over = may_be_over
        self.order = order
        self.run_fence: int | None = None  # of the lease under which it is made, once it has one
        self.context: AnyContext | None = None
        self.execution: Execution | None = None
        self._early: tuple[Interruption, str] | None = None

    def interrupt(self, why: Interruption, reason: str) -> None:
        """Ask it to stop, wherever it is."""
        if self.execution is None:
            self._early = self._early or (why, reason)
        else:
            self.execution.interrupt(why, reason)

    async def make(self) -> None:
        """Returns when the message may be acknowledged; `RetryLater` gives it back."""
        lease, taken = await self._take_lease(), self._place.clock.now()
        self.run_fence = lease.fence
        try:
            if ARMED:
                await areach("plane.worker.leased")
            look = await self._look(lease.fence, taken.wall)
            if not look.wanted:
                self._place.statistics.outdated += 1
            elif (letter := given_up(look.lost)) is not None:
                await self._give_up(lease, letter)
            else:
                await self._under(lease)
        except asyncio.CancelledError:
            self._place.statistics.given_back += 1
            raise
        finally:
            self._place.statistics.held_for(self.order.topic, elapsed_ns(taken, self._place.clock.now()))
            await self._place.desk.give_back(lease)
        if ARMED:
            await areach("plane.worker.released")

    async def _take_lease(self) -> Lease:
        place, job = self._place, self.order.job
        family: LockFamily = place.family  # a test reads from this that the lock is a declared one
        longest_s, stall_s = self._longest_s(), self._stall_s()
        if longest_s is None and stall_s is None:
            model = place.model = place.model or family.lock(place.locks, job="model")
            lock = many.named(model, family.key(job=job))
        else:
            lock = family.lock(place.locks, max_hold=longest_s, stall_after=stall_s, job=job)
        try:
            lease = await place.desk.take(lock)
        except BackendError as error:
            place.statistics.unreachable += 1
            raise place.later(error) from error
        if lease is None:
            place.statistics.busy += 1
            raise place.later(LockBusy(f"job {job} is being run", key=lock.name))
        place.statistics.taken += 1
        return lease

    async def _look(self, fence: int, now_ns: int) -> Look:
        """Whether this is a leftover. Asked under the lease: whoever ran it before us has said its result by now."""
        currency = self._place.currency
        if currency is None or not (self._may_be_over or waited(self.order, fence)):
            return _WANTED
        try:
            look = await currency.look(self.order.name, fence, now_ns, self.order.fence)
        except BackendError as error:
            self._place.statistics.unreachable += 1
            self._place.statistics.given_back += 1
            raise self._place.later(error) from error
        if look.wanted and look.silent_since_ns is not None:
            self._place.statistics.taken_over.observe(now_ns - look.silent_since_ns)
        return look

    async def _give_up(self, lease: Lease, letter: DeadLetter) -> None:
        say(_log, logging.ERROR, "an attempt is given up", job=self.order.job, reason=letter.reason)
        said = outcome.failed(letter.reason, retryable=False)
        await self._tell(said, lease, {"code": str(letter.code), "took_ns": None})

    async def _under(self, lease: Lease) -> None:
        start = _Start(partial(self._say_begun, carried(lease), lease))
        try:
            await self._made(start, lease)
        except (RetryLater, asyncio.CancelledError):
            if start.begun and self._place.currency is not None:
                await excuse(self._place.currency, self.order.name, self._place.clock.now().wall)
            raise

    async def _made(self, start: _Start, lease: Lease) -> None:
        place, order = self._place, self.order
        try:
            await start.say(brief=order.topic in place.brief and self._came.deliveries == 1)
            since = place.clock.now()
            limit_ns = self._limit_ns(since)
            ended = await self._run(lease, since, limit_ns)
            place.learn(order.topic, took_ns := elapsed_ns(since, place.clock.now()))
            if ARMED:
                await areach("plane.worker.ran")
            said = self._judged(ended, lease, limit_ns)
            if said is None:
                return
            await start.said()
        finally:
            start.drop()
        await self._tell(said, lease, {"took_ns": took_ns})

    async def _tell(self, said: Outcome, lease: Lease, more: Mapping[str, Any]) -> None:
        place, order, told = self._place, self.order, {**said.body(), **more}
        message = subjects.finished(order.job, order.attempt, place.worker, carried(lease), told, made_ns=order.made_ns)
        await self._publish(message, lease, lambda: place.results.tell(message, said.size))
        if ARMED:
            await areach("plane.worker.said")
        place.finished.keep(order.name, message, said.size)
        self._count(said)

    async def _say_begun(self, run: CarriedFence, lease: Lease) -> None:
        place, order = self._place, self.order
        begun = subjects.started(order.job, order.attempt, place.worker, run, made_ns=order.made_ns)
        await self._publish(begun, lease, lambda: place.bus.publish([begun]))

    def _stall_s(self) -> float | None:
        """When its lease ends for want of progress: the backstop where a function blocks the event loop."""
        if self._job.stall_after_ns is None:
            return None
        return (self._job.stall_after_ns + self._place.cancel_grace_ns) / NS + self._place.family.ttl

    def _longest_s(self) -> float | None:
        """How long the lease may be held at all: a function that blocks the loop also blocks its own time limit.

        The keeper would renew for it without end; so its lease ends by itself, a TTL after everything should be over.
        """
        if self.order.timeout_ns is None and self.order.deadline_ns is None and self._job.timeout_ns is None:
            return None
        limit_ns = self._limit_ns(self._place.clock.now())
        if limit_ns is None:
            return None
        return max(0, limit_ns + self._place.cancel_grace_ns) / NS + self._place.family.ttl

    def _limit_ns(self, since: Instant) -> int | None:
        """How long it may run: the least of what the job, its function and its deadline allow."""
        order = self.order
        until_ns = None if order.deadline_ns is None else order.deadline_ns - since.wall
        return min(
            (each for each in (order.timeout_ns, self._job.timeout_ns, until_ns) if each is not None), default=None
        )

    async def _run(self, lease: Lease, since: Instant, limit_ns: int | None) -> Ended | Unfinished:
        """Call the function, and interrupt it when its lease is lost or its time is over."""
        place, loop = self._place, asyncio.get_running_loop()
        kind = Context if self._job.asynchronous else BlockingContext
        report = None if place.progress is None else place.progress.report
        context = self.context = kind(self.order, lease, place.worker, place.clock, since, limit_ns, report)
        execution = self.execution = Execution(place.crew, context, place.cancel_grace_ns)

        def out_of_time() -> None:
            execution.interrupt(Interruption.TIME_LIMIT, "it has run for as long as it may")

        def lost() -> None:
            execution.interrupt(Interruption.LOST, f"its lease was lost ({lease.lost.reason})")

        if self._early is not None:
            execution.interrupt(*self._early)
        timer: asyncio.TimerHandle | None = None
        if limit_ns is not None and limit_ns <= 0:
            out_of_time()
        elif limit_ns is not None:
            timer = loop.call_later(limit_ns / NS, out_of_time)
        stall = None if self._job.stall_after_ns is None else _StallTimer(self._job.stall_after_ns, execution, context)
        forget = many.on_loss([lease], lost)
        try:
            return await execution.run(self._job, self.order.payload)
        finally:
            forget()
            if timer is not None:
                timer.cancel()
            if stall is not None:
                stall.cancel()

    def _judged(self, ended: Ended | Unfinished, lease: Lease, limit_ns: int | None) -> Outcome | None:
        """What is to be said about it: an outcome, or nothing. `RetryLater`: nothing, and the message goes back."""
        execution = self.execution
        why = None if execution is None else execution.why
        self._log_end(ended, why)
        if lease.lost.is_set():
            self._place.statistics.lost += 1
            raise self._place.later(LockBusy(f"the lease of job {self.order.job} was lost", key=lease.key))
        if why is Interruption.STOPPED:
            self._place.statistics.stopped += 1
            return None
        if not lease.held:
            return outcome.failed("the function released the lease under which it ran", retryable=False)
        if isinstance(ended, Returned):
            return outcome.returned(ended.value)
        if why is Interruption.DRAINED:
            self._place.statistics.given_back += 1
            raise RetryLater(0.0, NotHere(f"the worker of job {self.order.job} is ending"))
        if why is Interruption.TIME_LIMIT:
            self._place.statistics.timed_out += 1
            return outcome.failed(_overtime(ended, limit_ns), retryable=True)
        if why is Interruption.STALLED:
            self._place.statistics.stalled += 1
            return outcome.failed(_stalled(ended, self._job.stall_after_ns), retryable=True)
        if isinstance(ended, Raised) and not isinstance(ended.error, asyncio.CancelledError):
            return outcome.raised(ended.error)
        return outcome.failed("the function cancelled itself", retryable=True)

    async def _publish(self, message: Message, lease: Lease, publish: Callable[[], Awaitable[None]]) -> None:
        """Publish, and try again for as long as the lease is ours and nobody is in a hurry."""
        place, tries = self._place, 0
        while True:
            try:
                await publish()
            except BackendError as error:
                place.statistics.unreachable += 1
                if place.hurried.is_set() or not lease.held or (self.execution is None and self._early is not None):
                    place.statistics.given_back += 1
                    raise place.later(error) from error
                text = "a message could not be published and is tried again"
                say(_log, logging.WARNING, text, error, message=message.id, job=self.order.job)
            else:
                return
            delay_ns = place.delays.backend.delay_ns(tries, 0, place.entropy.below)
            tries += 1
            await _unless(place.hurried, delay_ns)

    def _count(self, said: Outcome) -> None:
        statistics = self._place.statistics
        if said.status is Status.SUCCEEDED:
            statistics.succeeded += 1
        elif said.status is Status.QUARANTINED:
            statistics.quarantined += 1
        elif said.retryable:
            statistics.retried += 1
        else:
            statistics.failed += 1

    def _log_end(self, ended: Ended | Unfinished, why: Interruption | None) -> None:
        if self.context is None:
            return
        if isinstance(ended, Unfinished):
            self.context.log.error("the function was asked to stop (%s) and goes on; its writes are fenced", why)
        elif isinstance(ended, Raised) and why is None and not isinstance(ended.error, _SAID_ON_PURPOSE):
            self.context.log.warning("the attempt failed", exc_info=ended.error)


# What a function raises to say something is no accident, and needs no traceback in the log.
_SAID_ON_PURPOSE: Final = (RetryLater, outcome.Fatal, outcome.Quarantine, asyncio.CancelledError)


def _overtime(ended: Ended | Unfinished, limit_ns: int | None) -> str:
    allowed = (limit_ns or 0) / NS
    if allowed <= 0:
        return "timeout: its deadline had passed before it began"
    rest = "; it did not stop when it was told" if isinstance(ended, Unfinished) else ""
    return f"timeout: it ran for longer than {allowed:g} s{rest}"


def _stalled(ended: Ended | Unfinished, stall_after_ns: int | None) -> str:
    rest = "; it did not stop when it was told" if isinstance(ended, Unfinished) else ""
    return f"stalled: it reported no progress for {(stall_after_ns or 0) / NS:g} s{rest}"


async def _unless(event: asyncio.Event, delay_ns: int) -> None:
    """Wait for a while, or until the event."""
    with suppress(TimeoutError):
        async with asyncio.timeout(delay_ns / NS):
            await event.wait()
