"""The dispatcher fills free slots of each pool with the next jobs of its queue.

Promises:

- Tenants take turns. Within a tenant the highest priority goes first, then the oldest job. A job that cannot go does
  not delay those behind it, nor does a topic that has fewer slots than the pool (`quotas`).
- The process that frees a slot fills it: the scheduler that writes a result dispatches the next job, and others are not
  notified. If that process has no scheduler (a time limit, a cancellation), or a worker joins, the pool is notified.
  Every dispatcher also polls about once a second, for lost notifications and schedulers that died.
- A poll costs the same however many jobs are stored.
- Concurrent dispatchers never dispatch a job twice, nor more jobs than workers have slots for, of a topic or in all:
  the job's lock and the counts decide.
- Prefetched jobs, and jobs of workers that have left, go back into the queue if they have not started within a second.
  They lose no attempt. So do jobs of a topic that has fewer slots than jobs, or no worker, although the pool has room.
- Jobs of a topic that no worker serves wait in the queue of the topic. When a worker announces the topic they go
  immediately; those in other pools are moved to one that serves it.

Does not promise a strict order between several schedulers: each takes turns on its own.

Clock: the event loop's, for waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from holdfast.errors import BackendError, Closed, LockBusy, RetryLater
from holdfast.flows.log import OutageLog, log_event
from holdfast.plane.db.batcher import finished
from holdfast.plane.db.ports import ChannelListener
from holdfast.plane.db.statements import sql
from holdfast.plane.fleet.registry import View
from holdfast.plane.model.messages import EVERY_POOL, pool_channel
from holdfast.plane.scheduler.dispatch_queue import QueueQuery, QueueSnapshot, read_queue
from holdfast.plane.scheduler.fair_share import select_jobs
from holdfast.plane.scheduler.placement import Placement, PlacementResult
from holdfast.plane.scheduler.prefetch import UNSTARTED_NS
from holdfast.plane.scheduler.topic_backlog import TopicSlots
from holdfast.types import MS, NS

BATCH: Final = 64  # jobs of one round
IDLE_NS: Final = NS
IDLE_SPREAD_NS: Final = 500 * MS
IN_VAIN_NS: Final = 100 * MS
PASSED_OVER_NS: Final = 20 * MS  # doubled each time that the lock of the same job is held
PASSED_OVER_MAX_NS: Final = NS

_IN_VAIN: Final = (
    None,
    PlacementResult.POOL_FULL,
    PlacementResult.TENANT_FULL,
    PlacementResult.TOPIC_FULL,
)  # the job is still where it was

_IN_VAIN_MAX: Final = 10_000

OVERDUE_S: Final = 10.0
"""For so long after a topic has lost slots, its jobs are checked: other schedulers may still use an older view."""

COUNT_EVERY_S: Final = 1.0

_TOPICS: Final = sql("pool_topics")

_log = logging.getLogger("holdfast")


@dataclass(slots=True)
class _PoolState:
    """What a dispatcher remembers of one pool."""

    name: str
    notified: asyncio.Event = field(default_factory=asyncio.Event)
    topic_queues: bool = True  # a job may wait in the queue of a topic
    turns: dict[str, str] = field(default_factory=dict)  # by topic with slots of its own, the tenant of the last job
    crowded: bool = False  # after the last round, more jobs waited than slots were free
    cursor: str = ""  # the tenant of the last job
    passed_over: dict[str, float] = field(default_factory=dict)  # jobs whose lock is held, and until when to skip them
    in_vain: Counter[str] = field(default_factory=Counter)  # how often the lock of each was held
    slots: Mapping[str, int] = field(default_factory=dict)  # by topic, after the last read
    since: Mapping[str, int] = field(default_factory=dict)  # by topic, since when it is served
    overdue: float = 0.0  # until when, on the loop's clock, topics may have more jobs than slots
    counted: float = 0.0  # when the jobs with workers were last counted by topic
    trouble: OutageLog = field(init=False)

    def __post_init__(self) -> None:
        self.trouble = OutageLog(
            _log, "the queue of a pool cannot be read", "the queue of a pool is read again", pool=self.name
        )


class Dispatcher:
    """The dispatcher of one scheduler."""

    def __init__(self, placement: Placement, *, batch: int = BATCH, idle_ns: int = IDLE_NS) -> None:
        self._placement = placement
        self._store = placement.store
        self._batch = batch
        self._idle_ns = idle_ns
        self._pools: dict[str, _PoolState] = {}
        self._listeners: list[ChannelListener] = []
        self._running: asyncio.Task[None] | None = None
        self._unread = OutageLog(_log, "the workers could not be read", "the workers can be read again")
        self.tally: Counter[str] = Counter()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Dispatcher]:
        """Dispatch while the block runs. Leaving it finishes the current rounds and begins no more."""
        slots = self._store.slots
        before, slots.on_freed = slots.on_freed, self.wake
        stop = asyncio.Event()
        loops = self._running = asyncio.create_task(self._loops(stop))
        try:
            yield self
        finally:
            slots.on_freed = before
            stop.set()
            for listener in self._listeners:
                listener.close()
            self._listeners.clear()
            for state in self._pools.values():
                state.notified.set()
            await finished(_end(loops))
            self._pools.clear()

    async def ended(self) -> None:
        """Return when dispatching has ended, or raise why it did."""
        if self._running is not None:
            await asyncio.shield(self._running)

    def wake(self, pool: str) -> None:
        """Poll a pool now: there may be a new job or a free slot."""
        state = self._pools.get(pool)
        if state is not None:
            state.notified.set()

    def crowded(self, pool: str) -> bool:
        """Whether jobs were left waiting after the last round: then new jobs are enqueued, too."""
        state = self._pools.get(pool)
        return state is not None and state.crowded

    @property
    def any_crowded(self) -> bool:
        """Whether any pool is crowded."""
        return any(state.crowded for state in self._pools.values())

    def mark_crowded(self, pool: str) -> None:
        """Note that a job found no slot."""
        state = self._pools.get(pool)
        if state is not None:
            state.crowded = True

    def statistics(self) -> dict[str, int]:
        """Rounds, and outcomes of the jobs in them."""
        return dict(self.tally)

    # The loops.

    async def _loops(self, stop: asyncio.Event) -> None:
        """One loop for each pool, and one that finds new pools."""
        async with asyncio.TaskGroup() as tasks:
            listener, notified = self._listen_to(EVERY_POOL), False
            while not stop.is_set():
                served = await self._served()
                if notified:  # only now the new workers are known
                    for state in self._pools.values():
                        state.notified.set()
                for name in served.pools or ():
                    if name not in self._pools and not stop.is_set():
                        state = self._pools[name] = _PoolState(name)
                        state.overdue = asyncio.get_running_loop().time() + OVERDUE_S
                        tasks.create_task(self._listen(state, self._listen_to(pool_channel(name))))
                        tasks.create_task(self._serve(state, stop))
                for topic in self._newly_served(served) if not stop.is_set() else ():
                    tasks.create_task(self._adopt(topic))
                notified = await _notified(listener, self._pause_ns())

    async def _listen(self, state: _PoolState, listener: ChannelListener) -> None:
        with contextlib.suppress(Closed):
            while True:  # ends when the listener is closed
                if await listener.wait(3600 * NS):
                    state.notified.set()

    async def _serve(self, state: _PoolState, stop: asyncio.Event) -> None:
        while not stop.is_set():
            state.notified.clear()
            pause_ns = await self._round_or_pause(state)
            if pause_ns and not state.notified.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_ns / NS):
                        await state.notified.wait()

    async def _round_or_pause(self, state: _PoolState) -> int:
        try:
            pause_ns = await self._round(state)
            if self._placement.unstarted.watches(state.name):
                pause_ns = min(pause_ns, IN_VAIN_NS)
        except (BackendError, Closed) as error:
            state.trouble.met(error)
            return self._pause_ns()
        except Exception as error:  # noqa: BLE001 - trouble with one pool must not end dispatching for the others
            self.tally["errors"] += 1
            log_event(_log, logging.ERROR, "a round of a pool failed and is repeated", error, pool=state.name)
            return self._pause_ns()
        state.trouble.ended()
        return pause_ns

    async def _served(self) -> View:
        try:
            served = await self._placement.workers.view(fresh=True)
        except Exception as error:  # noqa: BLE001 - one unreadable row must not end all dispatching
            self.tally["errors"] += not isinstance(error, BackendError | Closed)
            self._unread.met(error)
            return View()
        self._unread.ended()
        return served

    def _newly_served(self, view: View) -> set[str]:
        """Topics that are served in a pool since a moment ago. Notes what has changed."""
        newly: set[str] = set()
        for name, state in self._pools.items() if view.pools is not None else ():
            pool = view.pool(name)
            slots = {topic: pool.places.get(topic, pool.capacity) for topic in pool.topics or ()}
            since = {topic: view.since[name, topic] for topic in slots}
            if new := {topic for topic in slots if since[topic] != state.since.get(topic)}:
                newly |= new
                state.topic_queues = True
                state.notified.set()
            if any(slots.get(topic, 0) < before for topic, before in state.slots.items()):
                state.overdue = asyncio.get_running_loop().time() + OVERDUE_S
            state.slots, state.since = slots, since
        return newly

    async def _adopt(self, topic: str) -> None:
        """Move jobs that waited for a topic in other pools. If that fails, the replayer does it later."""
        try:
            self.tally["adopted"] += await self._placement.adopt(topic)
        except (BackendError, Closed) as error:
            log_event(_log, logging.INFO, "jobs that wait for a topic are moved later", error, topic=topic)
        except Exception as error:  # noqa: BLE001 - trouble with one topic must not end dispatching for the others
            self.tally["errors"] += 1
            log_event(_log, logging.ERROR, "jobs that wait for a topic could not be moved", error, topic=topic)

    def _listen_to(self, channel: str) -> ChannelListener:
        listener = self._store.database.listen(channel)
        self._listeners.append(listener)
        return listener

    def _pause_ns(self, state: _PoolState | None = None) -> int:
        """How long to wait for a notification. Skipped jobs are tried again when their time has ended."""
        if state is not None and state.passed_over:
            left_s = min(state.passed_over.values()) - asyncio.get_running_loop().time()
            return max(MS, round(left_s * NS))
        return self._idle_ns + self._store.entropy.below(IDLE_SPREAD_NS)

    # One round.

    async def _round(self, state: _PoolState) -> int:
        """Fill free slots of a pool with one batch. Returns how long to wait before the next round."""
        view = await self._placement.workers.view()
        capacity = self._placement.capacity(view, state.name)
        found = await self._find(state, capacity, view)
        if found.free < 0:  # it has more jobs than slots: prefetched, or sent to workers that have left
            self.tally["taken_back"] += await self._placement.take_back(state.name, -found.free)
        await self._reclaim(state, view)
        if not view.pool(state.name).workers:
            state.crowded = False  # new jobs are placed one by one, which records why they wait
            return self._pause_ns()
        self.tally["rounds"] += 1
        selection = select_jobs(found.queues, min(found.free, self._batch))
        state.crowded = (
            found.more or found.free <= 0 or sum(len(queue.jobs) for queue in found.queues) > len(selection.jobs)
        )
        if not selection.jobs:
            before, state.cursor = state.cursor, found.examined or state.cursor
            # No tenant of this page may have more jobs: read the next page, until the end of the alphabet.
            return 0 if found.more and state.cursor > before else self._pause_ns(state)
        state.cursor = selection.last or state.cursor
        going = found.backlog.selected
        state.turns.update(going[job] for job in selection.jobs if job in going)
        # Jobs of topics with slots of their own have to be counted; the others should not wait for that.
        plain, counted = [[job for job in selection.jobs if (job in going) is it] for it in (False, True)]
        placed: list[PlacementResult | None] = []
        for jobs in filter(None, (plain, counted)):
            results = await self._placement.place_all(jobs)
            placed += [self._placed(state, job, end) for job, end in zip(jobs, results, strict=True)]
        if PlacementResult.TOPIC_QUEUED in placed:
            return 0  # that made room for other jobs; and a slot of their topic may be free by now
        if all(each in _IN_VAIN for each in placed):
            return min(IN_VAIN_NS, self._pause_ns(state))
        return 0 if state.crowded else self._pause_ns(state)

    async def _reclaim(self, state: _PoolState, view: View) -> None:
        """Take back jobs of topics that have more jobs than slots, for a while after slots were lost."""
        now = asyncio.get_running_loop().time()
        if not state.counted + COUNT_EVERY_S <= now <= state.overdue:
            return
        state.counted = now
        values = {"pool": state.name, "until_ns": self._store.clock.now().wall - UNSTARTED_NS}
        rows = await self._store.database.read(lambda tx: tx.query(_TOPICS, values), one_view=False, lasting=False)
        pool, slots = view.pool(state.name), self._placement.topic_slots(view, state.name)
        for row in rows:
            topic = row["topic"]
            if pool.workers_for(topic) and topic not in slots:
                continue
            surplus = min(row["with_workers"] - slots.get(topic, 0), row["unbegun"])
            if surplus > 0:
                self.tally["taken_back"] += await self._placement.take_back(state.name, surplus, topic)

    def _placed(self, state: _PoolState, job_id: str, placed: PlacementResult | RetryLater) -> PlacementResult | None:
        """Note the outcome for a job; None: its lock is held, or a store has failed."""
        if isinstance(placed, RetryLater):
            busy = isinstance(placed.__cause__, LockBusy)
            self.tally["busy" if busy else "in_trouble"] += 1
            pause_ns = min(PASSED_OVER_NS << min(state.in_vain[job_id], 8), PASSED_OVER_MAX_NS)
            state.in_vain[job_id] += 1
            state.passed_over[job_id] = asyncio.get_running_loop().time() + pause_ns / NS
            return None
        state.in_vain.pop(job_id, None)
        self.tally[str(placed)] += 1
        return placed

    async def _find(self, state: _PoolState, capacity: int, view: View) -> QueueSnapshot:
        """Read the queue: a page of tenants after the last one, and of each as many jobs as may go."""
        now = asyncio.get_running_loop().time()
        state.passed_over = {job: until for job, until in state.passed_over.items() if until > now}
        if len(state.in_vain) > _IN_VAIN_MAX:
            state.in_vain.clear()  # other schedulers have finished most of them
        query = QueueQuery(
            state.name,
            capacity,
            self._batch,
            state.cursor,
            frozenset(state.passed_over),
            self._store.slots.slots,
            self._topic_slots(state, view),
        )
        # Not one consistent view: each job is decided again under its lock.
        found = await self._store.database.read(lambda tx: read_queue(tx, query), one_view=False, lasting=False)
        if query.topics is not None and found.free > 0:
            state.topic_queues = found.backlog.waiting
            state.turns.update(found.backlog.last)
        return found

    def _topic_slots(self, state: _PoolState, view: View) -> TopicSlots | None:
        """The topics with fewer slots than the pool. None: there are none, and were none at the last read."""
        slots = self._placement.topic_slots(view, state.name)
        if not slots and not state.topic_queues:
            state.turns.clear()
            return None
        return TopicSlots(slots, frozenset(view.pool(state.name).topics or ()), state.turns)


async def _end(loops: asyncio.Task[None]) -> None:
    await loops


async def _notified(listener: ChannelListener, timeout_ns: int) -> bool:
    try:
        return await listener.wait(timeout_ns)
    except Closed:
        return False
