"""Forced release of a resource by an operator, with its audit record. See `locks`.

Promises: the holders are removed and the record is written in one transaction. The next grant has a higher fence.
Waiting writers no longer block readers until they ask again. The record names the operator and the reason, never a
token, and is kept forever.

Clock: that of the database.
"""

from __future__ import annotations

from typing import Final

from holdfast.leases.inspection import check_reason
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.model.caller import REASON_CHARS_MAX
from holdfast.plane.model.paging import AFTER_ALL, Place
from holdfast.plane.model.records import ID_CHARS_MAX, check_text, check_whole
from holdfast.plane.resources.locks import ResourceLocks
from holdfast.plane.resources.model import PAGE_MAX, ResourceBreak, ResourceMode, channel_of, named, slot_of
from holdfast.types import check_label

_BREAK: Final = sql("resource_break")
_NOTE: Final = sql("resource_break_note")
_UNBLOCK_ALL_READERS: Final = sql("resource_unblock_all_readers")
_LIST_ALL: Final = sql("resource_break_list_all")
_LIST_TENANT: Final = sql("resource_break_list_tenant")


class ResourceBreaks:
    """The forced releases of one plane."""

    def __init__(self, database: Database, locks: ResourceLocks) -> None:
        self._database = database
        self._locks = locks

    async def force_release(
        self, tenant: str, resource: str, *, actor: str, reason: str, fence: int | None = None
    ) -> list[ResourceBreak]:
        """Remove all holders of a resource, or the one with this fence. Returns one record each; empty: no holder."""
        name, key = named(tenant, resource)
        slot, who = slot_of(name, key), check_text("actor", actor, ID_CHARS_MAX)
        why = check_text("reason", check_reason(reason), REASON_CHARS_MAX)

        async def work(tx: Tx) -> list[ResourceBreak]:
            now_ns, _ = await self._locks.lock_slot(tx, slot)
            where = {"tenant": name, "resource": key}
            rows = await tx.query(_BREAK, {**where, "now_ns": now_ns, "fence": fence})
            noted = []
            for row in sorted(rows, key=lambda each: int(each["fence"])):
                about = {each: row[each] for each in ("tenant", "resource", "mode", "owner", "fence")}
                noted.append({"id": f"{slot}-{row['fence']}", "at_ns": now_ns, **about, "actor": who, "reason": why})
                await tx.query(_NOTE, noted[-1])
            if fence is None:
                await tx.query(_UNBLOCK_ALL_READERS, where)
            tx.notify(channel_of(slot))
            return [_break_of(each) for each in noted]

        return await self._database.write(work)

    async def page(
        self, tenant: str | None = None, *, after: Place = AFTER_ALL, limit: int = 100
    ) -> list[ResourceBreak]:
        """Forced releases, newest first. The next page starts after the `place` of the last one."""
        values = {
            "tenant": None if tenant is None else check_label("tenant", tenant),
            "at_ns": after.at_ns,
            "id": after.id,
            "most": check_whole("limit", limit, 1, PAGE_MAX),
        }
        statement = _LIST_ALL if tenant is None else _LIST_TENANT
        return [_break_of(row) for row in await self._database.read(lambda tx: tx.query(statement, values))]


def _break_of(row: Row) -> ResourceBreak:
    return ResourceBreak(
        row["id"],
        row["at_ns"],
        row["tenant"],
        row["resource"],
        ResourceMode(row["mode"]),
        row["owner"],
        row["fence"],
        row["actor"],
        row["reason"],
    )
