"""What must be true of a row before the unit of work writes it, as steps over `rows.RowStore`.

A flush sends statements that know nothing of fences. So each row is stamped first, in the same transaction: from then
on the database holds it (Postgres the row or its ledger entry, SQLite everything) until that is committed or rolled
back. The steps leave `rows`' invariants as they are, and are undone with the savepoint that they run in.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.core.lease.fencing import Absent, Accepted, Outcome, Present, Rule, Unregistered, judge
from holdfast.guards.sql import rows as steps
from holdfast.guards.sql.rows import Found, RowId, RowStore


class RowChange(StrEnum):
    """What a flush is about to do to a row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


async def hold(rows: RowStore, row: RowId, fence: int | None, rule: Rule) -> Outcome[Found]:
    """Hold a row that is to be updated; its columns, as they are now. Without a fence nothing is checked."""
    return Accepted({}) if fence is None else await steps.update(rows, row, fence, rule, {})


async def hold_place(rows: RowStore, row: RowId, fence: int | None, rule: Rule) -> Outcome[int | None]:
    """Hold the place of a row that is to be made; the fence that it must carry."""
    if fence is None:
        return await steps.settled(row, lambda: _hold_unfenced(rows, row))
    if not await rows.note(row, fence, rule):
        return judge(rule, await steps.seen(rows, row), fence) or Present()
    held = await rows.look(row)
    return Accepted(fence) if held is None else judge(Rule.AT_LEAST, held[0], fence) or Present()


async def _hold_unfenced(rows: RowStore, row: RowId) -> Outcome[int | None] | None:
    """Hold the ledger entry as it is. None: a holder with a fence raised it meanwhile, and the row must carry that."""
    carried = await rows.noted(row)
    return Accepted(carried) if await rows.note(row, carried or 0, Rule.AT_LEAST) else None


async def hold_to_delete(rows: RowStore, row: RowId, fence: int | None, rule: Rule) -> Outcome[Found]:
    """Hold a row that is to be deleted, and remember its fence: the row first, then its ledger entry."""
    if fence is None:
        held = await rows.look(row)
        if held is None:
            return Absent()
        carried = held[0]
        if carried is not None:
            await rows.note(row, carried, Rule.AT_LEAST)  # if it is higher already, it stays
        return Accepted({})
    outcome = await steps.update(rows, row, fence, rule, {})
    if isinstance(outcome, Accepted) and not await rows.note(row, fence, Rule.AT_LEAST):
        newest = await rows.noted(row)
        return judge(Rule.AT_LEAST, newest, fence) or Unregistered(newest)
    return outcome
