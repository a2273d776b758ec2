"""A worker: fetches assignments from its pools, runs them under leases, reports results, sends heartbeats, and drains.

    async with Worker(app, bus=bus, locks=locks, registry=registry, concurrency=8) as worker:
        await worker.wait()

The classes are in the order of a job: `Worker` consumes the queues, `WorkerPool` accepts an assignment if it has a
slot, `Attempt` runs it.

Promises:

- A pool never runs more attempts than it has slots, nor more of a topic than the topic allows. A function that
  does not stop keeps its slot until it ends, and the worker announces fewer slots meanwhile.
- A rejected assignment goes back to the scheduler and does not consume an attempt. For a while it is nacked instead, if
  the scheduler has counted that another worker has a slot of its topic.
- The order of an attempt is: lease, `job.started`, function, `job.result`, release, ack. Each step is durable before
  the next begins, so a crash between two of them repeats an attempt and never loses one.
- Every message carries the fence of the lease, so a late message of an attempt without its lease is recognized. An
  attempt that knows that its lease is lost publishes nothing: its successor will.
- A draining worker fetches nothing more, lets running attempts finish within the grace period, and returns the others:
  no unfinished message is acked. Functions are interrupted early enough to have `cancel_grace` within the grace
  period, or in `cancel_grace` if that is longer. The last second, or half of it, is for returning and closing.

`job.started` is skipped where the message is not worth its cost. If the last attempt of a topic took less than
`BRIEF_NS`, the next one is expected to be as short, and `job.started` is published only if it takes longer. The result
shows that it has begun, too. A redelivered message always publishes `job.started`: its last run may have killed its
worker, and only published starts can be counted. An attempt that too many workers did not survive fails permanently.

Does not promise that a function runs once: a worker that dies, or is paused for longer than its lease, is followed by
another.

Clock: heartbeats carry wall-clock time and are sent on the loop's own.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol, Self

from holdfast.aio import batch as many
from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.aio.lock import Lock
from holdfast.core.failpoints import ARMED, areach
from holdfast.core.histogram import Distribution
from holdfast.core.lease.fencing import apart
from holdfast.core.ports import Clock, Entropy, SharesTransactions
from holdfast.core.retry_delays import AnyDelays
from holdfast.errors import BackendError, BadInput, LockBusy, RetryLater, Timeout
from holdfast.flows.log import OutageLog, log_event
from holdfast.guards.bearer import carried
from holdfast.plane.app import App, JobFunction
from holdfast.plane.bus.delivery_rules import DeadLetterDecision, given_up
from holdfast.plane.db.ports import Along, Bus, Consumer, Consumption
from holdfast.plane.jobs.progress import ProgressReporter, ProgressStore
from holdfast.plane.locks import registry as families
from holdfast.plane.locks.registry import LockFamily
from holdfast.plane.model import messages as subjects
from holdfast.plane.model import outcome
from holdfast.plane.model.messages import Assignment, assignment_of
from holdfast.plane.model.outcome import Outcome, Status
from holdfast.plane.model.records import (
    BRIEF_NS,
    CONCURRENCY_MAX,
    Delivery,
    Heartbeat,
    Message,
    check_name,
    check_whole,
)
from holdfast.plane.worker.attempt_leases import AttemptLeases, lease_family
from holdfast.plane.worker.children import ChildPort
from holdfast.plane.worker.context import AnyContext, BlockingContext, Context
from holdfast.plane.worker.executor import (
    Ended,
    Execution,
    Interruption,
    JobThreads,
    Raised,
    Returned,
    StallTimer,
    Unfinished,
)
from holdfast.plane.worker.failure_trace import failure_trace
from holdfast.plane.worker.staleness import LATE_NS, Staleness, StalenessCheck, report_returned
from holdfast.runtime.system import SystemClock, SystemEntropy, this_owner
from holdfast.types import MS, NS, Duration, Instant, duration_ns, elapsed_ns

BEAT_TIMEOUT_S: Final = 2.0
GRACE: Final = 30.0
STOPS_AT_ONCE: Final = 8
SETTLE_NS: Final = NS
"""For returning, releasing and closing, when all functions have stopped or will not."""

ROOM_NS: Final = 100 * MS
"""How long an assignment waits for a slot of its topic, if attempts of the topic are brief."""

PASSES_MAX: Final = 16
PASS_NS: Final = 15 * MS
"""The shortest delay of a nacked assignment, and half of the longest: then other workers have the same chance."""

RESULTS_MAX: Final = 1_000
RESULT_CHARS_MAX: Final = 8_000_000

_CURRENT: Final = Staleness(wanted=True)
_NO_TRACEBACK: Final = (RetryLater, outcome.Fatal, outcome.Quarantine, asyncio.CancelledError)
"""A function raises these on purpose."""

_log: Final = logging.getLogger("holdfast.plane.worker")


class NotHere(LockBusy):
    """This worker cannot run the job now; another may. Contention, and not a failure of the message."""


class Registry(Protocol):
    """Stores the heartbeats of workers. `plane.fleet.registry.Workers` is one."""

    async def record(self, heartbeat: Heartbeat) -> bool:
        """Store a heartbeat."""
        ...

    async def leave(self, worker: str) -> bool:
        """Note that the worker has left permanently."""
        ...


@dataclass(frozen=True, slots=True)
class Drained:
    """How a worker ended."""

    interrupted: int  # stopped attempts; their messages were nacked
    stuck: int  # functions that did not stop when they were interrupted

    @property
    def finished(self) -> bool:
        """Whether all attempts finished."""
        return not self.interrupted and not self.stuck


@dataclass(slots=True)
class WorkerStatistics:
    """Counts since the worker was created, and its present state."""

    # How attempts ended. Each one with a lease is in exactly one of these, or is still active.
    taken: int = 0  # the lease was acquired
    succeeded: int = 0
    quarantined: int = 0  # succeeded, and the output must not be used
    failed: int = 0  # for good
    retried: int = 0  # failed, and another attempt may be made
    lost: int = 0  # the lease was lost: nothing was published, and the message was nacked
    stopped: int = 0  # the scheduler had ended the attempt
    given_back: int = 0  # nacked: the worker ended, or the bus or the database did not answer
    outdated: int = 0  # a message of a finished attempt; nothing was run

    # Rejected assignments.
    refused: int = 0  # not a topic of this worker
    full: int = 0  # no slot of its topic
    passed_on: int = 0  # the same; nacked for another worker that has one
    busy: int = 0  # another worker runs it
    unreachable: int = 0  # the lease store, or the bus, did not answer
    turned_away: int = 0  # delivered while the worker was ending
    repeated: int = 0  # finished here before; its result was published again, and nothing was run

    # Besides.
    timed_out: int = 0  # ran into a time limit
    stalled: int = 0  # reported no progress for too long
    overran: int = 0  # did not stop within the grace period when interrupted
    beats: int = 0
    beats_failed: int = 0
    held: dict[str, Distribution] = field(default_factory=dict)  # by topic: how long attempts needed their lease
    taken_over: Distribution = field(default_factory=Distribution)  # from a dead worker's last heartbeat to the lease

    # Now.
    active: int = 0
    stuck: int = 0  # of those that overran, how many still run

    def held_for(self, topic: str, ns: int) -> None:
        """Note how long an attempt held its lease."""
        found = self.held.get(topic)
        if found is None:
            found = self.held[topic] = Distribution()
        found.observe(ns)


class Worker:
    """Runs the functions of an app. Make it, enter it, and leave it; it cannot be used twice."""

    def __init__(
        self,
        app: App,
        *,
        bus: Bus,
        locks: Locks,
        registry: Registry,
        currency: StalenessCheck | None = None,
        progress: ProgressStore | None = None,
        children: ChildPort | None = None,
        pools: Sequence[str] | None = None,
        concurrency: int = 8,
        name: str | None = None,
        heartbeat: Duration = 5.0,
        lease_ttl: Duration | None = None,
        lease_renew_every: Duration | None = None,
        lease_failures: int | None = None,
        family: LockFamily = families.WORKER_JOB,
        cancel_grace: Duration = 5.0,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        delays: AnyDelays = families.RETRY_DELAYS,
        claim_leases: bool = True,
    ) -> None:
        """`pools`: all that the app has topics for, unless given. `concurrency`: slots in each pool.

        `currency` checks whether a message that was delivered before is stale; None: it is run in any case.
        `progress` stores what functions report with `ctx.progress()`; None: it is not stored.
        `children` submits the jobs of `ctx.submit()`; None: functions cannot submit.
        `name` must be this worker's alone. `lease_ttl` bounds how soon another takes over (30 s); the lease is renewed
        every `lease_renew_every` (a third of that), and abandoned after `lease_failures` (3) failed renewals in a row.
        `family` names these leases: where the plane has a key prefix of its own, so must its workers.
        `cancel_grace` is how long a function may continue after it was interrupted, before its lease is abandoned.
        `claim_leases` switches an optimization: leases that the claim of a message acquires.
        """
        self.name = _own_name(app) if name is None else check_name("name", name)
        check_whole("concurrency", concurrency, 1, CONCURRENCY_MAX)
        self._bus = bus
        self._registry = registry
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._beat_every_ns = duration_ns("heartbeat", heartbeat, low_ns=1_000_000)
        leases = lease_family(lease_ttl, lease_renew_every, lease_failures, family)
        self._ack_wait_ns = round(leases.ttl * NS)  # a worker that is silent for so long has lost its lease as well
        # A lease that is written with the plane's own commits is durable with all commits before it.
        store = locks.ports.store
        self._leases_last = isinstance(store, SharesTransactions) and store.rides
        chosen = _chosen(app, pools)
        topics = [topic for topic, function in app.functions.items() if function.pool in chosen]
        self._heartbeat_outage = OutageLog(_log, "a heartbeat could not be stored", "heartbeats are stored again")
        self._counts = WorkerStatistics(held={topic: Distribution() for topic in topics})
        self._threads = JobThreads(f"holdfast-{self.name}")
        self._draining = asyncio.Event()
        self._hurried = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._grace_ns = round(GRACE * NS)
        self._cancel_grace_ns = duration_ns("cancel_grace", cancel_grace)
        self._progress = None if progress is None else ProgressReporter(progress)
        self._serving: asyncio.Task[None] | None = None
        owner = this_owner(app.name)
        self._host, self._pid = owner.host, owner.pid
        shared = _Shared(
            worker=self.name,
            bus=bus,
            locks=locks,
            clock=self._clock,
            entropy=self._entropy,
            threads=self._threads,
            finished=ResultCache(),
            statistics=self._counts,
            hurried=self._hurried,
            family=leases,
            cancel_grace_ns=self._cancel_grace_ns,
            delays=delays,
            staleness=currency,
            claim_leases=claim_leases,
            progress=self._progress,
            children=children,
        )
        self._worker_pools = [
            WorkerPool(
                *(app, pool, concurrency),
                shared if len(chosen) == 1 else replace(shared, worker=f"{self.name}:{pool}"),
                self._beat_now.set,
            )
            for pool in chosen
        ]

    def statistics(self) -> WorkerStatistics:
        """Counts since the beginning, and the present state."""
        return replace(self._counts, active=len(self.running()), stuck=sum(each.stuck for each in self._worker_pools))

    @property
    def capacity(self) -> int:
        """Slots in all pools together."""
        return sum(each.slots for each in self._worker_pools)

    def running(self) -> list[Attempt]:
        """The running attempts."""
        return [attempt for each in self._worker_pools for attempt in each.attempts]

    async def start(self) -> None:
        """Announce the worker and fetch assignments. Raises the error that prevents it."""
        if self._serving is not None:
            raise BadInput("worker", f"{self.name} was started before", "make another")
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.create_task(self._serve(ready), name=f"worker {self.name}")
        try:
            await asyncio.wait((ready, self._serving), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # a cancelled start leaves no task that still tries
            self._serving.cancel()
            await asyncio.wait((self._serving,))
            self._serving = None
            raise
        if not ready.done():
            await self._serving  # it ended before it was ready, in an error

    async def wait(self) -> None:
        """Return when the worker has drained; raise the error that ended it."""
        if self._serving is not None:
            await asyncio.shield(self._serving)

    async def drain(self, grace: Duration = GRACE) -> Drained:
        """Fetch nothing more, let running attempts finish within `grace`, stop and return the others. Idempotent.

        The last `cancel_grace` of it, but for a second, is for functions that were told to stop; a shorter `grace`
        tells all of them immediately.
        """
        grace_ns = duration_ns("grace", grace)
        if not self._draining.is_set():
            self._grace_ns = grace_ns
            self._draining.set()
        await self.wait()
        return Drained(
            sum(each.interrupted for each in self._worker_pools), sum(each.stuck for each in self._worker_pools)
        )

    def hurry(self) -> None:
        """End the grace period now: stop running attempts, wait for no store and no bus. Drains if it has not begun."""
        self._hurried.set()
        self._draining.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain(GRACE if error is None else 0)

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        beating = asyncio.create_task(self._send_heartbeats())
        try:
            async with AsyncExitStack() as stack:
                for each in self._worker_pools:
                    stops = Consumption(subjects.stop_subject(each.worker), subjects.WORKERS, STOPS_AT_ONCE)
                    await stack.enter_async_context(self._bus.consume(stops, each.stop))
                for each in self._worker_pools:
                    each.open(await stack.enter_async_context(self._bus.consume(self._consumption(each), each.handle)))
                ready.set_result(None)
                await self._draining.wait()
                await self._drain()
        finally:
            for each in self._worker_pools:
                each.close()
            beating.cancel()
            await asyncio.wait((beating,))
            self._threads.close()
            if self._progress is not None:
                await self._progress.close()
        for each in self._worker_pools:
            await self._update_registry(self._registry.leave(each.worker), each)

    def _consumption(self, worker_pool: WorkerPool) -> Consumption:
        shared, *own = worker_pool.subjects
        return Consumption(
            shared,
            subjects.WORKERS,
            also=tuple(own),
            concurrency=worker_pool.slots,
            ack_wait_ns=self._ack_wait_ns,
            judges_lost=True,
            lasting=not self._leases_last,
            along=worker_pool.along,
        )

    async def _drain(self) -> None:
        """Stop fetching; wait until all attempts have ended, must be interrupted, or `hurry` was called."""
        for each in self._worker_pools:
            each.drain()
        self._beat_now.set()
        log_event(_log, logging.INFO, "worker drains", worker=self.name, running=len(self.running()))
        done = asyncio.gather(*(each.empty() for each in self._worker_pools))
        hurried = asyncio.create_task(self._hurried.wait())
        left_ns = _finishing_ns(self._grace_ns, self._cancel_grace_ns)
        try:
            await asyncio.wait((done, hurried), timeout=left_ns / NS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            done.cancel()
            hurried.cancel()
            await asyncio.gather(done, hurried, return_exceptions=True)  # not `wait`: the end of `done` is to be seen
        for each in self._worker_pools:
            each.interrupt(_stopping_ns(self._grace_ns, self._cancel_grace_ns))
        self._hurried.set()

    async def _send_heartbeats(self) -> None:
        """Send heartbeats: every few seconds, not in step with other workers, and immediately after a change."""
        while True:
            self._beat_now.clear()
            await self._send_heartbeat()
            spread = self._beat_every_ns // 5
            delay_ns = self._beat_every_ns - spread + self._entropy.below(2 * spread + 1)
            try:
                async with asyncio.timeout(delay_ns / NS):
                    await self._beat_now.wait()
            except TimeoutError:
                continue

    async def _send_heartbeat(self) -> None:
        for each in self._worker_pools:
            heartbeat = each.heartbeat(self._clock.now().wall, self._host, self._pid)
            self._counts.beats += await self._update_registry(self._registry.record(heartbeat), each)

    async def _update_registry(self, request: Coroutine[Any, Any, bool], worker_pool: WorkerPool) -> bool:
        """Send a request to the registry. A worker that cannot reach it continues."""
        try:
            try:
                async with asyncio.timeout(BEAT_TIMEOUT_S):
                    await request
            except TimeoutError as error:
                if isinstance(error, BackendError):
                    raise
                raise Timeout(f"no answer within {BEAT_TIMEOUT_S:g} s") from None
        except Exception as error:  # noqa: BLE001 - an outage of the registry must not stop the worker
            self._counts.beats_failed += 1
            self._heartbeat_outage.met(error, worker=worker_pool.worker)
            return False
        self._heartbeat_outage.ended()
        return True

    def __repr__(self) -> str:
        return f"<Worker {self.name!r} pools={[each.pool for each in self._worker_pools]} active={len(self.running())}>"


@dataclass(slots=True)
class _Shared:
    """Shared by all attempts in one pool of one worker."""

    worker: str  # the name of the worker in this pool
    bus: Bus
    locks: Locks
    clock: Clock
    entropy: Entropy
    threads: JobThreads
    finished: ResultCache
    statistics: WorkerStatistics
    hurried: asyncio.Event  # wait no longer for a store or bus that does not answer
    family: LockFamily  # of the leases
    cancel_grace_ns: int
    delays: AnyDelays
    staleness: StalenessCheck | None
    claim_leases: bool
    brief: set[str] = field(default_factory=set)  # topics whose last attempt was brief
    model: Lock[Lease] | None = None  # of an attempt without a time limit
    progress: ProgressReporter | None = None
    children: ChildPort | None = None
    leases: AttemptLeases = field(init=False)

    def __post_init__(self) -> None:
        self.leases = AttemptLeases(self.locks, self.family, claims=self.claim_leases)

    def learn(self, topic: str, took_ns: int) -> None:
        """Expect the next attempt of a topic to take as long as this one."""
        (self.brief.add if took_ns < BRIEF_NS else self.brief.discard)(topic)

    def later(self, error: LockBusy | BackendError) -> RetryLater:
        """The nack for this class of error, with its delay."""
        return self.delays.later(error, self.entropy.below)

    def lock_of(self, job: str) -> Lock[Lease]:
        """The lock of a job whose attempt has no time limit."""
        family: LockFamily = self.family  # a test reads from this that the lock is a declared one
        model = self.model = self.model or family.lock(self.locks, job="model")
        return many.named(model, family.key(job=job))


class WorkerPool:
    """The slots of one worker in one pool. Accepts assignments, and knows the running attempts."""

    def __init__(
        self, app: App, pool: str, slots: int, shared: _Shared, announce: Callable[[], None] = lambda: None
    ) -> None:
        """`announce` is called when the next heartbeat has news."""
        self._announce = announce
        self._app = app
        self._shared = shared
        self.pool = pool
        self.slots = slots
        self.draining = False
        self.interrupted = 0  # attempts that were running when the grace period was over
        self.attempts: dict[Attempt, None] = {}  # the oldest first
        self._stuck: Counter[str] = Counter()  # by topic
        self._consumer: Consumer | None = None
        self._ended = asyncio.Event()  # an attempt has ended
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def worker(self) -> str:
        """The name of this worker in this pool."""
        return self._shared.worker

    @property
    def stuck(self) -> int:
        """How many functions did not stop when they were interrupted."""
        return self._stuck.total()

    @property
    def subjects(self) -> tuple[str, ...]:
        """The queues of its assignments: the shared one of the pool, and one for each topic."""
        pool = self.pool
        return (subjects.work_subject(pool), *(subjects.work_subject(pool, each) for each in self._app.topics(pool)))

    @property
    def along(self) -> Along:
        """Acquires leases in the transaction that claims the messages."""
        return self._shared.leases.claimed

    def open(self, consumer: Consumer) -> None:
        """Accept the messages of this consumer."""
        self._consumer = consumer
        self._adjust()

    def drain(self) -> None:
        """Fetch nothing more."""
        self.draining = True
        self._adjust()

    async def empty(self) -> None:
        """Return when no attempt runs."""
        await self._empty.wait()

    def interrupt(self, within_ns: int) -> None:
        """Stop the running attempts, and wait at most `within_ns` for each."""
        self.interrupted += len(self.attempts)
        for attempt in self.attempts:
            attempt.interrupt(Interruption.DRAINED, "its worker is ending")
            if attempt.execution is not None:
                attempt.execution.limit_wait(within_ns)

    def close(self) -> None:
        """Release the leases of messages that will not be handled."""
        self._shared.leases.claimed.close()

    async def handle(self, delivery: Delivery) -> None:
        """Run one assignment, from the queue of its topic or from the shared queue of the pool."""
        try:
            await self._handle(delivery)
        finally:
            await self._shared.leases.claimed.leave(delivery.message.key)

    async def _handle(self, delivery: Delivery) -> None:
        shared, assignment = self._shared, assignment_of(delivery.message)
        if self.draining:
            shared.statistics.turned_away += 1
            raise RetryLater(0.0, NotHere(f"worker {shared.worker} is ending"))
        known = shared.finished.get(assignment.name)
        if known is not None and await self._repeated(assignment, known):
            return
        job = self._app.functions.get(assignment.topic)
        if job is None:
            shared.statistics.refused += 1
            await self._reject(assignment, f"worker {shared.worker} does not know {assignment.topic}")
            return
        if not self._has_slot(job) and not await self._slot_soon(job):
            if assignment.counted and delivery.deliveries <= PASSES_MAX:
                shared.statistics.passed_on += 1
                delay_ns = PASS_NS + shared.entropy.below(PASS_NS)
                raise RetryLater(delay_ns / NS, NotHere(f"another worker has a slot for {assignment.topic}"))
            shared.statistics.full += 1
            await self._reject(assignment, f"worker {shared.worker} has no slot for another {assignment.topic}")
            return
        late = abs(shared.clock.now().wall - assignment.at_ns) > LATE_NS  # or the clocks disagree: see `staleness`
        again = known is not None or delivery.deliveries > 1
        await self._run(Attempt(shared, assignment, job, delivery, may_be_over=late or again), job)

    async def stop(self, delivery: Delivery) -> None:
        """Handle one message on `stop.<worker>`. An attempt that does not run here any more needs no stop.

        A message with a fence means the run under that fence, and not a later one of the same attempt.
        """
        body = delivery.message.body
        fence = body.get("run_fence")
        for attempt in self.attempts:
            assignment = attempt.assignment
            if (assignment.job, assignment.attempt) != (body.get("job"), body.get("attempt")):
                continue
            if fence not in (None, attempt.run_fence):
                continue
            attempt.interrupt(Interruption.STOPPED, f"stopped: {body.get('reason') or 'no reason was given'}")

    def heartbeat(self, at_ns: int, host: str, pid: int) -> Heartbeat:
        """The heartbeat of this worker in this pool. A slot that is blocked by a stuck function does not count."""
        return Heartbeat(
            worker=self.worker,
            pool=self.pool,
            topics=self._app.topics(self.pool),
            capacity=self.slots - self.stuck,
            active=len(self.attempts),
            at_ns=at_ns,
            draining=self.draining,
            host=host,
            pid=pid,
            places=self._limited_slots(),
            by_topic=True,
        )

    def _limited_slots(self) -> dict[str, int]:
        """The slots of topics that have fewer than the pool; of a draining worker, the running attempts by topic."""
        most = {topic: self._app.functions[topic].max_concurrency for topic in self._app.topics(self.pool)}
        if self.draining:
            running = Counter(each.assignment.topic for each in self.attempts)
            return {topic: running[topic] for topic in most}
        fewer = {topic: slots for topic, slots in most.items() if slots is not None and slots < self.slots}
        return {topic: max(0, slots - self._stuck[topic]) for topic, slots in fewer.items()}

    async def _repeated(self, assignment: Assignment, known: Message) -> bool:
        """Publish the known result of an attempt again, unless it is stale. False: the attempt must be run again.

        That is so when another worker has reported on it since: our result came after that, and does not count any
        more. That worker still runs it, which our lease will find out, or was lost; then repeating the result would
        keep the attempt from ever being finished. The message has another id for each time that the attempt was sent:
        the first one may have come while the job was taken back, and a bus would drop the same id.
        """
        shared = self._shared
        try:
            if shared.staleness is not None and known.fence is not None:
                now_ns = shared.clock.now().wall
                found = await shared.staleness.check(assignment.name, known.fence.fence, now_ns, assignment.fence)
                if not found.wanted:
                    shared.statistics.outdated += 1
                    return True
                if found.overtaken:
                    shared.finished.forget(assignment.name)
                    return False
            await shared.bus.publish([replace(known, id=f"{known.id}:{assignment.fence or 0}")])
        except BackendError as error:
            shared.statistics.unreachable += 1
            raise shared.later(error) from error
        shared.statistics.repeated += 1
        return True

    async def _reject(self, assignment: Assignment, reason: str) -> None:
        """Return an assignment to the scheduler: its job waits for another chance, and loses no attempt.

        A nack alone would keep the job with the workers: it would hold a slot of the pool for which others wait, and
        its time limit would go on. It is published under the job's lease, so not about an attempt that another worker
        runs. `RetryLater` if that is not possible now.
        """
        shared, lock = self._shared, self._shared.lock_of(assignment.job)
        try:
            lease = await shared.leases.acquire(lock)
            if lease is None:
                raise shared.later(LockBusy(f"job {assignment.job} is being run", key=lock.name))
            try:
                body = {**Outcome(Status.RETURNED, error=reason, retryable=True).body(), "took_ns": None}
                await shared.bus.publish([_finished(shared, assignment, lease, body)])
            finally:
                await shared.leases.release(lease)
        except BackendError as error:
            shared.statistics.unreachable += 1
            raise shared.later(error) from error

    async def _run(self, attempt: Attempt, job: JobFunction) -> None:
        self.attempts[attempt] = None
        self._empty.clear()
        try:
            await attempt.run()
        finally:
            self.attempts.pop(attempt, None)
            self._ended.set()
            self._leave(attempt, job)
            if not self.attempts:
                self._empty.set()

    def _has_slot(self, job: JobFunction) -> bool:
        if len(self.attempts) + self.stuck >= self.slots:
            return False
        if job.max_concurrency is None:
            return True
        running = sum(each.assignment.topic == job.topic for each in self.attempts)
        return running + self._stuck[job.topic] < job.max_concurrency

    async def _slot_soon(self, job: JobFunction) -> bool:
        """Wait a moment for a slot, if attempts of the topic are brief."""
        if job.topic not in self._shared.brief:
            return False
        try:
            async with asyncio.timeout(ROOM_NS / NS):
                while not self._has_slot(job):
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            return False
        return not self.draining

    def _leave(self, attempt: Attempt, job: JobFunction) -> None:
        """The attempt has ended; its function may not be."""
        execution = attempt.execution
        if execution is None or not execution.begun or execution.ending.done():
            return
        self._shared.statistics.overran += 1
        self._stuck[job.topic] += 1
        execution.ending.add_done_callback(partial(self._freed, attempt, job))
        self._adjust()
        self._announce()

    def _freed(self, attempt: Attempt, job: JobFunction, _: asyncio.Future[Any]) -> None:
        self._stuck[job.topic] -= 1
        text = "a function that did not stop has ended; its slot is free again"
        log_event(
            _log, logging.WARNING, text, job=attempt.assignment.job, attempt=attempt.assignment.attempt, topic=job.topic
        )
        self._adjust()
        self._announce()

    def _adjust(self) -> None:
        """Fetch messages while there is a slot that is not blocked by a function that does not stop."""
        if self._consumer is None:
            return
        if self.draining or self.stuck >= self.slots:
            self._consumer.pause()
        else:
            self._consumer.resume()


class Attempt:
    """One attempt: acquire the lease, run the function, report the result, release the lease."""

    def __init__(
        self, shared: _Shared, assignment: Assignment, job: JobFunction, delivery: Delivery, *, may_be_over: bool
    ) -> None:
        self._shared = shared
        self._job = job
        self._delivery = delivery
        self._may_be_over = may_be_over
        self.assignment = assignment
        self.run_fence: int | None = None  # of its lease, once it has one
        self.context: AnyContext | None = None
        self.execution: Execution | None = None
        self._early: tuple[Interruption, str] | None = None

    def interrupt(self, why: Interruption, reason: str) -> None:
        """Stop the attempt, before its function or in it."""
        if self.execution is None:
            self._early = self._early or (why, reason)
        else:
            self.execution.interrupt(why, reason)

    async def run(self) -> None:
        """Returns when the message may be acked; `RetryLater` nacks it."""
        shared = self._shared
        lease, taken = await self._acquire(), shared.clock.now()
        self.run_fence = lease.fence
        try:
            if ARMED:
                await areach("plane.worker.leased")
            found = await self._check(lease.fence, taken.wall)
            if not found.wanted:
                shared.statistics.outdated += 1
            elif found.lost and (letter := given_up(found.lost)) is not None:
                await self._give_up(lease, letter)
            else:
                await self._run_under(lease)
        except asyncio.CancelledError:
            shared.statistics.given_back += 1
            raise
        finally:
            shared.statistics.held_for(self.assignment.topic, elapsed_ns(taken, shared.clock.now()))
            await shared.leases.release(lease)
        if ARMED:
            await areach("plane.worker.released")

    # Before the function is called.

    async def _acquire(self) -> Lease:
        shared, job = self._shared, self.assignment.job
        family: LockFamily = shared.family  # a test reads from this that the lock is a declared one
        longest_s, stall_s = self._max_hold_s(), self._stall_s()
        if longest_s is None and stall_s is None:
            lock = shared.lock_of(job)
        else:
            lock = family.lock(shared.locks, max_hold=longest_s, stall_after=stall_s, job=job)
        try:
            lease = await shared.leases.acquire(lock)
        except BackendError as error:
            shared.statistics.unreachable += 1
            raise shared.later(error) from error
        if lease is None:
            shared.statistics.busy += 1
            raise shared.later(LockBusy(f"job {job} is being run", key=lock.name))
        shared.statistics.taken += 1
        return lease

    async def _check(self, fence: int, now_ns: int) -> Staleness:
        """Whether the message is stale. Checked under the lease: earlier runs have reported their results by now."""
        shared = self._shared
        if shared.staleness is None or not (self._may_be_over or self._has_waited(fence)):
            return _CURRENT
        try:
            found = await shared.staleness.check(self.assignment.name, fence, now_ns, self.assignment.fence)
        except BackendError as error:
            shared.statistics.unreachable += 1
            shared.statistics.given_back += 1
            raise shared.later(error) from error
        if found.wanted and found.silent_since_ns is not None:
            shared.statistics.taken_over.observe(now_ns - found.silent_since_ns)
        return found

    def _has_waited(self, fence: int) -> bool:
        """Whether it has waited for its lease, by the clock of the lease store. `fence`: of that lease."""
        sent = self.assignment.fence
        return sent is not None and apart(sent, fence, LATE_NS)

    async def _give_up(self, lease: Lease, letter: DeadLetterDecision) -> None:
        log_event(_log, logging.ERROR, "an attempt has failed for good", job=self.assignment.job, reason=letter.reason)
        failure = outcome.failed(letter.reason, retryable=False)
        await self._report(failure, lease, {"code": str(letter.code), "took_ns": None})

    def _stall_s(self) -> float | None:
        """When its lease ends without progress: the backstop where a function blocks the event loop."""
        if self._job.stall_after_ns is None:
            return None
        return (self._job.stall_after_ns + self._shared.cancel_grace_ns) / NS + self._shared.family.ttl

    def _max_hold_s(self) -> float | None:
        """How long its lease is renewed: a function that blocks the loop blocks its time limit too.

        The renewer would renew forever; so the lease ends automatically, a TTL after the attempt should be over.
        """
        if self.assignment.timeout_ns is None and self.assignment.deadline_ns is None and self._job.timeout_ns is None:
            return None
        limit_ns = self._limit_ns(self._shared.clock.now())
        if limit_ns is None:
            return None
        return max(0, limit_ns + self._shared.cancel_grace_ns) / NS + self._shared.family.ttl

    def _limit_ns(self, since: Instant) -> int | None:
        """The time limit: the least of those of the job, its function and its deadline."""
        assignment = self.assignment
        until_ns = None if assignment.deadline_ns is None else assignment.deadline_ns - since.wall
        limits = (assignment.timeout_ns, self._job.timeout_ns, until_ns)
        return min((each for each in limits if each is not None), default=None)

    # The function.

    async def _run_under(self, lease: Lease) -> None:
        shared = self._shared
        start = _StartReport(partial(self._report_start, lease))
        try:
            await self._run_and_report(start, lease)
        except (RetryLater, asyncio.CancelledError):
            if start.begun and shared.staleness is not None:
                await report_returned(shared.staleness, self.assignment.name, shared.clock.now().wall)
            raise

    async def _run_and_report(self, start: _StartReport, lease: Lease) -> None:
        shared, assignment = self._shared, self.assignment
        try:
            await start.publish(brief=assignment.topic in shared.brief and self._delivery.deliveries == 1)
            since = shared.clock.now()
            limit_ns = self._limit_ns(since)
            ended = await self._execute(lease, since, limit_ns)
            shared.learn(assignment.topic, took_ns := elapsed_ns(since, shared.clock.now()))
            if ARMED:
                await areach("plane.worker.ran")
            reported = self._outcome(ended, lease, limit_ns)
            if reported is None:
                return
            await start.finish()
        finally:
            start.cancel()
        await self._report(reported, lease, {"took_ns": took_ns})

    async def _execute(self, lease: Lease, since: Instant, limit_ns: int | None) -> Ended | Unfinished:
        """Call the function. Interrupt it when its lease is lost, its time has ended, or it reports no progress."""
        shared, loop, job = self._shared, asyncio.get_running_loop(), self._job
        kind = Context if job.asynchronous else BlockingContext
        store = shared.progress
        report, emit = (None, None) if store is None else (store.report, store.emit)
        context = self.context = kind(
            *(self.assignment, lease, shared.worker, shared.clock, since, limit_ns, report, emit, shared.children)
        )
        execution = self.execution = Execution(shared.threads, context, shared.cancel_grace_ns)
        out_of_time = partial(execution.interrupt, Interruption.TIME_LIMIT, "it has run for as long as it may")

        def lost() -> None:
            execution.interrupt(Interruption.LOST, f"its lease was lost ({lease.lost.reason})")

        if self._early is not None:
            execution.interrupt(*self._early)
        timer: asyncio.TimerHandle | None = None
        if limit_ns is not None and limit_ns <= 0:
            out_of_time()
        elif limit_ns is not None:
            timer = loop.call_later(limit_ns / NS, out_of_time)
        stall = None if job.stall_after_ns is None else StallTimer(job.stall_after_ns, execution, context)
        forget = many.on_loss([lease], lost)
        try:
            return await execution.run(job, self.assignment.payload)
        finally:
            forget()
            if timer is not None:
                timer.cancel()
            if stall is not None:
                stall.cancel()

    def _outcome(self, ended: Ended | Unfinished, lease: Lease, limit_ns: int | None) -> Outcome | None:
        """The outcome to report; None: nothing is reported, and the message is acked. `RetryLater` nacks it."""
        statistics = self._shared.statistics
        why = None if self.execution is None else self.execution.why
        self._log_end(ended, why)
        if lease.lost.is_set():
            statistics.lost += 1
            raise self._shared.later(LockBusy(f"the lease of job {self.assignment.job} was lost", key=lease.key))
        if why is Interruption.STOPPED:
            statistics.stopped += 1
            return None
        if not lease.held:
            return outcome.failed("the function released the lease under which it ran", retryable=False)
        if isinstance(ended, Returned):
            return outcome.returned(ended.value)
        if why is Interruption.DRAINED:
            statistics.given_back += 1
            raise RetryLater(0.0, NotHere(f"the worker of job {self.assignment.job} is ending"))
        trace = None
        if isinstance(ended, Raised) and not isinstance(ended.error, RetryLater | outcome.Quarantine):
            trace = failure_trace(ended.error)
        return replace(self._failure(ended, why, limit_ns), traceback=trace)

    def _failure(self, ended: Raised | Unfinished, why: Interruption | None, limit_ns: int | None) -> Outcome:
        """The outcome of an attempt that returned nothing."""
        statistics = self._shared.statistics
        rest = "; it did not stop when it was told" if isinstance(ended, Unfinished) else ""
        if why is Interruption.TIME_LIMIT:
            statistics.timed_out += 1
            allowed = (limit_ns or 0) / NS
            if allowed <= 0:
                return outcome.failed("timeout: its deadline had passed before it began", retryable=True)
            return outcome.failed(f"timeout: it ran for longer than {allowed:g} s{rest}", retryable=True)
        if why is Interruption.STALLED:
            statistics.stalled += 1
            allowed = (self._job.stall_after_ns or 0) / NS
            return outcome.failed(f"stalled: it reported no progress for {allowed:g} s{rest}", retryable=True)
        if isinstance(ended, Raised) and not isinstance(ended.error, asyncio.CancelledError):
            return outcome.raised(ended.error)
        return outcome.failed("the function cancelled itself", retryable=True)

    def _log_end(self, ended: Ended | Unfinished, why: Interruption | None) -> None:
        if self.context is None:
            return
        if isinstance(ended, Unfinished):
            self.context.log.error("the function was asked to stop (%s) and goes on; its writes are fenced", why)
        elif isinstance(ended, Raised) and why is None and not isinstance(ended.error, _NO_TRACEBACK):
            self.context.log.warning("the attempt failed", exc_info=ended.error)

    # Messages.

    async def _report_start(self, lease: Lease) -> None:
        shared, assignment = self._shared, self.assignment
        message = subjects.started(
            assignment.job, assignment.attempt, shared.worker, carried(lease), made_ns=assignment.made_ns
        )
        await self._publish(message, lease, lambda: shared.bus.publish([message]))

    async def _report(self, reported: Outcome, lease: Lease, more: Mapping[str, Any]) -> None:
        shared = self._shared
        message = _finished(shared, self.assignment, lease, {**reported.body(), **more})
        if shared.progress is not None and self.context is not None and self.context.has_emitted:
            flush = partial(shared.progress.flush, self.assignment.job, lease.fence)
            await self._publish(message, lease, flush)
        await self._publish(message, lease, lambda: shared.bus.publish([message]))
        if ARMED:
            await areach("plane.worker.said")
        shared.finished.keep(self.assignment.name, message, reported.size)
        self._count(reported)

    async def _publish(self, message: Message, lease: Lease, publish: Callable[[], Awaitable[None]]) -> None:
        """Publish, and try again while the lease is held and the worker is not in a hurry."""
        shared, tries = self._shared, 0
        while True:
            try:
                await publish()
            except BackendError as error:
                shared.statistics.unreachable += 1
                if shared.hurried.is_set() or not lease.held or (self.execution is None and self._early is not None):
                    shared.statistics.given_back += 1
                    raise shared.later(error) from error
                text = "a message could not be published and is tried again"
                log_event(_log, logging.WARNING, text, error, message=message.id, job=self.assignment.job)
            else:
                return
            delay_ns = shared.delays.backend.delay_ns(tries, 0, shared.entropy.below)
            tries += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_ns / NS):
                    await shared.hurried.wait()

    def _count(self, reported: Outcome) -> None:
        statistics = self._shared.statistics
        if reported.status is Status.SUCCEEDED:
            statistics.succeeded += 1
        elif reported.status is Status.QUARANTINED:
            statistics.quarantined += 1
        elif reported.retryable:
            statistics.retried += 1
        else:
            statistics.failed += 1


class _StartReport:
    """Publishes `job.started`: before the function is called, while it runs, or never."""

    def __init__(self, publish: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._publish = publish
        self._timer: asyncio.TimerHandle | None = None
        self._publishing: asyncio.Task[None] | None = None
        self.begun = False  # it was published, or may have been

    async def publish(self, *, brief: bool) -> None:
        """Publish it now; if the attempt is expected to be brief, only after `BRIEF_NS`."""
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
        self._publishing = asyncio.get_running_loop().create_task(self._publish())

    async def finish(self) -> None:
        """The function has ended: a message on its way is published before the result."""
        if self._publishing is not None:
            await self._publishing

    def cancel(self) -> None:
        """Publish nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._publishing is not None and not self._publishing.done():
            self._publishing.cancel()
        elif self._publishing is not None and not self._publishing.cancelled():
            self._publishing.exception()  # `finish` has raised it, or the attempt had ended otherwise


class ResultCache:
    """The newest results that a worker has published, by attempt (`Assignment.name`). Bounded in number and size.

    A message whose ack was lost comes back. If it comes to the worker that finished it, the result is published again
    instead of running the attempt again; it changes nothing, because the scheduler knows that the job has ended. This
    spares work and is no promise: only a guard prevents a repeated effect.
    """

    def __init__(self, most: int = RESULTS_MAX, chars: int = RESULT_CHARS_MAX) -> None:
        self._most = most
        self._chars = chars
        self._size = 0
        self._known: OrderedDict[tuple[str, int, int], tuple[Message, int]] = OrderedDict()

    def keep(self, name: tuple[str, int, int], message: Message, size: int) -> None:
        """Remember the result of an attempt, which is `size` characters long; forget the oldest if there is no room."""
        self.forget(name)
        self._known[name] = message, size
        self._size += size
        while len(self._known) > self._most or self._size > self._chars:
            self._size -= self._known.popitem(last=False)[1][1]

    def get(self, name: tuple[str, int, int]) -> Message | None:
        """The result of an attempt, if it is known."""
        found = self._known.get(name)
        return None if found is None else found[0]

    def forget(self, name: tuple[str, int, int]) -> None:
        """Forget one."""
        found = self._known.pop(name, None)
        if found is not None:
            self._size -= found[1]

    def __len__(self) -> int:
        return len(self._known)


def _finished(shared: _Shared, assignment: Assignment, lease: Lease, body: Mapping[str, Any]) -> Message:
    """The message `job.result` of an attempt under its lease."""
    return subjects.finished(
        assignment.job, assignment.attempt, shared.worker, carried(lease), body, made_ns=assignment.made_ns
    )


def _finishing_ns(grace_ns: int, cancel_grace_ns: int) -> int:
    """The part of the grace period in which attempts may finish; the rest is for stopping."""
    return max(0, grace_ns - cancel_grace_ns - SETTLE_NS)


def _stopping_ns(grace_ns: int, cancel_grace_ns: int) -> int:
    """How long a drain waits for interrupted functions. The rest is for returning and closing."""
    whole_ns = max(grace_ns, cancel_grace_ns)
    return min(cancel_grace_ns, whole_ns - min(SETTLE_NS, whole_ns // 2))


def _chosen(app: App, pools: Sequence[str] | None) -> tuple[str, ...]:
    if not app.functions:
        raise BadInput("app", f"{app.name} has no jobs", "decorate a function with @app.job(topic)")
    if pools is None:
        return app.pools
    chosen = tuple(dict.fromkeys(check_name("pool", pool) for pool in pools))
    unknown = [pool for pool in chosen if pool not in app.pools]
    if unknown or not chosen:
        have = ", ".join(app.pools)
        raise BadInput("pools", f"{', '.join(unknown) or 'none'}: {app.name} has no topic there", f"use {have}")
    return chosen


def _own_name(app: App) -> str:
    """A unique name: app, host, process, and a few random characters."""
    owner = this_owner(app.name)
    host = re.sub(r"[^A-Za-z0-9_-]", "-", owner.host)[:30]
    return f"{app.name[:40]}-{host}-{owner.pid}-{owner.instance}"
