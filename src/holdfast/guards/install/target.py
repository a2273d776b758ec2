"""The row that `guard check` tries to break, and what can be done to it: through the guard, and around it.

Everything here happens inside `GuardDatabase.trying`, and is undone. The row is one that exists, or one that is made up
from the types of the columns; a copy of it in a temporary table lets it be inserted again, whatever its columns hold.
"""

# ruff: noqa: S608 - names are validated and quoted in `names`, values are parameters

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID, uuid4

from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.errors import BadInput, FencedOut, HoldfastError
from holdfast.guards.bearer import CarriedFence, Fenced
from holdfast.guards.install.database import GuardDatabase, only
from holdfast.guards.install.migration import Column, Inspected
from holdfast.guards.sql.identifiers import quoted
from holdfast.guards.sql.rows import RowId, ledger_id
from holdfast.guards.sql.table import AnyGuardedTable

KEY: Final = "holdfast-guard-check"
COPY: Final = "holdfast_guard_copy"
ROOM: Final = 16  # how many fences above those that the row has met are needed

_SIMPLE: Final = (int, float, str, bytes, type(None))


class AttackSucceeded(Exception):
    """Something that should have been refused was done, or the other way round."""


class AttackImpossible(Exception):
    """This table, or this row, does not let it be tried."""


class Target:
    """One row of one table. `low` and `high` are two fences above everything that it has met."""

    def __init__(self, database: GuardDatabase, found: Inspected) -> None:
        self.database = database
        self.found = found
        self.names = found.names
        self.table: AnyGuardedTable[Fenced] = database.guarded(found.names)
        self.row_id: RowId = 0
        self.made = False
        self.met = -1
        self.columns = [
            name for name, each in found.columns.items() if name != self.names.fence_column and not each.generated
        ]
        self._ids: dict[str, object] = {}
        self._where = " AND ".join(f"{quoted(name)} = :id{number}" for number, name in enumerate(self.names.id_columns))

    def choose(self) -> None:
        """Find a row, or make one, and keep a copy of it. `AttackImpossible` if there is no way."""
        ids = ", ".join(map(quoted, self.names.id_columns))
        present = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in self.names.id_columns)
        rows = self.database.execute(f"SELECT {ids} FROM {self.names.sql} WHERE {present} LIMIT 1")
        made_up = [_made_up(self.found.engine, self.found.columns[name]) for name in self.names.id_columns]
        values = rows[0] if rows else tuple(made_up)
        self._ids = {f"id{number}": value for number, value in enumerate(values)}
        self.row_id = values[0] if len(values) == 1 else tuple(values)
        if not rows:
            self._make(dict(zip(self.names.id_columns, values, strict=True)))
        listed = ", ".join(map(quoted, self.columns))
        # In two steps, for a statement that makes a table takes no values.
        self.execute(f"CREATE TEMPORARY TABLE {COPY} AS SELECT {listed} FROM {self.names.sql} WHERE false")
        self.execute(f"INSERT INTO {COPY} SELECT {listed} FROM {self.names.sql} WHERE {self._where}")
        met = [self.fence(), self._remembered()]
        numbers = [each for each in met if isinstance(each, int)]
        if len(numbers) < len([each for each in met if each is not None]):
            raise AttackImpossible(f"the row carries {self.fence()!r}, which is not a fence")
        self.met = max(numbers, default=-1)
        if self.met > FENCE_MAX - ROOM:
            raise AttackImpossible(f"the row has met the fence {self.met}, and there is none left above it")

    @property
    def low(self) -> int:
        """A fence above all that the row has met."""
        return self.high - 1

    @property
    def high(self) -> int:
        """The next one: where there is room, one with more digits, so that comparing as text does not go unnoticed."""
        power = 10 ** len(str(self.met + 2))
        return power if power <= FENCE_MAX - ROOM else self.met + ROOM // 2

    def lease(self, fence: int) -> CarriedFence:
        """A lease with this fence."""
        return CarriedFence(KEY, fence)

    def fence(self) -> Any:
        """The fence that the row carries; None also if there is no row."""
        return only(self.execute(f"SELECT {self._fence_name} FROM {self.names.sql} WHERE {self._where}"))

    def execute(self, statement: str, by: GuardDatabase | None = None, **values: object) -> list[tuple[Any, ...]]:
        """Run a statement about the row, on our own connection or on another."""
        used = {name: value for name, value in {**self._ids, **values}.items() if f":{name}" in statement}
        return (by or self.database).execute(statement, used)

    def enter(self, fence: int) -> None:
        """Through the guard."""
        self.accepted(lambda: self.table.enter(self.lease(fence), self.row_id))

    def delete(self, fence: int) -> None:
        """Through the guard."""
        self.accepted(lambda: self.table.delete(self.lease(fence), self.row_id))

    def all_values(self) -> dict[str, Any]:
        """What the row holds and the guard can write back: what is not simple is left out where it may be."""
        names = [name for name in self.columns if name not in self.names.id_columns]
        listed = ", ".join(map(quoted, [*names, self.names.fence_column]))
        (held,) = self.execute(f"SELECT {listed} FROM {self.names.sql} WHERE {self._where}")
        needed = {name for name, each in self.found.columns.items() if not each.nullable and each.default is None}
        values = dict(zip(names, held, strict=False))
        return {name: value for name, value in values.items() if isinstance(value, _SIMPLE) or name in needed}

    def values(self) -> dict[str, Any]:
        """Something to write through the guard that changes nothing: a column and what it holds."""
        for name, value in self.all_values().items():
            if isinstance(value, _SIMPLE):
                return {name: value}
        raise AttackImpossible("the table has no other column that could be written")

    def update(self, assignment: str, by: GuardDatabase | None = None, **values: object) -> Callable[[], object]:
        """A plain UPDATE of the row."""
        statement = f"UPDATE {self.names.sql} SET {assignment} WHERE {self._where}"
        return lambda: self.execute(statement, by, **values)

    def set_fence(self, fence: object, by: GuardDatabase | None = None) -> Callable[[], object]:
        """A plain UPDATE of its fence."""
        return self.update(f"{self._fence_name} = :fence", by, fence=fence)

    def remove(self) -> Callable[[], object]:
        """A plain DELETE."""
        return lambda: self.execute(f"DELETE FROM {self.names.sql} WHERE {self._where}")

    def bring_back(self, fence: int | None, verb: str = "INSERT INTO", clause: str = "") -> Callable[[], object]:
        """A plain INSERT of the copy; without the fence column if there is no fence."""
        columns = ", ".join(map(quoted, self.columns))
        into, given = (columns, columns) if fence is None else (f"{columns}, {self._fence_name}", f"{columns}, :fence")
        statement = f"{verb} {self.names.sql} ({into}) SELECT {given} FROM {COPY} WHERE true {clause}"
        return lambda: self.execute(statement, fence=fence)

    def accepted(self, act: Callable[[], object]) -> None:
        """Do it; `AttackSucceeded` if the guard or a trigger refuses, `AttackImpossible` if something else does."""
        try:
            act()
        except BadInput as error:
            raise AttackImpossible(str(error)) from error
        except TypeError as error:
            raise AttackSucceeded(f"the guard cannot compare what the row carries: {error}") from error
        except HoldfastError as error:
            raise AttackSucceeded(f"refused, though nothing newer was met: {error}") from error
        except Exception as error:
            refusal = self._refusal(error)
            if refusal:
                raise AttackSucceeded(f"refused, though nothing newer was met: {refusal}") from error
            raise

    def refused(self, act: Callable[[], object]) -> str:
        """Do it by plain SQL; how a trigger refused. `AttackSucceeded` if it did not."""
        try:
            with self.database.trying():
                act()
                carried = self.fence()
        except Exception as error:
            refusal = self._refusal(error)
            if refusal:
                return f"refused: {refusal}"
            raise
        raise AttackSucceeded("done" if carried is None else f"done; the row carries {carried} now")

    def fenced_out(self, act: Callable[[], object], seen: int) -> str:
        """Do it through the guard; how it was refused, and that nothing changed. `AttackSucceeded` if it was not."""
        before = self.fence()
        try:
            with self.database.trying():
                act()
                carried = self.fence()
        except FencedOut as error:
            if (error.seen, self.fence()) != (seen, before):
                raise AttackSucceeded(f"refused, but for {error.seen} instead of {seen}") from error
            return f"refused: {error.fence} is below {error.seen}"
        except BadInput as error:
            raise AttackImpossible(str(error)) from error
        except TypeError as error:
            raise AttackSucceeded(f"the guard cannot compare what the row carries: {error}") from error
        except Exception as error:
            if refusal := self._refusal(error):
                return f"refused: {refusal}"
            raise
        raise AttackSucceeded("done" if carried is None else f"done; the row carries {carried} now")

    def changed_id(self) -> Callable[[], object]:
        """A plain UPDATE that gives the row another id."""
        name, value = self.names.id_columns[0], self._ids["id0"]
        other: object = value + 1_000_003 if isinstance(value, int) else str(uuid4())
        given = UUID(str(other)) if isinstance(value, UUID) else other
        return self.update(f"{quoted(name)} = :other, {self._fence_name} = :fence", other=given, fence=self.high)

    @property
    def _fence_name(self) -> str:
        return quoted(self.names.fence_column)

    def _refusal(self, error: Exception) -> str:
        """The text of our trigger's refusal. `AttackImpossible` if the refusal came from elsewhere."""
        refusal = self.database.refusal(error)
        if refusal is None:
            return ""
        if not refusal.code:
            raise AttackImpossible(f"the database says: {refusal.text}") from error
        return f"{refusal.code} {refusal.text}"

    def _remembered(self) -> Any:
        return only(
            self.database.execute(
                f"SELECT fence FROM {self.names.ledger_sql} WHERE place = :place AND resource = :resource",
                {"place": self.names.table, "resource": ledger_id(self.row_id)},
            )
        )

    def _make(self, ids: dict[str, object]) -> None:
        """Make a row under the lowest fence that is good for it."""
        needed = ids | {
            name: _made_up(self.found.engine, column)
            for name, column in self.found.columns.items()
            if name not in ids and not column.nullable and column.default is None and not column.generated
        }
        needed[self.names.fence_column] = self._remembered() or 0
        columns, places = (
            ", ".join(map(quoted, needed)),
            ", ".join(f":value{number}" for number, _ in enumerate(needed)),
        )
        values = {f"value{number}": value for number, value in enumerate(needed.values())}
        try:
            self.database.execute(f"INSERT INTO {self.names.sql} ({columns}) VALUES ({places})", values)
        except Exception as error:
            refusal = self.database.refusal(error)
            if refusal is None:
                raise
            raise AttackImpossible(f"the table is empty, and no row could be made: {refusal.text}") from error
        self.made = True


def _made_up(engine: str, column: Column) -> Any:
    """A value that a column of this type takes, as far as its type says."""
    kind = column.type.lower()
    if engine == "sqlite":
        return 1 if "int" in kind else 1.0 if any(each in kind for each in ("real", "floa", "doub")) else "1"
    if kind == "uuid":
        return uuid4()
    if kind in ("smallint", "integer", "bigint", "numeric", "real", "double precision"):
        return 1
    if kind == "boolean":
        return True
    if kind in ("json", "jsonb"):
        return "{}"
    if kind == "date" or kind.startswith("timestamp"):
        return "2000-01-01"
    return "1"
