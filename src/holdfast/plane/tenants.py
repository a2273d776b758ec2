"""Tenants: how many of their jobs are with workers, and how many may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.jobrows import sql
from holdfast.plane.model.records import check_whole
from holdfast.plane.slots import Slots
from holdfast.types import check_label

SLOTS_MAX: Final = 1_000_000
EVERY_POOL: Final = "pools"
"""Where it rings when dispatchers should look at every pool."""

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
        """One tenant. Nobody has to register: one that has never had a job has the default and nothing running."""
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

        Jobs that are with workers stay there. A higher limit takes effect at once, on every scheduler.
        """
        values = {
            "tenant": check_label("tenant", tenant),
            "slots": None if slots is None else check_whole("slots", slots, 0, SLOTS_MAX),
        }

        async def work(tx: Tx) -> Row:
            rows = await tx.query(_LIMIT, values)
            tx.ring(EVERY_POOL)
            return rows[0]

        return self._tenant(await self._database.write(work))

    def _tenant(self, row: Row) -> Tenant:
        own = row["slots"] is not None
        return Tenant(row["tenant"], row["running"], row["slots"] if own else self._slots.slots, own)
