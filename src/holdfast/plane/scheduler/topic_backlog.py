"""The queues of topics: jobs that wait for a slot of their topic, and which of them may be dispatched next.

Promises:

- The slots of a topic go round among the tenants that wait for one, whatever else these tenants have waiting. Within a
  tenant the order is priority, then age.
- A job that may go joins the queue of its tenant as if it had always been there: it overtakes no job of a higher
  priority and no older one. Tenants take turns as ever (`fair_share`). So jobs that wait for a slot of their topic
  delay no others, and are not delayed by them.
- A read costs the same however many jobs wait, and next to nothing if none does. It reads only topics that live workers
  serve, so jobs of other topics wait here at no cost.
- As with the queues of a pool (`dispatch_queue`), the result is only a snapshot: each job is decided under its lock.

SQLite is read in steps, which are cheap there; Postgres in one query, because each is a round trip. The results are the
same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from holdfast.plane.db.ports import Row, Tx
from holdfast.plane.db.statements import script, sql
from holdfast.plane.scheduler.fair_share import TenantQueue, select_jobs

TENANTS: Final = 64  # of each topic, read in one query

_TENANTS: Final = sql("topic_queue_tenants")
_QUEUE: Final = sql("topic_queue_jobs")
_READ: Final = sql("topic_queue_read_postgres")


class Rank(NamedTuple):
    """The position of a job in the queue of its tenant: the least goes first."""

    behind: int  # the priority, negated
    created_ns: int
    job: str


@dataclass(frozen=True, slots=True)
class TopicQueue:
    """The jobs of one tenant that wait for a slot of one topic, the next one first."""

    tenant: str
    jobs: tuple[Rank, ...]
    room: int | None = None  # how many more jobs of this tenant may be dispatched; None: no limit


class TopicSlots(NamedTuple):
    """What a dispatcher knows about the topics of a pool."""

    slots: Mapping[str, int]  # of topics that have fewer than the pool
    served: frozenset[str]  # topics that live workers serve
    last: Mapping[str, str] = {}  # by topic, the tenant of the last job


class Selected(NamedTuple):
    """A job that has waited for a slot of its topic, and may be dispatched."""

    topic: str
    tenant: str


@dataclass(frozen=True, slots=True)
class TopicBacklog:
    """The queues of the topics of a pool."""

    waiting: bool = False  # at least one job waits
    selected: Mapping[str, Selected] = field(default_factory=dict)  # by job
    ranks: Mapping[str, list[Rank]] = field(default_factory=dict)  # of the selected jobs, by tenant
    rooms: Mapping[str, int | None] = field(default_factory=dict)  # by tenant, how many more jobs may be dispatched
    last: Mapping[str, str] = field(default_factory=dict)  # by topic, where to continue if no job that was read may go


class TopicQuery(NamedTuple):
    """What to read: the free slots of a pool, and the jobs to skip."""

    pool: str
    free: int
    passed: frozenset[str]
    slots: int | None  # of a tenant, unless its own row has a limit


def free_slots(slots: int | None, running: int, free: int) -> int:
    """How many jobs of a topic may go. `slots`: of the topic; None: as many as its pool. `free`: of the pool."""
    return max(0, free if slots is None else min(slots - running, free))


def select_ranks(queues: Sequence[TopicQueue], free: int) -> dict[str, list[Rank]]:
    """The next jobs by tenant: one of each queue in the given order, then a second, until `free` are selected."""
    ranks = {rank.job: (queue.tenant, rank) for queue in queues for rank in queue.jobs}
    as_queues = [TenantQueue(each.tenant, tuple(rank.job for rank in each.jobs), each.room) for each in queues]
    found: dict[str, list[Rank]] = {}
    for job in select_jobs(as_queues, free).jobs:
        tenant, rank = ranks[job]
        found.setdefault(tenant, []).append(rank)
    return found


def merge_queues(
    queues: Sequence[TenantQueue],
    selected: Mapping[str, Sequence[Rank]],
    ranks: Mapping[str, Rank],
    rooms: Mapping[str, int | None],
    order: Sequence[str],
) -> tuple[TenantQueue, ...]:
    """The queues of a pool with the selected jobs in them, in the order of the tenants.

    `ranks` are those of the jobs in queues that selected jobs join, and `rooms` those of tenants without a queue.
    """
    known = {queue.tenant: queue for queue in queues}
    found: list[TenantQueue] = []
    for tenant in order:
        queue = known.get(tenant) or TenantQueue(tenant, (), rooms.get(tenant))
        if tenant in selected:
            whole = sorted([*(ranks[job] for job in queue.jobs if job in ranks), *selected[tenant]])
            queue = TenantQueue(tenant, tuple(rank.job for rank in whole), queue.room)
        found.append(queue)
    return tuple(found)


async def read_topic_queues(tx: Tx, query: TopicQuery, topic_slots: TopicSlots) -> TopicBacklog:
    """See the module."""
    rooms: dict[str, int] = {}
    served = json.dumps(sorted(topic_slots.served))
    topics = await tx.query(script("topic_queue_topics", tx.dialect), {"pool": query.pool, "topics": served})
    for row in topics:
        topic = row["topic"]
        if room := free_slots(topic_slots.slots.get(topic), row["running"], query.free):
            rooms[topic] = room
    found = TopicBacklog(waiting=bool(topics))
    if not rooms:
        return found
    read = _in_one_query if tx.dialect == "postgres" else _in_steps
    rows = await read(tx, query, topic_slots, rooms)
    selected: dict[str, Selected] = {}
    ranks: dict[str, list[Rank]] = {}
    last: dict[str, str] = {}
    left: dict[str, int | None] = {}
    for topic, room in rooms.items():
        queues = _queues([row for row in rows if row["topic"] == topic], query)
        left.update((queue.tenant, queue.room) for queue in queues)
        chosen = select_ranks([queue for queue in queues if queue.room is None or queue.room > 0], room)
        if not chosen and len(queues) == TENANTS:
            last[topic] = queues[-1].tenant
        for tenant, some in chosen.items():
            ranks.setdefault(tenant, []).extend(some)
            selected.update((rank.job, Selected(topic, tenant)) for rank in some)
    return TopicBacklog(waiting=True, selected=selected, ranks=ranks, rooms=left, last=last)


async def merge(
    tx: Tx, queues: Sequence[TenantQueue], backlog: TopicBacklog, after: str, until: str | None
) -> tuple[TenantQueue, ...]:
    """The queues of a pool with the selected jobs of its topics. `until`: the last tenant read, if there are more."""
    if not backlog.ranks:
        return tuple(queues)
    there = [job for queue in queues if queue.tenant in backlog.ranks for job in queue.jobs]
    rows = await tx.query(script("pool_queue_ranks", tx.dialect), {"ids": json.dumps(there)}) if there else []
    ranks = {row["id"]: _rank(row) for row in rows}
    order = [queue.tenant for queue in queues]
    if set(backlog.ranks) - set(order):
        named = {*order, *backlog.ranks} | ({until} if until is not None else set())
        known = {"tenants": json.dumps(sorted(named)), "after": after}
        order = [row["tenant"] for row in await tx.query(script("tenant_turns", tx.dialect), known)]
        if until is not None:
            order = order[: order.index(until) + 1]  # later tenants have their turn after those of the next page
    return merge_queues(queues, backlog.ranks, ranks, backlog.rooms, order)


def _queues(rows: Sequence[Row], query: TopicQuery) -> list[TopicQueue]:
    queues: dict[str, list[Rank]] = {}
    rooms: dict[str, int | None] = {}
    for row in rows:
        limit = query.slots if row["slots"] is None else row["slots"]
        rooms[row["tenant"]] = None if limit is None else limit - row["running"]
        queue = queues.setdefault(row["tenant"], [])
        if row["id"] not in query.passed:
            queue.append(_rank(row))
    return [TopicQueue(tenant, tuple(queue), rooms[tenant]) for tenant, queue in queues.items()]


def _rank(row: Row) -> Rank:
    return Rank(-row["priority"], row["created_ns"], row["id"])


async def _in_one_query(tx: Tx, query: TopicQuery, topic_slots: TopicSlots, rooms: Mapping[str, int]) -> Sequence[Row]:
    wanted = [
        {"topic": topic, "after": topic_slots.last.get(topic, ""), "most": room + len(query.passed)}
        for topic, room in rooms.items()
    ]
    return await tx.query(_READ, {"pool": query.pool, "wanted": json.dumps(wanted), "tenants": TENANTS})


async def _in_steps(tx: Tx, query: TopicQuery, topic_slots: TopicSlots, rooms: Mapping[str, int]) -> Sequence[Row]:
    found: list[Row] = []
    for topic, room in rooms.items():
        after, here = topic_slots.last.get(topic, ""), {"pool": query.pool, "topic": topic}
        tenants = await tx.query(_TENANTS, {**here, "after": after, "most": TENANTS})
        if after and len(tenants) < TENANTS:
            first = await tx.query(_TENANTS, {**here, "after": "", "most": TENANTS - len(tenants)})
            tenants += [each for each in first if each["tenant"] <= after]
        for each in tenants:
            wanted: dict[str, Any] = {**here, "tenant": each["tenant"], "most": room + len(query.passed)}
            found += ({**each, **row, "topic": topic} for row in await tx.query(_QUEUE, wanted))
    return found
