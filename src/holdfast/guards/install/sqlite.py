"""A SQLite file whose tables are to be guarded: its catalogue, and its transactions."""

# ruff: noqa: S608 - names are validated and quoted in `names`, values are parameters

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from holdfast.errors import BadInput, Misconfigured, Unavailable
from holdfast.guards.bearer import Fenced
from holdfast.guards.install.database import GuardDatabase, Row, TriggerRefusal, only
from holdfast.guards.install.migration import Column, Inspected
from holdfast.guards.install.triggers import MARK_TABLE, PREFIX
from holdfast.guards.sql.identifiers import FENCE_COLUMN, LEDGER_TABLE, TableNames
from holdfast.guards.sqlite import GuardedTable
from holdfast.stores.sqlite.errors import code_of, is_busy, translated

BUSY_TIMEOUT_S: Final = 5.0

_UNDO_SAVEPOINT: Final = ("ROLLBACK TO holdfast_guard_install", "RELEASE holdfast_guard_install")
_REFUSED: Final = re.compile(r"holdfast (HF\d{3}): (.*)", re.DOTALL)
_KINDS: Final = {"view": "is a view", "virtual": "is a virtual table", "shadow": "belongs to a virtual table"}


class SqliteGuardDatabase:
    """`database.GuardDatabase` over one sqlite3 connection."""

    engine = "sqlite"

    def __init__(self, connection: sqlite3.Connection, path: str | None = None) -> None:
        """`path`: the file, if the connection was opened here and is to be closed here."""
        if sqlite3.sqlite_version_info < (3, 35):
            raise Misconfigured(f"the SQLite library is {sqlite3.sqlite_version}; guards need 3.35 or newer")
        self._connection = connection
        self._ours = path is not None
        self._path = path or self._file()
        self.shown = self._path or "a database in memory"

    @classmethod
    def opened(cls, url: str) -> SqliteGuardDatabase:
        """Open `sqlite:///file.db`, which exists."""
        head = url.partition("?")[0]
        _, mark, rest = head.partition("://")
        path = unquote(rest[1:])
        if not mark or not rest.startswith("/") or not path or path == ":memory:" or "\0" in path:
            raise BadInput("database", f"{url!r} names no file", "use sqlite:///name.db or sqlite:////absolute/path.db")
        return cls._connected(path, BUSY_TIMEOUT_S)

    @classmethod
    def _connected(cls, path: str, timeout_s: float) -> SqliteGuardDatabase:
        if not Path(path).is_file():
            raise Misconfigured(f"there is no file {path}; a table has to exist before it can be guarded")
        # A file that vanishes meanwhile is not created again.
        where = f"file:{quote(str(Path(path).absolute()))}?mode=rw"
        try:
            connection = sqlite3.connect(where, uri=True, timeout=timeout_s, isolation_level=None)
        except sqlite3.Error as error:
            raise translated(error, path) from error
        return cls(connection, path)

    def inspect(self, names: TableNames) -> Inspected:
        """See `GuardDatabase`."""
        if names.schema is not None:
            raise BadInput("table", f"{names.shown!r} has a schema", "name the table alone: SQLite has no schemas")
        self._check_kind(names)
        triggers = self.execute(
            "SELECT name, sql, lower(tbl_name) = lower(:table) FROM sqlite_master "
            "WHERE type = 'trigger' ORDER BY rowid",
            {"table": names.table},
        )
        ours = {name: text for name, text, here in triggers if here and name.startswith(PREFIX)}
        others = [text for name, text, here in triggers if not here and name.startswith(PREFIX)]
        ledger = tuple(self._columns(LEDGER_TABLE))
        return Inspected(
            engine="sqlite",
            names=names,
            columns=self._columns(names.table),
            unique=tuple(self._unique(names)),
            id_problem=self._id_problem(names),
            ledger=ledger,
            remembered=self._remembered(names) if "place" in ledger else 0,
            ledger_shared=bool(others) or self._shared(names, ledger),
            mark=bool(self._columns(MARK_TABLE)),
            mark_shared=any(MARK_TABLE in text for text in others),
            parts=ours,
            neighbours=tuple(
                name for name, text, here in triggers if here and name not in ours and "UPDATE" in text.upper()
            ),
        )

    def execute(self, statement: str, values: Mapping[str, object] | None = None) -> list[Row]:
        """See `GuardDatabase`."""
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the connection's is the caller's business
        try:
            return cursor.execute(statement, values or {}).fetchall()
        finally:
            cursor.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See `GuardDatabase`."""
        with self.translating():
            if self._connection.in_transaction:
                yield
                return
            self._connection.execute("BEGIN")  # one state of the catalogue, while others change it
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def changing(self) -> Iterator[None]:
        """See `GuardDatabase`."""
        with self.translating(), self._transaction(keep=True):
            yield

    @contextmanager
    def trying(self) -> Iterator[None]:
        """See `GuardDatabase`."""
        with self._transaction(keep=False):
            yield

    def refusal(self, error: BaseException) -> TriggerRefusal | None:
        """See `GuardDatabase`."""
        if not isinstance(error, sqlite3.Error):
            return None
        found = _REFUSED.search(str(error))
        return TriggerRefusal(found[1], found[2]) if found else TriggerRefusal("", str(error))

    def guarded(self, names: TableNames) -> GuardedTable[Fenced]:
        """See `GuardDatabase`."""
        return GuardedTable(self._connection, names.table, id=names.id_columns, fence_column=names.fence_column)

    def elsewhere(self) -> AbstractContextManager[GuardDatabase] | None:
        """See `GuardDatabase`."""
        return closing(self._connected(self._path, 0.0)) if self._path else None

    def close(self) -> None:
        """See `GuardDatabase`."""
        if self._ours:
            self._connection.close()

    @contextmanager
    def _transaction(self, keep: bool) -> Iterator[None]:
        execute = self._connection.execute
        inside = self._connection.in_transaction
        execute("SAVEPOINT holdfast_guard_install" if inside else "BEGIN IMMEDIATE")
        kept = False
        try:
            yield
            if keep:
                execute("RELEASE holdfast_guard_install" if inside else "COMMIT")
                kept = True
        finally:
            # SQLite rolls back automatically on some errors (a full disk); then there is nothing left to undo.
            if not kept and self._connection.in_transaction:
                for statement in _UNDO_SAVEPOINT if inside else ("ROLLBACK",):
                    execute(statement)

    @contextmanager
    def translating(self) -> Iterator[None]:
        """See `GuardDatabase`."""
        try:
            yield
        except sqlite3.Error as error:
            if is_busy(error):
                raise Unavailable(f"{self.shown} is locked by another writer; nothing was changed") from error
            if code_of(error) in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT):
                raise Misconfigured(f"{self.shown} refused it; nothing was changed (SQLite: {error})") from error
            raise translated(error, self.shown) from error

    def _file(self) -> str:
        rows = self.execute("PRAGMA database_list")
        return next((str(file) for _, name, file in rows if name == "main" and file), "")

    def _check_kind(self, names: TableNames) -> None:
        found = self.execute(
            "SELECT name, type FROM pragma_table_list WHERE schema = 'main' AND lower(name) = lower(:name)"
            if sqlite3.sqlite_version_info >= (3, 37)
            else "SELECT name, CASE WHEN sql LIKE 'CREATE VIRTUAL%' THEN 'virtual' ELSE type END "
            "FROM sqlite_master WHERE type IN ('table', 'view') AND lower(name) = lower(:name)",
            {"name": names.table},
        )
        if not found:
            raise Misconfigured(f"{self.shown} has no table {names.shown}")
        ((name, kind),) = found
        if name != names.table:
            raise Misconfigured(f"the table is called {name}, not {names.table}; write it as the database has it")
        if kind in _KINDS:
            raise Misconfigured(f"{names.shown} {_KINDS[kind]}, which cannot be guarded; name a table")
        if name.startswith(("sqlite_", PREFIX)):
            raise Misconfigured(f"{names.shown} is not a table of yours")

    def _columns(self, table: str) -> dict[str, Column]:
        rows = self.execute(
            'SELECT name, type, "notnull", dflt_value, hidden FROM pragma_table_xinfo(:table)', {"table": table}
        )
        return {
            name: Column(kind, not not_null, default, generated=hidden in (2, 3))
            for name, kind, not_null, default, hidden in rows
            if hidden != 1
        }

    def _unique(self, names: TableNames) -> Iterator[tuple[str, ...]]:
        """The columns of every index that makes all rows differ, byte by byte."""
        keys = self.execute(
            "SELECT name, type FROM pragma_table_info(:table) WHERE pk > 0 ORDER BY pk", {"table": names.table}
        )
        if len(keys) == 1 and keys[0][1].upper() == "INTEGER":
            yield (keys[0][0],)  # another name of the rowid, for which there is no index
        for index, partial in self.execute(
            'SELECT name, partial FROM pragma_index_list(:table) WHERE "unique"', {"table": names.table}
        ):
            parts = self.execute(
                'SELECT name, coll FROM pragma_index_xinfo(:index) WHERE "key" ORDER BY seqno', {"index": index}
            )
            if not partial and all(column is not None and collation == "BINARY" for column, collation in parts):
                yield tuple(column for column, _ in parts)

    def _id_problem(self, names: TableNames) -> str | None:
        columns = self._columns(names.table)
        for name in names.id_columns:
            kind = columns[name].type.upper() if name in columns else ""
            if "INT" not in kind and any(each in kind for each in ("REAL", "FLOA", "DOUB", "BLOB")):
                return f"{name} is {kind}, and an id is a whole number or text"
        return None

    def _remembered(self, names: TableNames) -> int:
        count: int = only(
            self.execute(f"SELECT count(*) FROM {LEDGER_TABLE} WHERE place = :place", {"place": names.table})
        )
        return count

    def _shared(self, names: TableNames, ledger: tuple[str, ...]) -> bool:
        if "place" not in ledger:
            return False
        place: dict[str, Any] = {"place": names.table}
        if self.execute(f"SELECT 1 FROM {LEDGER_TABLE} WHERE place <> :place LIMIT 1", place):
            return True
        tables = self.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> :place AND sql NOT LIKE 'CREATE VIRTUAL%'",
            place,
        )
        prepared = {names.fence_column, FENCE_COLUMN}
        return any(prepared & set(self._columns(name)) for (name,) in tables)
