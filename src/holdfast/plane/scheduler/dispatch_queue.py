"""The queue of a pool: which tenants have waiting jobs, and the first jobs of each.

Promises: a read costs the same however many jobs are stored or wait. The result is only a snapshot, which may be stale
a moment later: each job is decided under its lock. Jobs of topics that have fewer slots than the pool are in queues of
their own; those that may be dispatched are merged into the result (`topic_backlog`).

SQLite is read in steps, which are cheap there; Postgres in one query, because each is a round trip. The results are the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdfast.plane.db.ports import Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.scheduler.fair_share import TenantQueue
from holdfast.plane.scheduler.topic_backlog import TopicBacklog, TopicQuery, TopicSlots, merge, read_topic_queues

TENANTS: Final = 256  # read in one query

_TENANTS: Final = sql("pool_queue_tenants")
_QUEUE: Final = sql("pool_queue_jobs")
_READ: Final = sql("pool_queue_read_postgres")
_RUNNING: Final = "SELECT running FROM plane_pool WHERE pool = :pool"


class QueueQuery(NamedTuple):
    """What to read."""

    pool: str
    capacity: int  # how many jobs its workers can take
    batch: int  # how many are dispatched in one round
    after: str = ""  # the tenant of the last job
    passed: frozenset[str] = frozenset()  # jobs to skip
    slots: int | None = None  # how many jobs of a tenant may be with workers, unless its own row has a limit
    topics: TopicSlots | None = None  # None: no job waits for a slot of its topic


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """What waits in a pool."""

    free: int
    queues: tuple[TenantQueue, ...] = ()
    examined: str | None = None  # the last tenant that was read
    more: bool = False  # there is more than what was read
    backlog: TopicBacklog = field(default_factory=TopicBacklog)


class _Waiting(NamedTuple):
    """One tenant with waiting jobs."""

    tenant: str
    running: int
    slots: int | None
    jobs: Sequence[str]


async def read_queue(tx: Tx, query: QueueQuery) -> QueueSnapshot:
    """See the module."""
    free, depth, tenants = await (_in_one_query if tx.dialect == "postgres" else _in_steps)(tx, query)
    queues: list[TenantQueue] = []
    more = len(tenants) == TENANTS
    for each in tenants:
        limit = query.slots if each.slots is None else each.slots
        room = None if limit is None else limit - each.running
        if room is not None and room <= 0:
            continue
        more = more or len(each.jobs) > depth
        queues.append(TenantQueue(each.tenant, tuple(job for job in each.jobs if job not in query.passed), room))
    backlog = TopicBacklog()
    if query.topics is not None and free > 0:
        of_topics = TopicQuery(query.pool, min(free, query.batch), query.passed, query.slots)
        backlog = await read_topic_queues(tx, of_topics, query.topics)
        until = tenants[-1].tenant if len(tenants) == TENANTS else None
        queues = [*await merge(tx, queues, backlog, query.after, until)]
    return QueueSnapshot(free, tuple(queues), tenants[-1].tenant if tenants else None, more, backlog)


async def _in_one_query(tx: Tx, query: QueueQuery) -> tuple[int, int, list[_Waiting]]:
    wanted = {"pool": query.pool, "capacity": query.capacity, "batch": query.batch, "after": query.after}
    rows = await tx.query(_READ, {**wanted, "most": TENANTS, "beside": len(query.passed)})
    tenants = [
        _Waiting(row["tenant"], row["running"], row["slots"], row["jobs"]) for row in rows if row["tenant"] is not None
    ]
    return query.capacity - rows[0]["in_pool"], rows[0]["depth"] or 0, tenants


async def _in_steps(tx: Tx, query: QueueQuery) -> tuple[int, int, list[_Waiting]]:
    running = await tx.query(_RUNNING, {"pool": query.pool})
    free = query.capacity - (running[0]["running"] if running else 0)
    if free <= 0:
        return free, 0, []
    rows = await tx.query(_TENANTS, {"pool": query.pool, "after": query.after, "most": TENANTS})
    if query.after and len(rows) < TENANTS:
        first = await tx.query(_TENANTS, {"pool": query.pool, "after": "", "most": TENANTS - len(rows)})
        rows += [each for each in first if each["tenant"] <= query.after]
    depth = -(-min(free, query.batch) // max(1, len(rows))) + len(query.passed)
    tenants: list[_Waiting] = []
    for row in rows:
        jobs = [row["head"]]
        if depth > 1 or len(rows) == 1:
            values = {"pool": query.pool, "tenant": row["tenant"], "most": depth + 1}
            jobs = [each["id"] for each in await tx.query(_QUEUE, values)]
        tenants.append(_Waiting(row["tenant"], row["running"], row["slots"], jobs))
    return free, depth, tenants
