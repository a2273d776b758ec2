"""The worker snapshot `sys:workers:snapshot`: live workers, their pools and their slots; written by one leader.

Promises: there is one snapshot, and one writer at a time; a writer that has lost its lease is refused. The snapshot is
at most one interval old while a writer lives, and after its crash at most the lease TTL and one interval (15 s).
Readers get the snapshot with its age and its writer, and decide when it is stale.

Clock: the wall clock. A worker counts while its last heartbeat is at most the TTL of heartbeats (30 s) old. One that is
silent is not deleted here: its topics stay known, so that jobs wait for its return and do not fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.aio.client import Locks
from holdfast.core.ports import Clock, Observer
from holdfast.plane.db.ports import Database
from holdfast.plane.fleet.registry import Workers
from holdfast.plane.locks.registry import SNAPSHOT_WRITER, LockFamily
from holdfast.plane.loops.cadence import Mode
from holdfast.plane.loops.leader_document import Document
from holdfast.plane.loops.loop import Loop, Tick
from holdfast.plane.model.records import Heartbeat
from holdfast.types import NS, Duration

NAME: Final = "sys:workers:snapshot"
INTERVAL: Final = 5.0


@dataclass(frozen=True, slots=True)
class PoolCount:
    """A pool, from the heartbeats of its live workers. Draining workers have no free slots."""

    pool: str
    workers: int
    active: int
    capacity: int


@dataclass(frozen=True, slots=True)
class TopicCount:
    """A topic in a pool: its workers, and their free slots."""

    topic: str
    pool: str
    workers: int
    capacity: int
    available: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All live workers at one moment."""

    captured_ns: int
    writer: str
    pools: tuple[PoolCount, ...]
    topics: tuple[TopicCount, ...]
    workers: tuple[Heartbeat, ...]
    fence: int | None = None  # of the lease under which it was written
    age_ns: int = 0  # by the reader's clock

    def body(self) -> dict[str, Any]:
        """What is stored."""
        return {
            "captured_at": datetime.fromtimestamp(self.captured_ns / NS, UTC).isoformat(timespec="milliseconds"),
            "captured_ns": self.captured_ns,
            "writer": self.writer,
            "pools": [asdict(each) for each in self.pools],
            "topics": [asdict(each) for each in self.topics],
            "workers": [_heartbeat_json(each) for each in self.workers],
        }


def snapshot_of(live: Sequence[Heartbeat], captured_ns: int, writer: str) -> Snapshot:
    """Add up the heartbeats of live workers. Pure."""
    pools: dict[str, PoolCount] = {}
    topics: dict[tuple[str, str], TopicCount] = {}
    for each in live:
        capacity = 0 if each.draining else each.capacity
        pool = pools.get(each.pool) or PoolCount(each.pool, 0, 0, 0)
        pools[each.pool] = PoolCount(each.pool, pool.workers + 1, pool.active + each.active, pool.capacity + capacity)
        for name in () if each.draining else each.topics:
            known = topics.get((name, each.pool)) or TopicCount(name, each.pool, 0, 0, 0)
            room = max(0, capacity - each.active)
            topics[name, each.pool] = TopicCount(
                name, each.pool, known.workers + 1, known.capacity + capacity, known.available + room
            )
    return Snapshot(
        captured_ns,
        writer,
        tuple(pools[name] for name in sorted(pools)),
        tuple(topics[name] for name in sorted(topics)),
        tuple(sorted(live, key=lambda each: each.worker)),
    )


class Snapshots:
    """The reading side."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        observer: Observer | None = None,
        family: LockFamily = SNAPSHOT_WRITER,
    ) -> None:
        self.family = family  # of the lock that a writer holds
        self.document = Document(database, NAME, family, clock, observer)

    async def latest(self) -> Snapshot | None:
        """The last snapshot; None: none was written yet."""
        found = await self.document.read()
        if found is None:
            return None
        body = found.body
        return Snapshot(
            body["captured_ns"],
            found.writer,
            tuple(PoolCount(**each) for each in body["pools"]),
            tuple(TopicCount(**each) for each in body["topics"]),
            tuple(_heartbeat(each) for each in body["workers"]),
            found.fence,
            found.age_ns,
        )


class SnapshotWriter:
    """The writing side: one tick, one snapshot."""

    def __init__(self, workers: Workers, snapshots: Snapshots, locks: Locks, clock: Clock) -> None:
        self._workers = workers
        self._snapshots = snapshots
        self._locks = locks
        self._clock = clock

    def loop(self, *, interval: Duration = INTERVAL, mode: Mode | str = Mode.STICKY, **settings: Any) -> Loop:
        """The loop that runs it; its first attempt is at the start, so that there is a snapshot soon."""
        settings = {"at_once": True, "mode": mode, **settings}
        return Loop("snapshot", self._snapshots.family, interval, self.tick, locks=self._locks, **settings)

    async def tick(self, tick: Tick) -> None:
        """Write one. `FencedOut`: a newer leader writes them now."""
        live = await self._workers.live()
        made = snapshot_of(live, self._clock.now().wall, tick.lease.owner)
        await self._snapshots.document.put(tick.lease, made.body(), writer=made.writer)


def _heartbeat_json(worker: Heartbeat) -> dict[str, Any]:
    """Without the fields that a reader of an older version does not know."""
    return {name: value for name, value in asdict(worker).items() if name not in ("places", "by_topic")}


def _heartbeat(stored: Mapping[str, Any]) -> Heartbeat:
    return Heartbeat(**{**stored, "topics": tuple(stored["topics"])})
