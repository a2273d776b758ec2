"""Guarded rows: the steps on a table, written once for every driver and sync and asyncio.

Invariants, for one row and its place in the fence ledger (a side table that remembers rows which do not exist):

    I1  a row that exists carries a fence that is not below the one in the ledger
    I2  a row is made or deleted only by a transaction that has raised its ledger entry first, which serialises all who
        enter, make or delete the same row, also while it does not exist
    I3  the fence of a row, and of a ledger entry, never goes down; deleting a row leaves its fence in the ledger

So an update or a read of a row that exists is one statement, whose `WHERE` is the check; making and deleting rows, and
entering one that does not exist yet, is one transaction. A caller that has a transaction open gets a savepoint in it.

Locks are taken in one order, so that no two steps wait for each other: a row that exists before its ledger entry, and
the client that holds the entry waits for no row. (Deleting starts with the row; entering and making, which start with
the entry, give it up when they find a row.) Steps on several rows in one transaction are the caller's to order.

Isolation: READ COMMITTED is enough for all of it. A stricter transaction may end with the database's own conflict
error, and cannot enter a row that does not exist: one that was made after its snapshot would stay invisible there, and
would not get the fence.

A step without a fence (`Rule.NONE`) is not checked, and still loses no memory: what it makes carries the fence that the
ledger remembers, what it deletes leaves its fence there.

The steps await `RowStore` and nothing else. Does not promise anything about writers that bypass both the guard and the
trigger.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from holdfast.core.failpoints import reach
from holdfast.core.lease.fencing import Absent, Accepted, Outcome, Present, Rule, Stale, judge
from holdfast.errors import BadInput, Misconfigured, Unavailable

Values: TypeAlias = Mapping[str, Any]
RowId: TypeAlias = int | str | UUID | tuple[int | str | UUID, ...]
Found: TypeAlias = dict[str, Any]

V = TypeVar("V")

_TRIES: Final = 5  # for a row that comes and goes; each try fails because of a definite change by another client


class RowStore(Protocol):
    """One guarded table, on one connection, in one color. Each method but the first is one statement."""

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """One transaction around the block, rolled back if it raises; a savepoint if the caller has one open."""
        ...

    async def sees_commits(self) -> bool:
        """Called first in a transaction: whether each statement in it sees what was committed before that statement.

        Made so where the transaction is our own. False: it is the caller's, and keeps a snapshot.
        """
        ...

    async def look(self, row: RowId) -> tuple[int | None] | None:
        """The fence of a row, which may be None; None: there is no such row."""
        ...

    async def read(self, row: RowId) -> Found | None:
        """The row as it is, with no check."""
        ...

    async def stamp(self, row: RowId, fence: int, rule: Rule) -> Found | None:
        """Set the fence of a row if the rule holds, and return the row. None: it does not hold, or there is no row."""
        ...

    async def change(self, row: RowId, fence: int | None, rule: Rule, values: Values) -> Found | None:
        """Set values and the fence if the rule holds, and return the row. `Rule.NONE` leaves the fence as it is."""
        ...

    async def make(self, row: RowId, fence: int | None, values: Values) -> Found | None:
        """Insert the row with the fence. None: there is one already."""
        ...

    async def drop(self, row: RowId, fence: int | None, rule: Rule) -> Found | None:
        """Delete the row if the rule holds, and return it as it was."""
        ...

    async def noted(self, row: RowId) -> int | None:
        """The fence in the ledger."""
        ...

    async def note(self, row: RowId, fence: int, rule: Rule) -> bool:
        """Raise the ledger entry, or make it, unless it is higher. `Rule.EXACTLY`: only if it is there and ours."""
        ...

    async def forget(self, row: RowId) -> None:
        """Delete the ledger entry: the row exists again, and carries the fence itself."""
        ...


class _Undo(Exception):
    """Carries an outcome out of a transaction that must leave no trace. None: the row has changed, try again."""

    def __init__(self, outcome: Any) -> None:
        super().__init__()
        self.outcome = outcome


def resource_name(table: str, row: RowId) -> str:
    """How a row is called in messages, counters and the ledger."""
    return f"{table} {ledger_id(row)}"


def ledger_id(row: RowId) -> str:
    """The row's name in the ledger: the id as text, or a JSON list of them."""
    if isinstance(row, tuple):
        return json.dumps(
            [each if isinstance(each, int) else str(each) for each in row], separators=(",", ":"), ensure_ascii=False
        )
    return str(row)


def check_row_id(row: object, columns: tuple[str, ...]) -> RowId:
    """An id that names one row, or `BadInput`."""
    parts = row if isinstance(row, tuple) else (row,)
    if len(parts) != len(columns):
        raise BadInput("row_id", f"has {len(parts)} parts", f"give {len(columns)}: {', '.join(columns)}")
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | str | UUID):
            raise BadInput("row_id", f"{type(part).__name__} is not an id", "give a whole number, text, or a UUID")
        if isinstance(part, str) and "\0" in part:
            raise BadInput("row_id", "contains a zero byte", "remove it")
    return row if isinstance(row, tuple) and len(columns) > 1 else parts[0]


async def seen(rows: RowStore, row: RowId) -> int | None:
    """The highest fence that the row, or its memory, has met."""
    found = await rows.look(row)
    return await _remembered(rows, row) if found is None else found[0]


async def enter(rows: RowStore, row: RowId, fence: int | None, rule: Rule) -> Outcome[Found]:
    """Register the fence and read, in one statement if the row exists. `Absent` is registered too, in the ledger."""
    if fence is None:
        found = await rows.read(row)
        return Absent() if found is None else Accepted(found)
    return await settled(row, lambda: _enter(rows, row, fence, rule))


async def update(rows: RowStore, row: RowId, fence: int | None, rule: Rule, values: Values) -> Outcome[Found]:
    """Write to a row that exists: one statement."""
    return await settled(row, lambda: _update(rows, row, fence, rule, values))


async def insert(rows: RowStore, row: RowId, fence: int | None, rule: Rule, values: Values) -> Outcome[Found]:
    """Make a row that does not exist."""
    return await settled(row, lambda: _alone(rows, lambda: _insert(rows, row, fence, rule, values)))


async def upsert(rows: RowStore, row: RowId, fence: int | None, rule: Rule, values: Values) -> Outcome[Found]:
    """Update the row if it exists, make it otherwise."""
    return await settled(row, lambda: _upsert(rows, row, fence, rule, values))


async def delete(rows: RowStore, row: RowId, fence: int | None, rule: Rule) -> Outcome[Found]:
    """Delete the row, and remember under which fence."""
    if fence is None:
        return await settled(row, lambda: _alone(rows, lambda: _delete_unfenced(rows, row)))
    return await settled(row, lambda: _alone(rows, lambda: _delete(rows, row, fence, rule)))


async def _enter(rows: RowStore, row: RowId, fence: int, rule: Rule) -> Outcome[Found] | None:
    found = await rows.stamp(row, fence, rule)
    if found is not None:
        return Accepted(found)
    held = await rows.look(row)
    if held is None:
        return await _alone(rows, lambda: _enter_absent(rows, row, fence))
    return judge(rule, held[0], fence)


async def _enter_absent(rows: RowStore, row: RowId, fence: int) -> Outcome[Found]:
    if not await rows.sees_commits():
        raise Misconfigured(
            f"the row {ledger_id(row)} does not exist in the snapshot of this transaction, and one that was made since "
            "cannot be seen in it: enter it in a READ COMMITTED transaction, or insert without entering"
        )
    await _note(rows, row, fence, Rule.AT_LEAST)
    reach("guard.reserved")
    # A client that makes the row holds its ledger entry while doing so: if there is none now, there is none while we
    # hold it.
    if await rows.look(row) is not None:
        raise _Undo(None)
    return Absent()


async def _update(rows: RowStore, row: RowId, fence: int | None, rule: Rule, values: Values) -> Outcome[Found] | None:
    found = await rows.change(row, fence, rule, values)
    if found is not None:
        return Accepted(found)
    held = await rows.look(row)
    if held is None:
        return await _absent(rows, row, fence)
    return None if fence is None else judge(rule, held[0], fence)


async def _upsert(rows: RowStore, row: RowId, fence: int | None, rule: Rule, values: Values) -> Outcome[Found] | None:
    outcome = await _update(rows, row, fence, rule, values)
    if isinstance(outcome, Absent):
        outcome = await insert(rows, row, fence, rule, values)
    return None if isinstance(outcome, Present) else outcome  # another client has made it meanwhile: update that


async def _remembered(rows: RowStore, row: RowId) -> int | None:
    """The highest fence that a row has met which was not there just now. Its memory goes when it is made."""
    newest = await rows.noted(row)
    if newest is not None:
        return newest
    found = await rows.look(row)  # it may have been made between the two
    return None if found is None else found[0]


async def _absent(rows: RowStore, row: RowId, fence: int | None) -> Stale | Absent:
    """There was no row. `Stale` if a newer holder is about to make it, or has deleted it."""
    newest = await _remembered(rows, row)
    return Stale(newest) if newest is not None and fence is not None and newest > fence else Absent()


async def _insert(rows: RowStore, row: RowId, fence: int | None, rule: Rule, values: Values) -> Outcome[Found]:
    if fence is None:
        carried = await _reserve(rows, row)
    else:
        await _note(rows, row, fence, rule)
        carried = fence
    reach("guard.reserved")
    held = await rows.look(row)
    found = await rows.make(row, carried, values) if held is None else None
    if found is None:
        held = held or await rows.look(row)
        refusal = None if held is None or fence is None else judge(Rule.AT_LEAST, held[0], fence)
        raise _Undo(refusal or Present())
    await rows.forget(row)
    reach("guard.written")
    return Accepted(found)


async def _delete(rows: RowStore, row: RowId, fence: int, rule: Rule) -> Outcome[Found] | None:
    if await rows.stamp(row, fence, rule) is None:
        held = await rows.look(row)
        return await _absent(rows, row, fence) if held is None else judge(rule, held[0], fence)
    await _note(rows, row, fence, Rule.AT_LEAST)
    return await _drop(rows, row, fence)


async def _delete_unfenced(rows: RowStore, row: RowId) -> Outcome[Found] | None:
    held = await rows.look(row)
    if held is None:
        return Absent()
    carried = held[0]
    if carried is None:
        # Nothing to remember, unless the row meets its first fence just now: then it is no longer ours to drop so.
        reach("guard.reserved")
        found = await rows.drop(row, 0, Rule.AT_LEAST)
        reach("guard.written")
        return None if found is None else Accepted(found)
    if await rows.stamp(row, carried, Rule.EXACTLY) is None:
        return None
    await rows.note(row, carried, Rule.AT_LEAST)  # if it is higher already, it stays
    return await _drop(rows, row, carried)


async def _drop(rows: RowStore, row: RowId, fence: int) -> Outcome[Found]:
    """Delete a row that this transaction has stamped, and whose fence it has noted."""
    reach("guard.reserved")
    found = await rows.drop(row, fence, Rule.EXACTLY)
    if found is None:
        raise _Undo(None)
    reach("guard.written")
    return Accepted(found)


async def _note(rows: RowStore, row: RowId, fence: int, rule: Rule) -> None:
    """Raise the ledger entry, and hold it until the end of the transaction; or undo the transaction and say why."""
    if await rows.note(row, fence, rule):
        return
    held = await rows.look(row)
    if held is not None:
        raise _Undo(judge(rule, held[0], fence) or Present())
    raise _Undo(judge(rule, await _remembered(rows, row), fence))


async def _reserve(rows: RowStore, row: RowId) -> int | None:
    """Hold the ledger entry for a step without a fence, and return what it remembers."""
    newest = await rows.noted(row)
    if not await rows.note(row, newest or 0, Rule.AT_LEAST):
        raise _Undo(None)
    return newest


async def _alone(rows: RowStore, step: Callable[[], Awaitable[Outcome[V] | None]]) -> Outcome[V] | None:
    """One transaction around a step of several statements. None: the row has changed, try again."""
    try:
        async with rows.transaction():
            return await step()
    except _Undo as undone:
        return undone.outcome  # type: ignore[no-any-return]  # only outcomes and None are ever carried


async def settled(row: RowId, attempt: Callable[[], Awaitable[Outcome[V] | None]]) -> Outcome[V]:
    """Try until no other client has changed the row between two of our statements."""
    for _ in range(_TRIES):
        outcome = await attempt()
        if outcome is not None:
            return outcome
    raise Unavailable(
        f"the row {ledger_id(row)} came and went {_TRIES} times meanwhile; nothing was changed, try again"
    )
