"""What `guard check` tries on a row, and who has promised that it does not work.

Each attack gets an untouched row, in a transaction that is rolled back, and returns what happened if it
was held off. `AttackSucceeded` says that it was not, `AttackImpossible` that this table does not let it be tried.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.guards.install.migration import problems
from holdfast.guards.install.target import AttackImpossible, AttackSucceeded, Target
from holdfast.guards.install.triggers import Trigger
from holdfast.guards.sql.identifiers import quoted

_REPLACE: Final = "INSERT OR REPLACE INTO"
_JS_MAX: Final = 2**53  # where numbers that became floating point on the way stop being exact


class Attack(NamedTuple):
    """One attempt. `promised_by`: the least that has to be installed for it to be held off."""

    name: str
    what: str
    promised_by: Trigger
    attempt: Callable[[Target], str]
    engine: str | None = None  # where there is such a thing


def accepts(row: Target) -> str:
    """Without this, refusing everything would pass for a guard."""
    row.enter(row.low)
    values = row.values()
    for fence in (row.low, row.high, row.high):
        row.accepted(partial(row.table.update, row.lease(fence), row.row_id, values))
    if row.fence() != row.high or isinstance(row.fence(), str):
        raise AttackSucceeded(f"accepted, but the row carries {row.fence()!r} instead of {row.high}")
    return f"accepted; the row carries {row.high}"


def lower(row: Target) -> str:
    """The plain case."""
    row.enter(row.high)
    values = row.values()
    return row.fenced_out(lambda: row.table.update(row.lease(row.low), row.row_id, values), row.high)


def late(row: Target) -> str:
    """The holder paused after its read; a newer one has entered, and has written nothing yet."""
    values = row.values()
    with row.table.section(row.lease(row.low), row.row_id) as stale:
        row.enter(row.high)
        return row.fenced_out(lambda: stale.update(values), row.high)


def returning(row: Target) -> str:
    """The row is gone, and its fence with it, unless the ledger remembers."""
    row.enter(row.high)
    values = row.all_values()
    row.delete(row.high)
    return row.fenced_out(lambda: row.table.insert(row.lease(row.low), row.row_id, values), row.high)


def extremes(row: Target) -> str:
    """Kept exactly, and compared as numbers: neither as text nor as floating point."""
    tried = [each for each in (0, _JS_MAX + 1, FENCE_MAX) if each >= max(row.met, 0)]
    for fence in tried:
        row.enter(fence)
        if row.fence() != fence or isinstance(row.fence(), str):
            raise AttackSucceeded(f"the row carries {row.fence()!r} instead of {fence}")
        if fence > max(row.met, 0):
            row.fenced_out(partial(row.table.enter, row.lease(fence - 1), row.row_id), fence)
    return f"kept and compared exactly: {', '.join(map(str, tried))}"


def second_writer(row: Target) -> str:
    """A registration that is not committed yet already keeps others from the row."""
    if row.made and row.found.engine == "postgres":
        raise AttackImpossible("the table is empty, and others cannot see the row that was made up")
    row.enter(row.low)
    opening = row.database.elsewhere()
    if opening is None:
        raise AttackImpossible("there is no second connection; give a URL instead of a connection")
    with opening as elsewhere:
        try:
            with elsewhere.trying():
                row.set_fence(row.high, elsewhere)()
        except Exception as error:
            refusal = elsewhere.refusal(error)
            if refusal is None:
                raise
            return f"has to wait ({refusal.text})"
    raise AttackSucceeded("the second writer did not wait")


def plain_newer(row: Target) -> str:
    """A client without the guard that does it right."""
    row.enter(row.low)
    row.accepted(row.set_fence(row.high))
    row.accepted(row.set_fence(row.high))
    if row.fence() != row.high:
        raise AttackSucceeded(f"accepted, but the row carries {row.fence()!r} instead of {row.high}")
    return f"accepted; the row carries {row.high}"


def plain_lower(row: Target) -> str:
    """An old script with an old fence."""
    row.enter(row.high)
    return row.refused(row.set_fence(row.low))


def plain_null(row: Target) -> str:
    """A tool that writes all columns back."""
    row.enter(row.high)
    return row.refused(row.set_fence(None))


def plain_nonsense(row: Target) -> str:
    """Below every fence; in SQLite also text, which is above every number."""
    row.enter(row.low)
    said = row.refused(row.set_fence(-1))
    return row.refused(row.set_fence("newest")) if row.found.engine == "sqlite" else said


def plain_other_id(row: Target) -> str:
    """A row under another id is another row, and the old id would have forgotten its fence."""
    row.enter(row.low)
    return row.refused(row.changed_id())


def plain_return(row: Target) -> str:
    """Deleted under a newer fence, and inserted again under an older one."""
    row.enter(row.high)
    row.delete(row.high)
    return row.refused(row.bring_back(row.low))


def plain_return_bare(row: Target) -> str:
    """Inserted again without a fence: refused, or it carries on with the fence that is remembered."""
    row.enter(row.high)
    row.delete(row.high)
    return _kept(row, row.bring_back(None))


def plain_delete(row: Target) -> str:
    """Refused, or remembered."""
    row.enter(row.high)
    try:
        return row.refused(row.remove())
    except AttackSucceeded:
        row.accepted(row.remove())
    said = row.fenced_out(lambda: row.table.enter(row.lease(row.low), row.row_id), row.high)
    return f"done, and its fence is remembered ({said})"


def replace_lower(row: Target) -> str:
    """INSERT OR REPLACE deletes the row without telling the delete triggers."""
    row.enter(row.high)
    return row.refused(row.bring_back(row.low, _REPLACE))


def replace_bare(row: Target) -> str:
    """The same without a fence: refused, or the fence stays."""
    row.enter(row.high)
    return _kept(row, row.bring_back(None, _REPLACE))


def upsert_lower(row: Target) -> str:
    """The insert that turns into an update."""
    row.enter(row.high)
    ids, fence = ", ".join(map(quoted, row.names.id_columns)), quoted(row.names.fence_column)
    clause = f"ON CONFLICT ({ids}) DO UPDATE SET {fence} = excluded.{fence}"
    return row.refused(row.bring_back(row.low, clause=clause))


def unfenced_update(row: Target) -> str:
    """A client that knows nothing of fences."""
    row.enter(row.low)
    column = quoted(next(iter(row.values())))
    return row.refused(row.update(f"{column} = {column}"))


def unfenced_insert(row: Target) -> str:
    """The same, making a row."""
    row.enter(row.low)
    row.delete(row.low)
    return row.refused(row.bring_back(None))


def unfenced_delete(row: Target) -> str:
    """The same, deleting one."""
    row.enter(row.low)
    return row.refused(row.remove())


def truncated(row: Target) -> str:
    """Checked in the catalog rather than tried: it would lock every other client out of the table."""
    wrong = [each for each in problems(row.found) if "truncate" in each]
    if row.found.trigger is Trigger.NONE or wrong:
        raise AttackSucceeded("; ".join(wrong) or "there is no trigger for it")
    return "there is a trigger for it (checked, not tried)"


def _kept(row: Target, act: Callable[[], object]) -> str:
    try:
        return row.refused(act)
    except AttackSucceeded:
        row.accepted(act)
    if row.fence() != row.high:
        raise AttackSucceeded(f"done; the row carries {row.fence()} instead of {row.high}")
    return f"done, and the row carries on with {row.high}"


ATTACKS: Final = (
    Attack("accepts", "guard: newer and equal fences", Trigger.NONE, accepts),
    Attack("lower", "guard: a write under a lower fence", Trigger.NONE, lower),
    Attack("late", "guard: a late write, after a newer holder has entered", Trigger.NONE, late),
    Attack("return", "guard: bring a deleted row back under a lower fence", Trigger.NONE, returning),
    Attack("extremes", "guard: the fences 0, 2^53 + 1 and 2^63 - 1", Trigger.NONE, extremes),
    Attack("second-writer", "guard: a second writer while a holder has entered", Trigger.NONE, second_writer),
    Attack("plain-newer", "plain SQL: newer and equal fences", Trigger.NONE, plain_newer),
    Attack("plain-lower", "plain SQL: UPDATE with a lower fence", Trigger.RISING, plain_lower),
    Attack("plain-null", "plain SQL: set the fence to NULL", Trigger.RISING, plain_null),
    Attack("plain-nonsense", "plain SQL: set the fence to what is none", Trigger.RISING, plain_nonsense),
    Attack("plain-other-id", "plain SQL: give the row another id", Trigger.RISING, plain_other_id),
    Attack("plain-delete", "plain SQL: DELETE, then enter with a lower fence", Trigger.RISING, plain_delete),
    Attack("plain-return", "plain SQL: bring a deleted row back with a lower fence", Trigger.RISING, plain_return),
    Attack("plain-return-bare", "plain SQL: bring a deleted row back without one", Trigger.RISING, plain_return_bare),
    Attack("replace-lower", "plain SQL: INSERT OR REPLACE with a lower fence", Trigger.RISING, replace_lower, "sqlite"),
    Attack("replace-bare", "plain SQL: INSERT OR REPLACE without one", Trigger.RISING, replace_bare, "sqlite"),
    Attack("upsert-lower", "plain SQL: ON CONFLICT DO UPDATE with a lower fence", Trigger.RISING, upsert_lower),
    Attack("truncate", "plain SQL: TRUNCATE", Trigger.RISING, truncated, "postgres"),
    Attack("unfenced-update", "plain SQL: UPDATE without a fence", Trigger.STRICT, unfenced_update),
    Attack("unfenced-insert", "plain SQL: INSERT without a fence", Trigger.STRICT, unfenced_insert),
    Attack("unfenced-delete", "plain SQL: DELETE that was not announced", Trigger.STRICT, unfenced_delete),
)
