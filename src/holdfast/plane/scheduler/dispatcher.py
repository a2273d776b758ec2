"""Fair dispatch: when a place in a pool is free, the next job for it is found and handed out.

Promises: tenants take turns, and within a tenant the highest priority goes first, then the oldest; a job that cannot go
does not hold up those behind it, nor does a topic that has fewer places than the pool (`topicplaces`). A free place is
filled by whoever made it free: the process that wrote the result looks for the next job at once, and the others are not
bothered. Where no scheduler was at hand (a time limit, a cancel in another process), or a worker comes, the bell of the
pool rings for all; and everybody looks every second or so, for rings that were lost and schedulers that died. A look
costs the same however many jobs are stored. Several dispatchers at once never hand out a job twice, nor more jobs than
the workers can take, of a topic or in all: the job's lock and the counts decide.

What was sent to workers ahead of time (`plane.scheduler.prefetch`), or to workers that have left, and is not begun
within a second, is put back in line, without having cost an attempt. So are jobs of a topic that has fewer slots than
jobs were sent, or that no worker serves any more, although the pool as a whole has room.

Jobs of a topic that no worker serves wait in the queue of the topic. When a worker announces the topic they go
immediately, and those that wait in another pool are moved to one that serves it.

Does not promise a strict order between several schedulers, each of which takes turns by itself.

Clock: the event loop's, for waiting; the wall clock decides what is due, elsewhere.
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
from holdfast.flows.log import Trouble, say
from holdfast.plane.db.batcher import finished
from holdfast.plane.db.ports import Bell
from holdfast.plane.db.statements import sql
from holdfast.plane.fleet.registry import View
from holdfast.plane.model.messages import EVERY_POOL, pool_channel
from holdfast.plane.scheduler.dispatch_queue import Found, Look, look
from holdfast.plane.scheduler.fair_share import next_turn
from holdfast.plane.scheduler.placement import Placed, Placement
from holdfast.plane.scheduler.prefetch import UNBEGUN_NS
from holdfast.plane.scheduler.topic_backlog import Scarce
from holdfast.types import MS, NS

BATCH: Final = 64  # looks at once
IDLE_NS: Final = NS
IDLE_SPREAD_NS: Final = 500 * MS
IN_VAIN_NS: Final = 100 * MS
PASSED_OVER_NS: Final = 20 * MS  # doubled each time that the same job is found in somebody's hands
PASSED_OVER_MAX_NS: Final = NS

_IN_VAIN: Final = (None, Placed.POOL_FULL, Placed.TENANT_FULL, Placed.TOPIC_FULL)  # the job is still where it was

_IN_VAIN_MAX: Final = 10_000

OVERDUE_S: Final = 10.0
"""For so long after a topic has lost slots, its jobs are looked at: schedulers send by views that may be older."""

COUNT_EVERY_S: Final = 1.0

_TOPICS: Final = sql("queue_topics")

_log = logging.getLogger("holdfast")


@dataclass(slots=True)
class _PoolState:
    """What a dispatcher remembers of one pool."""

    name: str
    rung: asyncio.Event = field(default_factory=asyncio.Event)
    aside: bool = True  # somebody may wait for a place of its topic
    turns: dict[str, str] = field(default_factory=dict)  # by such topic, the tenant that had the last turn
    crowded: bool = False  # when last looked at, more waited than there was room for
    cursor: str = ""  # the tenant that had the last turn
    passed_over: dict[str, float] = field(default_factory=dict)  # jobs that somebody else has, and until when
    in_vain: Counter[str] = field(default_factory=Counter)  # how often each of them was found so
    slots: Mapping[str, int] = field(default_factory=dict)  # by topic, how many it had when last looked at
    since: Mapping[str, int] = field(default_factory=dict)  # by topic, since when it was served then
    overdue: float = 0.0  # until when, on the loop's clock, jobs may be with fewer workers than were there for them
    counted: float = 0.0  # when the jobs that are with workers were last counted by topic
    trouble: Trouble = field(init=False)

    def __post_init__(self) -> None:
        self.trouble = Trouble(_log, "a pool is not looked at", "a pool is looked at again", pool=self.name)


class Dispatcher:
    """The dispatcher of one scheduler. Runs while its block does."""

    def __init__(self, placement: Placement, *, batch: int = BATCH, idle_ns: int = IDLE_NS) -> None:
        self._placement = placement
        self._store = placement.store
        self._batch = batch
        self._idle_ns = idle_ns
        self._pools: dict[str, _PoolState] = {}
        self._bells: list[Bell] = []
        self._running: asyncio.Task[None] | None = None
        self._unread = Trouble(_log, "the workers could not be read", "the workers can be read again")
        self.tally: Counter[str] = Counter()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Dispatcher]:
        """Dispatch while the block runs. Leaving it lets looks that have begun finish, and begins no more."""
        slots = self._store.slots
        before, slots.on_freed = slots.on_freed, self.wake
        stop = asyncio.Event()
        loops = self._running = asyncio.create_task(self._loops(stop))
        try:
            yield self
        finally:
            slots.on_freed = before
            stop.set()
            for bell in self._bells:
                bell.close()
            self._bells.clear()
            for state in self._pools.values():
                state.rung.set()
            await finished(_end(loops))
            self._pools.clear()

    async def ended(self) -> None:
        """Return when dispatching has ended, or raise why it did."""
        if self._running is not None:
            await asyncio.shield(self._running)

    def wake(self, pool: str) -> None:
        """Look at a pool: there may be a place, or a job, that was not there before."""
        state = self._pools.get(pool)
        if state is not None:
            state.rung.set()

    def crowded(self, pool: str) -> bool:
        """Whether jobs were left waiting in a pool when it was last looked at: then newcomers stand in line too."""
        state = self._pools.get(pool)
        return state is not None and state.crowded

    @property
    def any_crowded(self) -> bool:
        """Whether any pool is crowded: if not, nobody has to ask which."""
        return any(state.crowded for state in self._pools.values())

    def crowd(self, pool: str) -> None:
        """Note that a job found no place."""
        state = self._pools.get(pool)
        if state is not None:
            state.crowded = True

    def statistics(self) -> dict[str, int]:
        """How many rounds were made, and what became of the looks."""
        return dict(self.tally)

    # The loops.

    async def _loops(self, stop: asyncio.Event) -> None:
        """One loop for each pool, and one that finds new pools."""
        async with asyncio.TaskGroup() as tasks:
            bell, rung = self._bell(EVERY_POOL), False
            while not stop.is_set():
                served = await self._served()
                if rung:  # only now it is known who has come
                    for state in self._pools.values():
                        state.rung.set()
                for name in served.pools or ():
                    if name not in self._pools and not stop.is_set():
                        state = self._pools[name] = _PoolState(name)
                        state.overdue = asyncio.get_running_loop().time() + OVERDUE_S
                        tasks.create_task(self._listen(state, self._bell(pool_channel(name))))
                        tasks.create_task(self._serve(state, stop))
                for topic in self._newly_served(served) if not stop.is_set() else ():
                    tasks.create_task(self._adopt(topic))
                rung = await _rung(bell, self._pause_ns())

    async def _listen(self, state: _PoolState, bell: Bell) -> None:
        with contextlib.suppress(Closed):
            while True:  # ends when the bell is closed
                if await bell.wait(3600 * NS):
                    state.rung.set()

    async def _serve(self, state: _PoolState, stop: asyncio.Event) -> None:
        while not stop.is_set():
            state.rung.clear()
            pause_ns = await self._round_or_pause(state)
            if pause_ns and not state.rung.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_ns / NS):
                        await state.rung.wait()

    async def _round_or_pause(self, state: _PoolState) -> int:
        try:
            pause_ns = await self._round(state)
            if self._placement.unbegun.watches(state.name):
                pause_ns = min(pause_ns, IN_VAIN_NS)
        except (BackendError, Closed) as error:
            state.trouble.met(error)
            return self._pause_ns()
        except Exception as error:  # noqa: BLE001 - one pool's trouble must not end the dispatching of all others
            self.tally["errors"] += 1
            say(_log, logging.ERROR, "a look at a pool failed; it will be looked at again", error, pool=state.name)
            return self._pause_ns()
        state.trouble.ended()
        return pause_ns

    async def _served(self) -> View:
        try:
            served = await self._placement.workers.view(fresh=True)
        except Exception as error:  # noqa: BLE001 - one row that cannot be read must not end all dispatching for good
            self.tally["errors"] += not isinstance(error, BackendError | Closed)
            self._unread.met(error)
            return View()
        self._unread.ended()
        return served

    def _newly_served(self, view: View) -> set[str]:
        """Topics that were not served in a pool until lately, if only for a moment. Notes what has changed."""
        newly: set[str] = set()
        for name, state in self._pools.items() if view.pools is not None else ():
            pool = view.pool(name)
            slots = {topic: pool.places.get(topic, pool.capacity) for topic in pool.topics or ()}
            since = {topic: view.since[name, topic] for topic in slots}
            if new := {topic for topic in slots if since[topic] != state.since.get(topic)}:
                newly |= new
                state.aside = True
                state.rung.set()
            if any(slots.get(topic, 0) < before for topic, before in state.slots.items()):
                state.overdue = asyncio.get_running_loop().time() + OVERDUE_S
            state.slots, state.since = slots, since
        return newly

    async def _adopt(self, topic: str) -> None:
        """Move jobs that waited for a topic in other pools. If that fails, the replayer does it later."""
        try:
            self.tally["adopted"] += await self._placement.adopt(topic)
        except (BackendError, Closed) as error:
            say(_log, logging.INFO, "jobs that wait for a topic are moved later", error, topic=topic)
        except Exception as error:  # noqa: BLE001 - one topic's trouble must not end the dispatching of all others
            self.tally["errors"] += 1
            say(_log, logging.ERROR, "jobs that wait for a topic could not be moved", error, topic=topic)

    def _bell(self, channel: str) -> Bell:
        bell = self._store.database.bell(channel)
        self._bells.append(bell)
        return bell

    def _pause_ns(self, state: _PoolState | None = None) -> int:
        """How long to wait for a ring. Jobs that were passed over are looked at again when their time is over."""
        if state is not None and state.passed_over:
            left_s = min(state.passed_over.values()) - asyncio.get_running_loop().time()
            return max(MS, round(left_s * NS))
        return self._idle_ns + self._store.entropy.below(IDLE_SPREAD_NS)

    # One round.

    async def _round(self, state: _PoolState) -> int:
        """Fill the free places of a pool as far as they go in one batch. How long to wait before the next round."""
        view = await self._placement.workers.view()
        capacity = self._placement.capacity(view, state.name)
        found = await self._find(state, capacity, view)
        if found.free < 0:  # it was sent more than it can take now: ahead of time, or to workers that have left
            self.tally["taken_back"] += await self._placement.take_back(state.name, -found.free)
        await self._reclaim(state, view)
        if not view.pool(state.name).workers:
            state.crowded = False  # newcomers should find out for themselves why they cannot go
            return self._pause_ns()
        self.tally["rounds"] += 1
        turn = next_turn(found.lines, min(found.free, self._batch))
        state.crowded = found.more or found.free <= 0 or sum(len(line.jobs) for line in found.lines) > len(turn.jobs)
        if not turn.jobs:
            before, state.cursor = state.cursor, found.examined or state.cursor
            # A page of tenants that may have no more: on to the next, until the end of the alphabet.
            return 0 if found.more and state.cursor > before else self._pause_ns(state)
        state.cursor = turn.last or state.cursor
        state.turns.update(found.going[job] for job in turn.jobs if job in found.going)
        # Whoever takes a place of its topic has to be counted, which is nothing that others should wait for.
        plain, counted = [[job for job in turn.jobs if (job in found.going) is it] for it in (False, True)]
        placed: list[Placed | None] = []
        for jobs in filter(None, (plain, counted)):
            found_out = await self._placement.try_all(jobs)
            placed += [self._placed(state, job, end) for job, end in zip(jobs, found_out, strict=True)]
        if Placed.ASIDE in placed:
            return 0  # they have made room for others in line; and a place of their topic may be free by now
        if all(each in _IN_VAIN for each in placed):
            return min(IN_VAIN_NS, self._pause_ns(state))
        return 0 if state.crowded else self._pause_ns(state)

    async def _reclaim(self, state: _PoolState, view: View) -> None:
        """Take back jobs of topics that have fewer slots than jobs were sent, for a while after slots were lost."""
        now = asyncio.get_running_loop().time()
        if not state.counted + COUNT_EVERY_S <= now <= state.overdue:
            return
        state.counted = now
        values = {"pool": state.name, "until_ns": self._store.clock.now().wall - UNBEGUN_NS}
        rows = await self._store.database.read(lambda tx: tx.query(_TOPICS, values), one_view=False, lasting=False)
        pool, places = view.pool(state.name), self._placement.topic_places(view, state.name)
        for row in rows:
            topic = row["topic"]
            if pool.workers_for(topic) and topic not in places:
                continue
            surplus = min(row["with_workers"] - places.get(topic, 0), row["unbegun"])
            if surplus > 0:
                self.tally["taken_back"] += await self._placement.take_back(state.name, surplus, topic)

    def _placed(self, state: _PoolState, job_id: str, placed: Placed | RetryLater) -> Placed | None:
        """Note what became of a look; None: somebody else has the job, or a store is in trouble."""
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

    async def _find(self, state: _PoolState, capacity: int, view: View) -> Found:
        """Read what waits: a page of tenants from the one after the last, and of each as many jobs as may go."""
        now = asyncio.get_running_loop().time()
        state.passed_over = {job: until for job, until in state.passed_over.items() if until > now}
        if len(state.in_vain) > _IN_VAIN_MAX:
            state.in_vain.clear()  # most of them were finished by others meanwhile
        at = Look(
            state.name,
            capacity,
            self._batch,
            state.cursor,
            frozenset(state.passed_over),
            self._store.slots.slots,
            self._scarce(state, view),
        )
        # No view of it all: whatever is found is looked at again before it is handed out.
        found = await self._store.database.read(lambda tx: look(tx, at), one_view=False, lasting=False)
        if at.scarce is not None and found.free > 0:
            state.aside = found.asides.waiting
            state.turns.update(found.asides.last)
        return found

    def _scarce(self, state: _PoolState, view: View) -> Scarce | None:
        """What is known of topics that have fewer places than the pool. None: there are none, nor were there any."""
        places = self._placement.topic_places(view, state.name)
        if not places and not state.aside:
            state.turns.clear()
            return None
        return Scarce(places, frozenset(view.pool(state.name).topics or ()), state.turns)


async def _end(loops: asyncio.Task[None]) -> None:
    await loops


async def _rung(bell: Bell, timeout_ns: int) -> bool:
    try:
        return await bell.wait(timeout_ns)
    except Closed:
        return False
