"""Preparing tables for guards: the fence column, the ledger, and the triggers that hold every client to the fence.

    from holdfast.guards import install

    install.plan("sqlite:///app.db", "invoices", trigger="strict")      # what would be done; nothing is
    install.install("sqlite:///app.db", "invoices", trigger="strict")
    install.check("sqlite:///app.db", "invoices")                       # tries to break it, and leaves no trace
    install.remove("sqlite:///app.db", "invoices")

Promises: each of them is one transaction, so that a crash leaves what was before or what is wanted; each can be run
again, and does nothing then; two concurrent ones both succeed. A table that is in use is not waited for longer than a
few seconds (`Unavailable`), because every other client would have to wait behind us. The database is a URL, a
`sqlite3.Connection` or a `psycopg.Connection`; a transaction that is open on a connection is used, and not committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.errors import BadInput
from holdfast.guards.install.database import GuardDatabase, open_database
from holdfast.guards.install.migration import Inspected, MigrationStep, installing, removing
from holdfast.guards.install.triggers import Trigger
from holdfast.guards.install.verify import Proof, prove
from holdfast.guards.sql.identifiers import FENCE_COLUMN, TableNames

if TYPE_CHECKING:
    import sqlite3

    import psycopg

    AnyDatabase: TypeAlias = str | sqlite3.Connection | psycopg.Connection[Any] | None

__all__ = ["MigrationStep", "Proof", "Report", "Trigger", "check", "install", "plan", "remove"]


@dataclass(frozen=True, slots=True)
class Report:
    """What was done to a table, or would be. No steps: it was so already."""

    database: str
    table: str
    trigger: Trigger  # which clients are held to the guard now
    steps: tuple[MigrationStep, ...]
    done: bool  # False: only planned
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether there was anything to do."""
        return bool(self.steps)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "database": self.database,
            "table": self.table,
            "trigger": self.trigger.value,
            "changed": self.changed and self.done,
            "done": self.done,
            "steps": [{"what": step.what, "sql": step.sql} for step in self.steps],
            "notes": list(self.notes),
        }


def plan(
    database: AnyDatabase,
    table: str,
    *,
    id: str | tuple[str, ...] = "id",
    fence_column: str = FENCE_COLUMN,
    trigger: Trigger | str | None = None,
) -> Report:
    """Say what `install` would do, and do nothing."""
    mode = _mode(trigger)
    return _run(database, _names(table, id, fence_column), lambda found: installing(found, mode), mode, dry=True)


def install(
    database: AnyDatabase,
    table: str,
    *,
    id: str | tuple[str, ...] = "id",
    fence_column: str = FENCE_COLUMN,
    trigger: Trigger | str | None = None,
) -> Report:
    """Prepare a table for guards: `strict`, `rising` or `none` says who is held to it.

    Without `trigger` the triggers that are there stay, and none are made.
    """
    mode = _mode(trigger)
    return _run(database, _names(table, id, fence_column), lambda found: installing(found, mode), mode)


def remove(
    database: AnyDatabase,
    table: str,
    *,
    fence_column: str = FENCE_COLUMN,
    keep_ledger: bool = False,
    dry_run: bool = False,
) -> Report:
    """Undo `install`: triggers, column and remembered fences go; the ledger goes with the last table that uses it."""
    # Which columns are the id does not matter here; a column cannot be its own fence.
    names = _names(table, "id" if fence_column != "id" else "rowid", fence_column)
    return _run(database, names, lambda found: removing(found, keep_ledger), Trigger.NONE, dry=dry_run)


def check(
    database: AnyDatabase,
    table: str,
    *,
    id: str | tuple[str, ...] = "id",
    fence_column: str = FENCE_COLUMN,
    expect: Trigger | str | None = None,
) -> Proof:
    """Try to break the guard of a table, in a transaction that is rolled back, and say what held.

    The proof has failed if something does not hold that the installed triggers promise, or if they are not what is
    expected.
    """
    names, wanted = _names(table, id, fence_column), _mode(expect, "expect")
    opened = open_database(database)
    try:
        return prove(opened, names, wanted)
    finally:
        opened.close()


def _run(
    database: object,
    names: TableNames,
    planned: Callable[[Inspected], tuple[MigrationStep, ...]],
    mode: Trigger | None,
    *,
    dry: bool = False,
) -> Report:
    opened = open_database(database)
    try:
        with opened.reading():
            found = opened.inspect(names)
            steps = planned(found)
        if steps and not dry:
            with opened.changing():
                found = opened.inspect(names)  # another process may have been quicker
                steps = planned(found)
                for step in steps:
                    opened.execute(step.sql)
        return _report(opened, found, steps, found.trigger if mode is None else mode, done=not dry)
    finally:
        opened.close()


def _report(
    opened: GuardDatabase, found: Inspected, steps: tuple[MigrationStep, ...], mode: Trigger, *, done: bool
) -> Report:
    notes: tuple[str, ...] = ()
    if mode is Trigger.STRICT and found.neighbours:
        listed, column = ", ".join(found.neighbours), found.names.fence_column
        notes = (f"triggers of others ({listed}) may write to it: they have to set {column} too, or they are refused",)
    return Report(opened.shown, found.names.shown, mode, steps, done, notes)


def _names(table: str, id: str | tuple[str, ...], fence_column: str) -> TableNames:
    return TableNames.checked(table, id, fence_column)


def _mode(trigger: Trigger | str | None, field: str = "trigger") -> Trigger | None:
    try:
        return None if trigger is None else Trigger(trigger)
    except ValueError:
        raise BadInput(field, f"{trigger!r} is not a mode", f"use {', '.join(Trigger)}") from None
