"""How many jobs of a tenant, and of a pool, are with workers: counted in the transaction that moves the job.

Promises: the counts are those of the states, always; a tenant never has more than its limit, and a pool never more than
the scheduler said that its workers can take, however many schedulers there are. Does not promise that the workers are
there: what they can take is what they last said.

Rows are locked in one order (job, tenant, pool), so that concurrent transactions wait and never deadlock.

Tenants: how many of their jobs are with workers, and how many may be.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.plane.db.bulk import put_many, script
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.model.messages import EVERY_POOL
from holdfast.plane.model.records import Job, check_whole
from holdfast.types import check_label

_MAKE: Final = {"tenant": sql("tenant_make"), "pool": sql("pool_make")}


class TenantFull(Exception):
    """The tenant has as many jobs with workers as it may. Rolls the transaction back; nothing was changed."""


class PoolFull(Exception):
    """The workers of the pool have as many jobs as they can take. Rolls the transaction back; nothing was changed."""


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
