"""Slots of tenants, pools and topics: counted in the transaction that moves a job, however many schedulers there are.

**Tenants and pools.** A counter in a row of each says how many of their jobs are with workers. Promises: the counters
always match the states of the jobs; a tenant never has more jobs with workers than its limit, nor a pool more than its
workers have announced. Rows are locked in one order (job, tenant, pool), so that concurrent transactions wait and never
deadlock.

**Topics with fewer slots than their pool.** A job function can limit how many of its attempts a worker runs at the same
time (`max_concurrency`). Workers report this limit in their heartbeats; the sum is the number of slots that a pool has
for the topic. Promises:

- Schedulers never dispatch a job of such a topic while all slots of the topic are in use. The transaction that
  dispatches another job counts the jobs with workers from their states, while it holds the row of the pool. So there is
  no counter that could be wrong.
- A job that finds no free slot waits in the queue of its topic instead of the queue of its pool. So it delays no other
  job, and reading the pool queue costs the same however many jobs wait there. When a slot becomes free, the dispatcher
  takes the next job by priority, age and fair share of tenants (`plane.scheduler.topic_backlog`).
- A job of any other topic costs nothing extra. The dispatcher decides about it in another transaction than about jobs
  whose topics are counted. (New jobs that arrive at the same time may share one.)
- Jobs in the queue of a topic survive their workers. If no worker serves the topic any more, they wait as others do.
  If the topic has as many slots as its pool by then, they are dispatched. The replayer sees them too.

A job keeps `JobQueue.TOPIC` while it is with workers, and these jobs are counted.

Does not promise that workers are alive: their slots are those of their last heartbeat. Nor that the worker which
receives a job has a free slot of the topic: workers take messages as they come, so one of several workers may receive
two. It leaves the second to the others (`WorkerPool`), and after a dozen deliveries it returns the job, as without
slots of topics (`ReturnedJobs`). Jobs that were dispatched before their topic was limited are not counted. A worker
that died counts, with its slots, until its last heartbeat expires. Both end automatically; until then a worker without
a free slot nacks what it receives.

Clock: none.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import put_many, script, sql
from holdfast.plane.model.messages import EVERY_POOL
from holdfast.plane.model.records import Job, check_whole
from holdfast.types import check_label

_COUNT: Final = sql("topic_count")
_MAKE: Final = {"tenant": sql("tenant_make"), "pool": sql("pool_make")}


class TenantFull(Exception):
    """The tenant has as many jobs with workers as it may. Rolls the transaction back; nothing was changed."""


class PoolFull(Exception):
    """The workers of the pool have as many jobs as they can take. Rolls the transaction back; nothing was changed."""


class TopicFull(Exception):
    """All slots of the topic are in use. Nothing was changed."""


class Counting:
    """The counts of one transaction over many jobs: held first, then kept in memory, then written once."""

    def __init__(self, slots: int | None) -> None:
        self._slots = slots
        self._shifts: dict[str, Counter[str]] = {"tenant": Counter(), "pool": Counter()}
        self._held: dict[str, dict[str, Row]] = {"tenant": {}, "pool": {}}
        self._most: dict[str, dict[str, int | None]] = {"tenant": {}, "pool": {}}  # of those from which was taken

    def crowded(self, pool: str) -> bool:
        """Whether jobs wait in the queue of a pool. Known after `hold`; `assume` assumes that none do."""
        return bool(self._held["pool"][pool].get("waits"))

    def seen(self, rows: Sequence[Row]) -> None:
        """Take note of what was read with the jobs."""
        for row in rows:
            if row["tenant_running"] is not None:
                counted = {"running": row["tenant_running"], "most": row["tenant_slots"]}
                self._held["tenant"].setdefault(row["tenant"], counted)
            if row["pool_running"] is not None:
                self._held["pool"].setdefault(row["pool"], {"running": row["pool_running"]})

    def assume(self, jobs: Sequence[Job]) -> None:
        """Read nothing and assume free slots. The write then checks the limits, including those of single tenants."""
        for job in jobs:
            self._held["tenant"].setdefault(job.tenant, {"running": 0, "most": None})
            self._held["pool"].setdefault(job.pool, {"running": 0})

    async def hold(self, tx: Tx, jobs: Sequence[Job]) -> None:
        """Read the rows of these jobs' tenants and pools; where `tx.holds`, hold them in the order of their names."""
        names = {"tenant": {job.tenant for job in jobs}, "pool": {job.pool for job in jobs}}
        if all(names[kind] <= rows.keys() for kind, rows in self._held.items()):
            return  # they were read with the jobs
        self._held = await self._rows(tx, names)
        missing = {kind: sorted(names[kind] - rows.keys()) for kind, rows in self._held.items()}
        if any(missing.values()):
            for kind, new in missing.items():
                await tx.query_many(_MAKE[kind], [{kind: name} for name in new])
            self._held = await self._rows(tx, names)

    async def _rows(self, tx: Tx, names: Mapping[str, set[str]]) -> dict[str, dict[str, Row]]:
        wanted = {f"{kind}s": json.dumps(sorted(each)) for kind, each in names.items()}
        held: dict[str, dict[str, Row]] = {"tenant": {}, "pool": {}}
        for row in await tx.query(script("slots_hold" if tx.holds else "slots_get", tx.dialect), wanted):
            held[row["kind"]][row["name"]] = row
        return held

    def take(self, job: Job, capacity: int | None) -> None:
        """A job comes to the workers of its pool. Raises `TenantFull` or `PoolFull`, and then nothing was counted."""
        tenant = self._held["tenant"][job.tenant]
        limit = self._slots if tenant["most"] is None else tenant["most"]
        if limit is not None and tenant["running"] + self._shifts["tenant"][job.tenant] >= limit:
            raise TenantFull(job.tenant)
        pool = self._held["pool"][job.pool]
        if capacity is not None and pool["running"] + self._shifts["pool"][job.pool] >= capacity:
            raise PoolFull(job.pool)
        self._shift(job, 1)
        self._most["tenant"][job.tenant] = limit
        before = self._most["pool"].get(job.pool, capacity)
        self._most["pool"][job.pool] = None if before is None or capacity is None else max(before, capacity)

    def give(self, job: Job) -> None:
        """A job leaves them."""
        self._shift(job, -1)

    def _shift(self, job: Job, by: int) -> None:
        self._shifts["tenant"][job.tenant] += by
        self._shifts["pool"][job.pool] += by

    async def write(self, tx: Tx) -> None:
        """Write what was counted. Where something was taken, the rows were read: then each is there, with its limit."""
        for kind, shifts in self._shifts.items():
            most = self._most[kind]
            rows = [
                {"name": name, "shift": shifts[name], "most": most.get(name)} for name in sorted(shifts) if shifts[name]
            ]
            await put_many(tx, f"{kind}_shift", rows, each=bool(most))


class TopicCounting:
    """The counts of one transaction over many jobs."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], int] = {}
        self._waited_for: set[tuple[str, str]] = set()

    async def count(self, tx: Tx, jobs: Sequence[Job]) -> None:
        """Count the topics of jobs that will go to workers. The transaction holds the rows of their pools from now on.

        A transaction that holds no rows is run again as one that does, because only then the count is reliable.
        """
        if jobs and not tx.holds:
            await tx.query(script("slots_hold", tx.dialect), {"tenants": "[]", "pools": "[]"})
        for pool, topic in sorted({(job.pool, job.topic) for job in jobs}):
            [row] = await tx.query(_COUNT, {"pool": pool, "topic": topic})
            self._running[pool, topic] = row["running"]
            if row["waiting"]:
                self._waited_for.add((pool, topic))

    def check(self, job: Job, places: int | None, *, new: bool = False) -> None:
        """Raise `TopicFull` if no slot is free, or if a `new` job would overtake jobs that wait."""
        if places is None:
            return
        topic = job.pool, job.topic
        if self._running[topic] >= places or (new and topic in self._waited_for):
            raise TopicFull(job.topic)

    def take(self, job: Job, places: int | None) -> None:
        """Count a job that goes to workers."""
        if places is not None:
            self._running[job.pool, job.topic] += 1


class Slots:
    """The counting of one job store."""

    def __init__(self, slots: int | None) -> None:
        """`slots`: how many jobs of a tenant may be with workers at the same time, if its row sets no other limit."""
        self.slots = slots
        self.on_freed: Callable[[str], None] | None = None

    def freed(self, pool: str) -> None:
        """After the commit: tell the dispatcher of this process, which then takes the next job of that pool."""
        if self.on_freed is not None:
            self.on_freed(pool)


SLOTS_MAX: Final = 1_000_000

_GET: Final = sql("tenant_get")
_LIST: Final = sql("tenant_list")
_LIMIT: Final = sql("tenant_limit")


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant."""

    name: str
    running: int  # jobs with workers
    slots: int | None  # how many may be; None: as many as it likes
    own: bool  # whether the limit is its own, and not the default


class Tenants:
    """The tenants of one plane."""

    def __init__(self, database: Database, slots: Slots) -> None:
        self._database = database
        self._slots = slots

    async def get(self, tenant: str) -> Tenant:
        """One tenant. Tenants need no registration: a tenant without jobs has the default limit and no running jobs."""
        values = {"tenant": check_label("tenant", tenant)}
        rows = await self._database.read(lambda tx: tx.query(_GET, values))
        return self._tenant(rows[0]) if rows else Tenant(tenant, 0, self._slots.slots, own=False)

    async def page(self, *, after: str = "", limit: int = 100) -> list[Tenant]:
        """Tenants that have had a job or a limit, by name. The next page comes after the name of the last one."""
        values = {
            "after": after if after == "" else check_label("after", after),
            "most": check_whole("limit", limit, 1, 1000),
        }
        return [self._tenant(row) for row in await self._database.read(lambda tx: tx.query(_LIST, values))]

    async def limit(self, tenant: str, slots: int | None) -> Tenant:
        """Say how many jobs of a tenant may be with workers; None: the default. 0 holds them all back.

        Jobs that are with workers stay there. A higher limit takes effect immediately, on every scheduler.
        """
        values = {
            "tenant": check_label("tenant", tenant),
            "slots": None if slots is None else check_whole("slots", slots, 0, SLOTS_MAX),
        }

        async def work(tx: Tx) -> Row:
            rows = await tx.query(_LIMIT, values)
            tx.notify(EVERY_POOL)
            return rows[0]

        return self._tenant(await self._database.write(work))

    def _tenant(self, row: Row) -> Tenant:
        own = row["slots"] is not None
        return Tenant(row["tenant"], row["running"], row["slots"] if own else self._slots.slots, own)
