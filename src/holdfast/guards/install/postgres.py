"""A Postgres database whose tables are to be guarded: its catalogue, its transactions, and patience that ends.

A migration waits for a lock of its table no longer than `LOCK_TIMEOUT_S`: while an ALTER TABLE waits, every client that
comes after it waits behind it, readers too, so a busy table is better left alone than held up.
"""

# ruff: noqa: S608 - names are validated and quoted in `names`, values are parameters

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.rows import tuple_row

from holdfast.errors import BadInput, HoldfastError, Misconfigured, Unavailable
from holdfast.guards.bearer import Fenced
from holdfast.guards.install.database import GuardDatabase, Row, TriggerRefusal, only
from holdfast.guards.install.migration import Column, Inspected
from holdfast.guards.install.triggers import PREFIX, postgres_definition, postgres_functions
from holdfast.guards.sql.identifiers import FENCE_COLUMN, LEDGER_TABLE, TableNames
from holdfast.guards.sql.table import AnyGuardedTable
from holdfast.runtime.postgres_driver import tls_options
from holdfast.stores.registry import redacted

LOCK_TIMEOUT_S: Final = 3.0
IMPATIENT_S: Final = 0.25  # how long the second connection of a check waits to see that it has to wait

_INSTALLERS: Final = 0x686F6C64  # the advisory lock of all processes that install or remove guards
_PLACE: Final = re.compile(r"(?<!:):([a-z]\w*)")
_ID_TYPES: Final = {"smallint", "integer", "bigint", "text", "character varying", "uuid"}
_KINDS: Final = {
    "v": "is a view",
    "m": "is a materialised view",
    "p": "is partitioned",
    "f": "is a foreign table",
    "S": "is a sequence",
    "i": "is an index",
    "c": "is a type",
}

_TABLE: Final = """
    SELECT c.oid::bigint, n.nspname, c.relkind::text, c.relispartition FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = :table AND (n.nspname = :schema OR (:schema::text IS NULL AND pg_table_is_visible(c.oid)))
"""
_COLUMNS: Final = """
    SELECT a.attname, CASE t.typtype WHEN 'd' THEN format_type(t.typbasetype, NULL)
        ELSE format_type(a.atttypid, NULL) END, NOT a.attnotnull,
        CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END, a.attgenerated <> ''
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = :oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE: Final = """
    SELECT array_agg(a.attname::text ORDER BY k.place), bool_and(coalesce(l.collisdeterministic, true))
    FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::smallint[], i.indcollation::oid[])
        WITH ORDINALITY AS k (number, sorting, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
    LEFT JOIN pg_collation l ON l.oid = k.sorting
    WHERE i.indrelid = :oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
        AND i.indexprs IS NULL AND k.place <= i.indnkeyatts
    GROUP BY i.indexrelid
"""
_TRIGGERS: Final = """
    SELECT t.tgname, p.prosrc, p.proname, p.prosecdef, t.tgtype::int,
        coalesce((SELECT a.attname::text FROM pg_attribute a
            WHERE a.attrelid = t.tgrelid AND a.attnum = t.tgattr[0]), ''),
        t.tgenabled::text, t.tgqual IS NOT NULL
    FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = :oid AND NOT t.tgisinternal ORDER BY t.tgname
"""
_ORPHANS: Final = """
    SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = :schema AND p.proname = ANY(:names)
        AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgfoid = p.oid)
    ORDER BY 1
"""
_SHARED: Final = """
    SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = :schema AND c.oid <> :oid AND c.relkind IN ('r', 'p') AND (
        EXISTS (SELECT FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attname = ANY(:columns) AND NOT a.attisdropped)
        OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND starts_with(t.tgname::text, :prefix)))
    LIMIT 1
"""


class PostgresGuardDatabase:
    """`database.GuardDatabase` over one psycopg connection."""

    engine = "postgres"

    def __init__(
        self, connection: psycopg.Connection[Any], url: str | None = None, patience_s: float = LOCK_TIMEOUT_S
    ) -> None:
        """`url`: where it leads, if the connection was opened here and is to be closed here."""
        self._connection = connection
        self._url = url
        self._patience_s = patience_s
        self.shown = redacted(url) if url else f"the database {connection.info.dbname}"

    @classmethod
    def of(cls, connection: object) -> PostgresGuardDatabase:
        """Over a connection of the caller."""
        if not isinstance(connection, psycopg.Connection):
            raise BadInput(
                "database", f"{type(connection).__name__} is not a blocking connection", "give a psycopg.Connection"
            )
        return cls(connection)

    @classmethod
    def opened(cls, url: str, patience_s: float = LOCK_TIMEOUT_S) -> PostgresGuardDatabase:
        """Connect to `postgresql://…`."""
        scheme, _, rest = url.partition(":")
        place = f"{scheme.partition('+')[0]}:{rest}"
        try:
            return cls(psycopg.connect(place, autocommit=True, **tls_options(place)), url, patience_s)
        except psycopg.Error as error:
            raise Unavailable(f"{redacted(url)} cannot be reached: {_hidden(url, error)}") from None

    def inspect(self, names: TableNames) -> Inspected:
        """See `GuardDatabase`."""
        oid, names = self._found(names)
        columns = {name: Column(*rest) for name, *rest in self.execute(_COLUMNS, {"oid": oid})}
        triggers = {name: rest for name, *rest in self.execute(_TRIGGERS, {"oid": oid})}
        functions = list(postgres_functions(names.table))
        ledger = self._ledger(names)
        shared = {
            "schema": names.schema,
            "oid": oid,
            "columns": [names.fence_column, FENCE_COLUMN],
            "prefix": PREFIX,
        }
        return Inspected(
            engine="postgres",
            names=names,
            columns=columns,
            unique=tuple(tuple(each) for each, exact in self.execute(_UNIQUE, {"oid": oid}) if exact),
            id_problem=_id_problem(names, columns),
            ledger=ledger,
            remembered=self._entries(names, "=") if "place" in ledger else 0,
            ledger_shared=bool(self.execute(_SHARED, shared)) or bool("place" in ledger and self._entries(names, "<>")),
            parts={name: postgres_definition(*rest) for name, rest in triggers.items() if name.startswith(PREFIX)},
            orphans=tuple(name for (name,) in self.execute(_ORPHANS, {"schema": names.schema, "names": functions})),
        )

    def execute(self, statement: str, values: Mapping[str, object] | None = None) -> list[Row]:
        """See `GuardDatabase`."""
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            if values:
                text: Any = _PLACE.sub(r"%(\1)s", statement.replace("%", "%%"))
                cursor.execute(text, values)
            else:
                plain: Any = statement
                cursor.execute(plain)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See `GuardDatabase`."""
        with self.translating(), self._connection.transaction(), self._patient():
            # No other client changes what several statements read, or a table of the first is gone in the next one.
            self.execute("SELECT pg_advisory_xact_lock_shared(:number)", {"number": _INSTALLERS})
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        """See `GuardDatabase`."""
        with self.translating(), self._connection.transaction(), self._patient():
            self.execute("SELECT pg_advisory_xact_lock(:number)", {"number": _INSTALLERS})
            yield

    @contextmanager
    def trying(self) -> Iterator[None]:
        """See `GuardDatabase`."""
        with self._connection.transaction(force_rollback=True):
            self._set_patience(f"{round(self._patience_s * 1000)}ms")
            yield

    def refusal(self, error: BaseException) -> TriggerRefusal | None:
        """See `GuardDatabase`."""
        if not isinstance(error, psycopg.Error):
            return None
        state = error.sqlstate or ""
        text = (error.diag.message_primary or str(error)).strip()
        return TriggerRefusal(state if state.startswith("HF") else "", text)

    def guarded(self, names: TableNames) -> AnyGuardedTable[Fenced]:
        """See `GuardDatabase`."""
        from holdfast.guards.postgres import GuardedTable

        table: AnyGuardedTable[Fenced] = GuardedTable(
            self._connection, names.shown, id=names.id_columns, fence_column=names.fence_column
        )
        return table

    def elsewhere(self) -> AbstractContextManager[GuardDatabase] | None:
        """See `GuardDatabase`."""
        if self._url is None:
            return None
        return closing(self.opened(self._url, IMPATIENT_S))

    def close(self) -> None:
        """See `GuardDatabase`."""
        if self._url is not None:
            self._connection.close()

    @contextmanager
    def _patient(self) -> Iterator[None]:
        """Wait for locks so long and no longer; afterwards, in a transaction of the caller, as before."""
        before = only(self.execute("SELECT current_setting('lock_timeout')"))
        self._set_patience(f"{round(self._patience_s * 1000)}ms")
        yield
        self._set_patience(before)

    def _set_patience(self, value: str) -> None:
        self.execute("SELECT set_config('lock_timeout', :value, true)", {"value": value})

    @contextmanager
    def translating(self) -> Iterator[None]:
        """See `GuardDatabase`."""
        try:
            yield
        except HoldfastError:
            raise
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            raise Unavailable(
                f"the table is in use, and was not free within {LOCK_TIMEOUT_S:g} s; nothing was changed: try again "
                "when no long transaction is open on it"
            ) from error
        except errors.OperationalError as error:
            raise Unavailable(f"{self.shown}: {error}") from error
        except psycopg.Error as error:
            raise Misconfigured(f"{self.shown} refused it; nothing was changed: {error}") from error

    def _found(self, names: TableNames) -> tuple[int, TableNames]:
        rows = self.execute(_TABLE, {"table": names.table, "schema": names.schema})
        if not rows:
            raise Misconfigured(f"{self.shown} has no table {names.shown}; names are written as the database has them")
        ((oid, schema, kind, partition),) = rows
        if kind in _KINDS or partition:
            problem = _KINDS.get(kind, "is a partition")
            raise Misconfigured(f"{names.shown} {problem}, which cannot be guarded; name an ordinary table")
        if names.table.startswith(PREFIX):
            raise Misconfigured(f"{names.shown} is not a table of yours")
        seen = only(
            self.execute(
                "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass(:name)",
                {"name": LEDGER_TABLE},
            )
        )
        if names.schema is None and seen not in (None, schema):
            raise Misconfigured(
                f"{names.table} is in the schema {schema}, but the ledger that guards would find first is in {seen}; "
                f"name it {schema}.{names.table}, here and in the guards"
            )
        return oid, TableNames(names.table, names.id_columns, names.fence_column, names.updated_column, schema)

    def _ledger(self, names: TableNames) -> tuple[str, ...]:
        oid = only(self.execute(_TABLE, {"table": LEDGER_TABLE, "schema": names.schema}))
        return () if oid is None else tuple(name for name, *_ in self.execute(_COLUMNS, {"oid": oid}))

    def _entries(self, names: TableNames, comparison: str) -> int:
        statement = f"SELECT count(*) FROM {names.ledger_sql} WHERE place {comparison} :place"
        count: int = only(self.execute(statement, {"place": names.table}))
        return count


def _id_problem(names: TableNames, columns: Mapping[str, Column]) -> str | None:
    for name in names.id_columns:
        if name in columns and columns[name].type not in _ID_TYPES:
            return f"{name} is {columns[name].type}, and an id is a whole number, text or a UUID"
    return None


def _hidden(url: str, error: psycopg.Error) -> str:
    """The driver's message, without the URL and its secrets."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    password = re.search(r"://[^:@/]*:([^@/]+)@", url)
    return text.replace(url, redacted(url)).replace(password[1] if password else "\0", "***")
