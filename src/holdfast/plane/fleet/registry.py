"""The worker registry: stores heartbeats, and derives the slots of each pool from them.

Promises: a worker without a heartbeat for its TTL does not count as alive. An older heartbeat never replaces a newer
one. When a worker joins, returns, or has more slots than before, even of one topic, the dispatchers of its pool are
notified. Does not promise that a worker is alive: only that it sent a heartbeat within the TTL. Views are read from the
database at most every `refresh_ns`.

**Names**: two workers under one name would receive each other's stop messages. So a name that a living worker of
another process uses is refused; the error names that worker, and the time when the name is free if the worker has died.
A name is free immediately when its worker has left, and on the same host when its process is gone: a worker that
restarts after a crash does not wait. Does not promise to distinguish two workers that start in the same moment.

Clock: the wall clock; a heartbeat carries that of its sender, which may be wrong. So a heartbeat counts for one TTL
after a reader has seen it change, whatever time it has. One with a time in the future counts for one TTL after a reader
has seen it first, and not until that time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.core.failpoints import ARMED, areach
from holdfast.core.ports import Clock
from holdfast.errors import BadInput, HoldfastError
from holdfast.plane.db.batcher import Batcher
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.model.messages import EVERY_POOL, pool_channel
from holdfast.plane.model.records import Heartbeat, check_id, check_whole
from holdfast.types import MS, NS, Owner, check_label

TTL_NS: Final = 30 * NS
REFRESH_NS: Final = 500 * MS
CAPACITY_MAX: Final = 100_000

_RECORD: Final = sql("worker_record")
_GET: Final = sql("worker_get")
_LIST: Final = sql("worker_list")
_LEAVE: Final = sql("worker_leave")
_SWEEP: Final = sql("worker_sweep")


@dataclass(frozen=True, slots=True)
class Pool:
    """The live workers of a pool together."""

    name: str
    workers: int = 0  # live ones that accept jobs
    capacity: int = 0
    topics: Mapping[str, int] | None = None  # by topic, how many live workers serve it
    places: Mapping[str, int] = field(default_factory=dict)  # by topic with fewer slots than the pool, its slots
    shared: frozenset[str] = frozenset()  # topics of workers that only use the shared queue of the pool

    def workers_for(self, topic: str) -> int:
        """How many live workers serve a topic: those that do not drain, and have at least one slot."""
        return 0 if self.topics is None else self.topics.get(topic, 0)


@dataclass(frozen=True, slots=True)
class View:
    """All workers, as they were at one moment."""

    at_ns: int = -1
    pools: Mapping[str, Pool] | None = None
    last_served: Mapping[str, int] = field(
        default_factory=dict
    )  # by topic, the last heartbeat of a worker that serves it

    since: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by pool and topic, since when it is served

    @property
    def known_topics(self) -> AbstractSet[str]:
        """Topics that a worker has announced, alive or not."""
        return self.last_served.keys()

    def pool(self, name: str) -> Pool:
        """One pool. An unknown pool has no workers."""
        return (self.pools or {}).get(name) or Pool(name)

    def serving(self, topic: str) -> list[str]:
        """The pools in which a live worker serves a topic."""
        return [name for name, pool in (self.pools or {}).items() if pool.workers_for(topic)]

    def pool_for(self, topic: str, usual: str) -> str:
        """The pool in which a live worker serves a topic: the usual one if possible, else the first other one by name.

        Not for a job with a requested pool (`subjects.POOL_LABEL`).
        """
        if self.pool(usual).workers_for(topic):
            return usual
        return min(self.serving(topic), default=usual)


class Workers:
    """The workers of one plane."""

    def __init__(self, database: Database, clock: Clock, *, ttl_ns: int = TTL_NS, refresh_ns: int = REFRESH_NS) -> None:
        self._database = database
        self._clock = clock
        self._ttl_ns = ttl_ns
        self._refresh_ns = refresh_ns
        self._view = View()
        self._views: Batcher[None, View] = Batcher(self._read, most=10_000)
        self._refreshing: asyncio.Task[None] | None = None
        self._seen: dict[str, tuple[int, int, bool]] = {}
        self._read_ns = 0

    async def record(self, heartbeat: Heartbeat) -> bool:
        """Store a heartbeat. False: a newer one is known."""
        now_ns = self._clock.now().wall
        values = _values(check_heartbeat(heartbeat), min(heartbeat.at_ns, now_ns))

        async def work(tx: Tx) -> bool:
            known = await tx.query(_GET, {"worker": heartbeat.worker})
            if not await tx.query(_RECORD, values):
                return False
            before = self._alive(known[0], now_ns) if known else None
            if _more(before, heartbeat):
                tx.notify(pool_channel(heartbeat.pool))
                tx.notify(EVERY_POOL)
            return True

        if ARMED:
            await areach("plane.heartbeat.record")
        kept = await self._database.write(work)
        if ARMED:
            await areach("plane.heartbeat.recorded")
        return kept

    async def leave(self, worker: str) -> bool:
        """Note that a worker has left permanently. False: it is not known."""
        values = {"worker": check_id("worker", worker), "at_ns": self._clock.now().wall}
        return bool(await self._database.write(lambda tx: tx.query(_LEAVE, values)))

    async def all(self) -> list[Heartbeat]:
        """Every known worker, alive or not, by name."""
        return await self._all(lasting=True)

    async def _all(self, *, lasting: bool) -> list[Heartbeat]:
        rows = await self._database.read(lambda tx: tx.query(_LIST), one_view=False, lasting=lasting)
        found = [_heartbeat(row) for row in rows]
        now_ns = self._clock.now().wall
        before = self._seen
        last_ns, self._read_ns = self._read_ns, now_ns
        self._seen = {each.worker: _sight(before.get(each.worker), each.at_ns, now_ns, last_ns) for each in found}
        return found

    async def live(self, pool: str | None = None) -> list[Heartbeat]:
        """The workers that are alive, by name."""
        if pool is not None:
            check_label("pool", pool)
        now_ns = self._clock.now().wall
        return [
            each for each in await self.all() if self._is_alive(each, now_ns) and (pool is None or each.pool == pool)
        ]

    async def view(self, *, fresh: bool = False) -> View:
        """All pools, at most `refresh_ns` old; with `fresh`, as they are now."""
        age_ns = self._clock.now().wall - self._view.at_ns
        if fresh or not 0 <= age_ns < self._refresh_ns:
            return await self._views.ask(None)  # concurrent callers share the next one
        if 2 * age_ns >= self._refresh_ns and (self._refreshing is None or self._refreshing.done()):
            # Under load the view is refreshed before it is too old, so that no caller waits for it.
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        return self._view

    async def _refresh(self) -> None:
        with contextlib.suppress(HoldfastError):  # a caller that needs it reads again, and gets the error
            await self._views.ask(None)

    async def _read(self, askers: Sequence[None]) -> Sequence[View]:
        now_ns = self._clock.now().wall
        workers = await self._all(lasting=False)
        live = [each for each in workers if self._is_alive(each, now_ns)]
        last: dict[str, int] = {}
        for each in workers:
            last.update((topic, each.at_ns) for topic in each.topics if each.at_ns > last.get(topic, -1))
        pools, before = _pools(live), self._view.since
        served = ((name, topic) for name, pool in pools.items() for topic in pool.topics or ())
        self._view = View(now_ns, pools, last, {each: before.get(each, now_ns) for each in served})
        return [self._view] * len(askers)

    async def sweep(self, before_ns: int) -> int:
        """Delete workers without a heartbeat since a time, and with them the topics that only they served."""
        values = {"before_ns": check_whole("before_ns", before_ns, 0, 2**63 - 1)}
        return len(await self._database.write(lambda tx: tx.query(_SWEEP, values)))

    def _is_alive(self, worker: Heartbeat, now_ns: int) -> bool:
        if worker.draining and worker.capacity == 0:
            return False
        age_ns = now_ns - worker.at_ns
        if 0 <= age_ns <= self._ttl_ns:
            return True
        at_ns, since_ns, changed = self._seen.get(worker.worker, (worker.at_ns, now_ns, False))
        # The clock of its sender is wrong, or it is silent: only a reader that sees it change can tell.
        return at_ns == worker.at_ns and (changed or age_ns < 0) and now_ns - since_ns <= self._ttl_ns

    def _alive(self, row: Row, now_ns: int) -> Heartbeat | None:
        known = _heartbeat(row)
        return known if self._is_alive(known, now_ns) else None


def _sight(before: tuple[int, int, bool] | None, at_ns: int, now_ns: int, last_ns: int) -> tuple[int, int, bool]:
    """The time of a heartbeat, when it arrived at the earliest, and whether a reader has seen it change.

    It arrived after the read before (`last_ns`), which may be long ago: no heartbeat counts for longer than one TTL.
    """
    if before is None:
        return at_ns, now_ns, False
    return before if before[0] == at_ns else (at_ns, last_ns, at_ns > before[0])


def _more(before: Heartbeat | None, now: Heartbeat) -> bool:
    """Whether a worker has more slots or topics than before."""
    if now.draining:
        return False
    if before is None or before.draining or before.pool != now.pool:
        return True
    if now.capacity > before.capacity or not set(now.topics) <= set(before.topics):
        return True
    return any(_slots(now, topic) > _slots(before, topic) for topic in before.places)


def _slots(heartbeat: Heartbeat, topic: str) -> int:
    """The slots of a worker for a topic. A draining worker has as many as it still runs jobs of the topic.

    An older worker does not report that by topic: then all of its running jobs count.
    """
    if heartbeat.draining:
        return heartbeat.places.get(topic, heartbeat.active)
    return min(heartbeat.places.get(topic, heartbeat.capacity), heartbeat.capacity)


def _accepts(heartbeat: Heartbeat) -> bool:
    """Whether a live worker accepts jobs. One whose slots are all blocked only announces its topics."""
    return not heartbeat.draining and heartbeat.capacity > 0


def _pools(live: list[Heartbeat]) -> dict[str, Pool]:
    pools: dict[str, Pool] = {}
    for each in live:
        pool = pools.get(each.pool) or Pool(each.pool)
        topics = dict(pool.topics or {})
        accepts = _accepts(each)
        for topic in each.topics if accepts else ():
            topics[topic] = topics.get(topic, 0) + 1
        pools[each.pool] = replace(
            pool,
            workers=pool.workers + accepts,
            # A draining worker has slots for its running jobs, and for nothing else.
            capacity=pool.capacity + (each.active if each.draining else each.capacity),
            topics=topics,
            shared=pool.shared | frozenset(each.topics) if accepts and not each.by_topic else pool.shared,
        )
    here: dict[str, list[Heartbeat]] = {}
    for each in live:
        here.setdefault(each.pool, []).append(each)
    return {name: replace(pool, places=_limited_slots(pool, here[name])) for name, pool in pools.items()}


def _limited_slots(pool: Pool, here: Sequence[Heartbeat]) -> Mapping[str, int]:
    """The slots of those topics of a pool that have fewer than the pool: only some workers serve them, or limit them.

    Draining workers do not limit a topic, but their running jobs of it count.
    """
    whole, taken, left = 0, Counter[str](), Counter[str]()
    for each in here:
        whole += each.capacity if _accepts(each) else 0
        counted = taken if _accepts(each) else left
        for topic in each.topics:
            counted[topic] += _slots(each, topic)
    return {topic: taken[topic] + left[topic] for topic in pool.topics or () if taken[topic] < whole}


def check_heartbeat(heartbeat: Heartbeat) -> Heartbeat:
    """The heartbeat itself, or `BadInput` that names the field."""
    check_id("worker", heartbeat.worker)
    check_label("pool", heartbeat.pool)
    for topic in heartbeat.topics:
        check_label("topics", topic)
    check_whole("capacity", heartbeat.capacity, 0, CAPACITY_MAX)
    check_whole("active", heartbeat.active, 0, CAPACITY_MAX)
    check_whole("at_ns", heartbeat.at_ns, 0, 2**63 - 1)
    for topic, places in heartbeat.places.items():
        if topic not in heartbeat.topics:
            raise BadInput("places", f"{topic!r:.60} is no topic of this worker", "name only topics that it takes")
        check_whole("places", places, 0, CAPACITY_MAX)
    return heartbeat


def _values(heartbeat: Heartbeat, at_ns: int) -> dict[str, Any]:
    return {
        "worker": heartbeat.worker,
        "pool": heartbeat.pool,
        "topics": json.dumps(heartbeat.topics, separators=(",", ":")),
        "capacity": heartbeat.capacity,
        "active": heartbeat.active,
        "at_ns": at_ns,
        "draining": int(heartbeat.draining),
        "host": heartbeat.host,
        "pid": heartbeat.pid,
        "places": json.dumps(dict(heartbeat.places), separators=(",", ":")) if heartbeat.places else None,
        "by_topic": int(heartbeat.by_topic),
    }


def _heartbeat(row: Row) -> Heartbeat:
    return Heartbeat(
        worker=row["worker"],
        pool=row["pool"],
        topics=tuple(json.loads(row["topics"])),
        capacity=row["capacity"],
        active=row["active"],
        at_ns=row["at_ns"],
        draining=bool(row["draining"]),
        host=row["host"],
        pid=row["pid"],
        places=json.loads(row["places"]) if row["places"] else {},  # an older worker does not send them
        by_topic=bool(row["by_topic"]),
    )


async def check_free(workers: Workers, name: str, me: Owner, now_ns: int) -> None:
    """Raise `BadInput` if a worker of another process uses the name."""
    for each in await workers.live():
        if each.worker.partition(":")[0] == name and not _is_gone(each, me):
            age_ns = max(0, now_ns - each.at_ns)
            free_s = max(1, -(-(TTL_NS - age_ns) // NS))
            raise BadInput(
                "--name",
                f"{name} is the name of a worker on {each.host}, process {each.pid}, heard of {age_ns // NS} s ago",
                f"choose another, or none; if that one has died, its name is free in {free_s} s",
            )


def _is_gone(other: Heartbeat, me: Owner) -> bool:
    """Whether a heartbeat is of this process, or of one on this host that has ended."""
    if other.host != me.host:
        return False
    if other.pid == me.pid:
        return True
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # a process of another user, which runs
        return False
    return False
