"""Bugs to be found by guarded and by elected worlds: planted in the production code that these worlds run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.aio.lease import AnyLease
from holdfast.core.lease import fencing
from holdfast.core.lease.fencing import Absent, Accepted, Outcome, Rule, Stale
from holdfast.core.lease.states import LeaseState
from holdfast.flows.release import Released
from holdfast.guards.files import folder
from holdfast.guards.files.folder import Folder
from holdfast.guards.sql import rows
from holdfast.guards.sql.rows import Found, RowId, RowStore
from holdfast.guards.sqlite import SqliteRows
from holdfast.leases.lease_base import HeldLease
from holdfast.runtime.asyncio_runtime import Body
from mutation.mutants_guards import rule


def rows_are_fenced_on_writes_alone(patch: pytest.MonkeyPatch) -> None:
    """Entering a row compares the fence and leaves no trace; a write is taken if no higher one has written."""
    update, insert, delete = rows.update, rows.insert, rows.delete

    async def enter(store: RowStore, row: RowId, fence: int | None, asked: Rule) -> Outcome[Found]:
        newest = await rows.seen(store, row)
        if newest is not None and fence is not None and newest > fence:
            return Stale(newest)
        found = await store.read(row)
        return Absent() if found is None else Accepted(found)

    async def updated(store: RowStore, row: RowId, fence: int | None, asked: Rule, values: Mapping[str, Any]) -> Any:
        return await update(store, row, fence, Rule.AT_LEAST, values)

    async def inserted(store: RowStore, row: RowId, fence: int | None, asked: Rule, values: Mapping[str, Any]) -> Any:
        return await insert(store, row, fence, Rule.AT_LEAST, values)

    async def deleted(store: RowStore, row: RowId, fence: int | None, asked: Rule) -> Any:
        return await delete(store, row, fence, Rule.AT_LEAST)

    for name, planted in (("enter", enter), ("update", updated), ("insert", inserted), ("delete", deleted)):
        patch.setattr(rows, name, planted)


def files_are_fenced_on_writes_alone(patch: pytest.MonkeyPatch) -> None:
    """The same, for files."""
    write, delete = Folder.write, Folder.delete

    def enter(self: Folder, name: str, fence: int | None, asked: Rule) -> Outcome[bytes]:
        newest = self.seen(name)
        if newest is not None and fence is not None and newest > fence:
            return Stale(newest)
        path = self.path / name
        return Accepted(path.read_bytes()) if path.exists() else Absent()

    patch.setattr(Folder, "enter", enter)
    patch.setattr(Folder, "write", lambda self, name, fence, asked, data: write(self, name, fence, Rule.AT_LEAST, data))
    patch.setattr(Folder, "delete", lambda self, name, fence, asked: delete(self, name, fence, Rule.AT_LEAST))


def a_row_takes_each_fence_once(patch: pytest.MonkeyPatch) -> None:
    """Strictly greater: the second step of the same grant is refused."""
    rule(patch, Rule.AT_LEAST, "<=", "<")

    def judge(asked: Rule, seen: int | None, fence: int) -> Stale | None:
        return Stale(seen) if seen is not None and seen >= fence else None

    patch.setattr(rows, "judge", judge)


def a_file_takes_each_fence_once(patch: pytest.MonkeyPatch) -> None:
    """The same, for files: entering again is refused."""

    def judge(asked: Rule, seen: int | None, fence: int) -> Any:
        if asked is Rule.AT_LEAST and seen is not None and seen >= fence:
            return Stale(seen)
        return fencing.judge(asked, seen, fence)

    patch.setattr(folder, "judge", judge)


def a_deleted_row_is_forgotten_with_its_fence(patch: pytest.MonkeyPatch) -> None:
    """The ledger is not kept: who was fenced out by the row may make it again when it is gone."""

    async def noted(self: SqliteRows, row: RowId) -> None:
        return None

    async def note(self: SqliteRows, row: RowId, fence: int, asked: Rule) -> bool:
        return True

    patch.setattr(SqliteRows, "noted", noted)
    patch.setattr(SqliteRows, "note", note)


def a_lost_term_is_not_cancelled(patch: pytest.MonkeyPatch) -> None:
    """The work of a term is not told that its leadership is gone."""
    patch.setattr(Body, "on_end", lambda self, ended: None)


def a_leader_goes_on_after_its_deadline(patch: pytest.MonkeyPatch) -> None:
    """Nor does it find out when it asks."""
    a_lost_term_is_not_cancelled(patch)
    patch.setattr(HeldLease, "ensure_held", lambda self, min_remaining=0: None)


def a_leader_resigns_without_a_word(patch: pytest.MonkeyPatch) -> None:
    """A leader that resigns stops renewing, and does not tell the store."""

    async def release(self: AnyLease, state: LeaseState) -> Released:
        self._lease_record.released()
        if self._lease_record.entry is not None:
            self._lease_record.entry.leave()
        return Released.YES

    patch.setattr(AnyLease, "_release", release)
