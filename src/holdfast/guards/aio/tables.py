"""A guarded table for asyncio: what the SQL guards of every awaited driver have in common.

    async with table.section(lease, 42) as row:         # registers the fence and reads, in one statement
        await row.update(total=row["total"] + 5)        # refused unless the row still carries exactly this fence

`update`, `upsert`, `insert` and `delete` without a section are for writes that depend on nothing read before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from holdfast.core.failpoints import reach
from holdfast.core.lease.fencing import Rule
from holdfast.guards.admission import GuardStatistics
from holdfast.guards.bearer import Bearer
from holdfast.guards.sql.row_view import RowView
from holdfast.guards.sql.rows import Found, RowId
from holdfast.guards.sql.table_flow import TableFlow

B_contra = TypeVar("B_contra", bound=Bearer, contravariant=True)


class GuardedRow(RowView):
    """One row inside a section: its columns as they were read, and the writes that only this fence may do."""

    def __init__(self, flow: TableFlow, lease: Bearer, row_id: RowId, found: Found | None) -> None:
        super().__init__(flow.resource(row_id), found)
        self._flow = flow
        self._lease = lease
        self._row_id = row_id

    async def update(self, values: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Write columns. `FencedOut` for a stale holder, `RowMissing`, `NotEntered` if the registration is gone."""
        merged = self._merged(values, columns)
        self._found = await self._flow.update(self._lease, self._row_id, merged, Rule.EXACTLY)

    async def insert(self, values: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Make the row, which did not exist when the section was entered."""
        merged = self._merged(values, columns)
        self._found = await self._flow.insert(self._lease, self._row_id, merged, Rule.EXACTLY)

    async def upsert(self, values: Mapping[str, Any] | None = None, /, **columns: Any) -> None:
        """Update the row if it exists, make it otherwise."""
        merged = self._merged(values, columns)
        self._found = await self._flow.upsert(self._lease, self._row_id, merged, Rule.EXACTLY)

    async def delete(self) -> None:
        """Delete the row. Its fence is remembered, so that no older holder can bring it back."""
        self._merged(None, {})
        await self._flow.delete(self._lease, self._row_id, Rule.EXACTLY)
        self._found = None


class AnyAsyncGuardedTable(Generic[B_contra]):
    """A table behind a guard. Safe wherever its connection is."""

    def __init__(self, flow: TableFlow) -> None:
        self._flow = flow

    @asynccontextmanager
    async def section(self, lease: B_contra, row_id: RowId) -> AsyncIterator[GuardedRow]:
        """Register the fence and read the row, before anything else; what is written in the block needs that fence.

        `FencedOut` when the row has met a newer holder. A row that does not exist has `exists` False, and can be made.
        """
        row = GuardedRow(self._flow, lease, row_id, await self.enter(lease, row_id))
        reach("guard.entered")
        try:
            yield row
        finally:
            row.end()

    async def enter(self, lease: B_contra, row_id: RowId) -> Found | None:
        """Register the fence, and return the row as it is now; None if there is none. `FencedOut` if it is stale."""
        return await self._flow.enter(lease, row_id)

    async def insert(self, lease: B_contra, row_id: RowId, values: Mapping[str, Any]) -> Found:
        """Make a row; `RowExists` if there is one, `FencedOut` if a newer holder made or deleted it."""
        return await self._flow.insert(lease, row_id, values, Rule.AT_LEAST)

    async def update(self, lease: B_contra, row_id: RowId, values: Mapping[str, Any]) -> Found:
        """Write columns of a row; `RowMissing` if there is none, `FencedOut` if a newer holder was here."""
        return await self._flow.update(lease, row_id, values, Rule.AT_LEAST)

    async def upsert(self, lease: B_contra, row_id: RowId, values: Mapping[str, Any]) -> Found:
        """Update the row if it exists, make it otherwise; `FencedOut` if a newer holder was here."""
        return await self._flow.upsert(lease, row_id, values, Rule.AT_LEAST)

    async def delete(self, lease: B_contra, row_id: RowId) -> Found:
        """Delete a row and return what it was; its fence is remembered. `RowMissing`, or `FencedOut`."""
        return await self._flow.delete(lease, row_id, Rule.AT_LEAST)

    async def seen(self, row_id: RowId) -> int | None:
        """The highest fence that the row has met; None: it has never met one. For people and tests."""
        return await self._flow.seen(row_id)

    def statistics(self) -> GuardStatistics:
        """What this guard has decided since it was made."""
        return self._flow.admission.statistics()
