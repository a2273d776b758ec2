"""What a guarded table does, color-free: admit the holder, take the step, say what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.lease.fencing import Rule
from holdfast.guards.admission import Admission, Presented
from holdfast.guards.bearer import Bearer
from holdfast.guards.sql import rows as steps
from holdfast.guards.sql.identifiers import TableNames
from holdfast.guards.sql.rows import Found, RowId, RowStore, check_row_id, resource_name


class TableFlow:
    """The steps of one guarded table. Blocking and awaited facades drive the same one."""

    def __init__(self, rows: RowStore, names: TableNames, admission: Admission) -> None:
        self._rows = rows
        self.names = names
        self.admission = admission

    def resource(self, row_id: RowId) -> str:
        """How a row is called in messages and counters."""
        return resource_name(self.names.shown, row_id)

    async def seen(self, row_id: RowId) -> int | None:
        """The highest fence that the row has met."""
        return await steps.seen(self._rows, check_row_id(row_id, self.names.id_columns))

    async def enter(self, lease: Bearer, row_id: RowId) -> Found | None:
        """Register the fence, and read."""
        row = check_row_id(row_id, self.names.id_columns)
        presented = await self._admit(lease, row, Rule.AT_LEAST)
        outcome = await steps.enter(self._rows, row, presented.fence, presented.rule)
        return self.admission.entered(presented, outcome)

    async def insert(self, lease: Bearer, row_id: RowId, values: Mapping[str, Any], rule: Rule) -> Found:
        """Make a row."""
        row, checked = check_row_id(row_id, self.names.id_columns), self.names.check_values(values)
        presented = await self._admit(lease, row, rule)
        outcome = await steps.insert(self._rows, row, presented.fence, presented.rule, checked)
        return self.admission.written(presented, outcome)

    async def update(self, lease: Bearer, row_id: RowId, values: Mapping[str, Any], rule: Rule) -> Found:
        """Write columns of a row."""
        row, checked = check_row_id(row_id, self.names.id_columns), self.names.check_changes(values)
        presented = await self._admit(lease, row, rule)
        outcome = await steps.update(self._rows, row, presented.fence, presented.rule, checked)
        return self.admission.written(presented, outcome)

    async def upsert(self, lease: Bearer, row_id: RowId, values: Mapping[str, Any], rule: Rule) -> Found:
        """Write columns of a row, or make it."""
        row, checked = check_row_id(row_id, self.names.id_columns), self.names.check_changes(values)
        presented = await self._admit(lease, row, rule)
        outcome = await steps.upsert(self._rows, row, presented.fence, presented.rule, checked)
        return self.admission.written(presented, outcome)

    async def delete(self, lease: Bearer, row_id: RowId, rule: Rule) -> Found:
        """Delete a row."""
        row = check_row_id(row_id, self.names.id_columns)
        presented = await self._admit(lease, row, rule)
        outcome = await steps.delete(self._rows, row, presented.fence, presented.rule)
        return self.admission.written(presented, outcome)

    async def _admit(self, lease: Bearer, row: RowId, rule: Rule) -> Presented:
        names = self.names.of_row(row)
        seen = lambda: steps.seen(self._rows, row)  # noqa: E731 - asked only if the lease is lost
        return await self.admission.admit(lease, self.resource(row), rule, seen, names)
