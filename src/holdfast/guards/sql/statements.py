"""The statements of a guarded table, for drivers that take text: built once per table, with places for every value.

The contract of each is the method of `rows.RowStore` of the same name. Names come from `TableNames` and are validated
and quoted there; values are only ever parameters. Both dialects read the same text but for the places (`:name` in
sqlite3, `%(name)s` in psycopg) and for the name of the row that an upsert meets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from holdfast.core.lease.fencing import Rule
from holdfast.guards.sql.identifiers import TableNames, quoted
from holdfast.guards.sql.rows import RowId, ledger_id

Place = Callable[[str], str]

MADE_AT: Final = "CURRENT_TIMESTAMP"


class SqlQuery(NamedTuple):
    """One statement and its values."""

    text: str
    values: dict[str, Any]


def named(name: str) -> str:
    """The place of a value in sqlite3."""
    return f":{name}"


def pyformat(name: str) -> str:
    """The place of a value in psycopg."""
    return f"%({name})s"


class TableStatements:
    """The statements of one guarded table in one place style."""

    def __init__(self, names: TableNames, place: Place) -> None:
        self._names = names
        self._place = place
        self._fence = quoted(names.fence_column)
        self._where = " AND ".join(
            f"{quoted(column)} = {place(f'id{number}')}" for number, column in enumerate(names.id_columns)
        )
        self._rules: Mapping[Rule, str] = {
            Rule.AT_LEAST: f" AND ({self._fence} IS NULL OR {self._fence} <= {place('fence')})",
            Rule.EXACTLY: f" AND {self._fence} = {place('fence')}",
            Rule.NONE: "",
        }
        self._entry = f"place = {place('place')} AND resource = {place('resource')}"

    def look(self, row: RowId) -> SqlQuery:
        """Read the fence of a row."""
        return SqlQuery(f"SELECT {self._fence} FROM {self._names.sql} WHERE {self._where}", self._ids(row))

    def read(self, row: RowId) -> SqlQuery:
        """Read a row."""
        return SqlQuery(f"SELECT * FROM {self._names.sql} WHERE {self._where}", self._ids(row))

    def stamp(self, row: RowId, fence: int, rule: Rule) -> SqlQuery:
        """Set the fence of a row if the rule holds."""
        text = (
            f"UPDATE {self._names.sql} SET {self._fence} = {self._place('fence')} "
            f"WHERE {self._where}{self._rules[rule]} RETURNING *"
        )
        return SqlQuery(text, {**self._ids(row), "fence": fence})

    def change(self, row: RowId, fence: int | None, rule: Rule, values: Mapping[str, Any]) -> SqlQuery:
        """Set values and fence if the rule holds."""
        columns = [f"{quoted(column)} = {place}" for column, place in zip(values, self._places(values), strict=True)]
        if rule is not Rule.NONE:
            columns.append(f"{self._fence} = {self._place('fence')}")
        if self._names.updated_column is not None:
            columns.append(f"{quoted(self._names.updated_column)} = {MADE_AT}")
        text = f"UPDATE {self._names.sql} SET {', '.join(columns)} WHERE {self._where}{self._rules[rule]} RETURNING *"
        return SqlQuery(text, {**self._ids(row), **_numbered(values), **({} if fence is None else {"fence": fence})})

    def make(self, row: RowId, fence: int | None, values: Mapping[str, Any]) -> SqlQuery:
        """Insert a row, unless there is one."""
        columns = [*self._names.id_columns, *values, self._names.fence_column]
        ids = [self._place(f"id{number}") for number, _ in enumerate(self._names.id_columns)]
        places = [*ids, *self._places(values), self._place("fence")]
        if self._names.updated_column is not None:
            columns.append(self._names.updated_column)
            places.append(MADE_AT)
        text = (
            f"INSERT INTO {self._names.sql} ({_listed(columns)}) VALUES ({', '.join(places)}) "
            f"ON CONFLICT ({_listed(self._names.id_columns)}) DO NOTHING RETURNING *"
        )
        return SqlQuery(text, {**self._ids(row), **_numbered(values), "fence": fence})

    def drop(self, row: RowId, fence: int | None, rule: Rule) -> SqlQuery:
        """Delete a row if the rule holds."""
        text = f"DELETE FROM {self._names.sql} WHERE {self._where}{self._rules[rule]} RETURNING *"
        return SqlQuery(text, {**self._ids(row), **({} if fence is None else {"fence": fence})})

    def noted(self, row: RowId) -> SqlQuery:
        """Read the ledger entry of a row."""
        return SqlQuery(f"SELECT fence FROM {self._names.ledger_sql} WHERE {self._entry}", self._ledger(row))

    def note(self, row: RowId, fence: int, rule: Rule) -> SqlQuery:
        """Raise the ledger entry of a row, and hold it."""
        ledger, place = self._names.ledger_sql, self._place
        values = {**self._ledger(row), "fence": fence}
        if rule is Rule.EXACTLY:
            text = f"UPDATE {ledger} SET fence = {place('fence')} WHERE {self._entry} AND fence = {place('fence')} "
            return SqlQuery(text + "RETURNING fence", values)
        text = (
            f"INSERT INTO {ledger} AS entry (place, resource, fence) "
            f"VALUES ({place('place')}, {place('resource')}, {place('fence')}) ON CONFLICT (place, resource) "
            f"DO UPDATE SET fence = excluded.fence, seen_at = {MADE_AT} WHERE entry.fence <= excluded.fence "
            "RETURNING fence"
        )
        return SqlQuery(text, values)

    def forget(self, row: RowId) -> SqlQuery:
        """Delete the ledger entry of a row."""
        return SqlQuery(f"DELETE FROM {self._names.ledger_sql} WHERE {self._entry}", self._ledger(row))

    def _ids(self, row: RowId) -> dict[str, Any]:
        parts = row if isinstance(row, tuple) else (row,)
        return {f"id{number}": part for number, part in enumerate(parts)}

    def _ledger(self, row: RowId) -> dict[str, Any]:
        return {"place": self._names.table, "resource": ledger_id(row)}

    def _places(self, values: Mapping[str, Any]) -> list[str]:
        return [self._place(f"value{number}") for number, _ in enumerate(values)]


def _numbered(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"value{number}": value for number, value in enumerate(values.values())}


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(quoted(column) for column in columns)
