"""Ownership of a lease as a part of the caller's own transaction, in the database in which the lease lies.

Promises: a statement with the condition changes nothing after the lease was lost, released or broken. A transaction in
which the condition was true commits before another caller can acquire the lease, because both are in one database, and
its transactions keep them together: SQLite has one writer at a time, and on Postgres the predicate locks the lease's
row until the transaction ends. No clock is involved and no fence column is needed. Does not promise anything for
data in another database: that is what guards are for.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from holdfast.errors import BadInput, LeaseLost, Misconfigured
from holdfast.types import KeyOwnership, Ownership

if TYPE_CHECKING:
    import sqlite3  # at run time only where a connection is used: other engines do without it

    import psycopg

    Connection: TypeAlias = sqlite3.Connection | psycopg.Connection[Any]

C = TypeVar("C", bound="Connection")


class Condition:
    """A predicate for a `WHERE` clause. `str()` is its text, `parameters` its values by name.

    lease.condition() is cheap; make a new one for each transaction.
    """

    __slots__ = ("_lost", "_ownership")

    def __init__(self, ownership: Ownership, lost: LeaseLost) -> None:
        self._ownership = ownership
        self._lost = lost

    @property
    def sql(self) -> str:
        """The predicate, with named places: `:holdfast_key` on SQLite, `%(holdfast_key)s` on Postgres."""
        return self._ownership.sql

    @property
    def parameters(self) -> Mapping[str, str | int]:
        """The values of the places. None of them is a secret."""
        return dict(self._ownership.parameters)

    @property
    def compares(self) -> list[dict[str, str]]:
        """Comparisons for a transaction of etcd; see `KeyCondition`."""
        raise Misconfigured(f"the lease lies in a SQL database ({self._ownership.database}): use `sql`")

    def holds(self, connection: Connection) -> bool:
        """Whether it is true now, for this connection: inside its transaction, if it has one open."""
        return _session(connection, self._ownership).evaluate(f"SELECT {self.sql}", self._ownership.parameters)

    def ensure(self, connection: Connection) -> None:
        """Return if the lease is ours in this connection's open transaction; raise `LeaseLost` otherwise."""
        session = _session(connection, self._ownership)
        if not session.is_open():
            raise BadInput(
                "connection",
                "has no transaction open",
                f"{session.begin} first, or use transaction(); else it proves nothing",
            )
        if not self.holds(connection):
            raise self._lost

    @contextmanager
    def transaction(self, connection: C) -> Iterator[C]:
        """A transaction that exists only while the lease is ours: begun, checked, committed, or rolled back."""
        session = _session(connection, self._ownership)
        if session.is_open():
            raise BadInput("connection", "has a transaction open", "commit it first, or use ensure() inside it")
        session.run(session.begin)
        try:
            if not self.holds(connection):
                raise self._lost
            yield connection
            session.run("COMMIT")
        finally:
            if session.is_open():
                session.run("ROLLBACK")

    def __str__(self) -> str:
        return self.sql

    def __repr__(self) -> str:
        values = self._ownership.parameters
        return f"<Condition {values['holdfast_key']} fence={values['holdfast_at']}>"


class KeyCondition(Condition):
    """Comparisons for a transaction of etcd: add them to your own, and it fails once the lease has gone.

    `compares` is for the JSON gateway. Other clients compare that the key `key` has the value `value`, or that it was
    created at the revision `revision`. Each of the two is enough, and none is a secret.
    """

    __slots__ = ("_stored",)

    def __init__(self, stored: KeyOwnership, name: str, fence: int, lost: LeaseLost) -> None:
        super().__init__(Ownership("", {"holdfast_key": name, "holdfast_at": fence}, "etcd"), lost)
        self._stored = stored

    @property
    def sql(self) -> str:
        """Refused: the lease does not lie in a SQL database."""
        raise Misconfigured(
            "the lease lies in etcd: use `compares` in a transaction there, or give the fence to a guard"
        )

    @property
    def compares(self) -> list[dict[str, str]]:
        """The comparisons, for `compare` of `/v3/kv/txn`."""
        key, value = (b64encode(each).decode() for each in (self.key, self.value))
        return [{"key": key, "target": "VALUE", "result": "EQUAL", "value": value}]

    @property
    def key(self) -> bytes:
        """The key of the lease."""
        return self._stored.key

    @property
    def value(self) -> bytes:
        """Its value while the lease is ours."""
        return self._stored.value

    @property
    def revision(self) -> int:
        """The revision that created the key."""
        return self._stored.revision

    def __str__(self) -> str:
        return f"create({self.key.decode()}) = {self.revision}"


class _SqliteSession:
    """A connection of a user to SQLite."""

    begin = "BEGIN IMMEDIATE"

    def __init__(self, connection: sqlite3.Connection, ownership: Ownership) -> None:
        self._connection = connection
        self._ownership = ownership

    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._connection.in_transaction

    def run(self, command: str) -> None:
        """Begin or end a transaction."""
        self._connection.execute(command)

    def evaluate(self, statement: str, parameters: Mapping[str, str | int]) -> bool:
        """The one value that the statement returns."""
        import sqlite3

        cursor = self._connection.cursor()
        cursor.row_factory = None
        try:
            ((true,),) = cursor.execute(statement, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                raise self._elsewhere() from error
            raise
        finally:
            cursor.close()
        return bool(true)

    def _elsewhere(self) -> Misconfigured:
        rows = self._connection.execute("PRAGMA database_list").fetchall()
        opened = [Path(row[2]).name or ":memory:" for row in rows]
        return Misconfigured(
            f"the lease lies in {self._ownership.database}, which this connection ({', '.join(opened)}) does not have "
            "open; keep data and leases in one file, or ATTACH it and name the schema: lease.condition(schema=...)"
        )


class _PostgresSession:
    """A connection of a user to Postgres, through psycopg."""

    begin = "BEGIN"

    def __init__(self, connection: psycopg.Connection[Any], ownership: Ownership) -> None:
        self._connection = connection
        self._ownership = ownership

    def is_open(self) -> bool:
        """Whether a transaction is open. Without autocommit, psycopg opens one with the first statement."""
        from psycopg.pq import TransactionStatus

        return self._connection.info.transaction_status != TransactionStatus.IDLE

    def run(self, command: str) -> None:
        """Begin or end a transaction."""
        if command == "COMMIT":
            self._connection.commit()
        elif command == "ROLLBACK":
            self._connection.rollback()
        elif self._connection.autocommit:
            self._connection.execute(command.encode())

    def evaluate(self, statement: str, parameters: Mapping[str, str | int]) -> bool:
        """The one value that the statement returns."""
        from psycopg import errors
        from psycopg.rows import tuple_row

        try:
            with self._connection.cursor(row_factory=tuple_row) as cursor:
                found = cursor.execute(statement.encode(), parameters).fetchone()
        except (errors.UndefinedTable, errors.InvalidSchemaName) as error:
            raise Misconfigured(
                f"the lease lies in {self._ownership.database}, and this connection is to another database; "
                "keep data and leases in one database"
            ) from error
        return bool(found and found[0])


def _session(connection: object, ownership: Ownership) -> _SqliteSession | _PostgresSession:
    if ownership.engine == "postgres":
        fix = "give the psycopg.Connection; elsewhere, also with AsyncConnection, use `sql` and `parameters`"
        import psycopg

        if isinstance(connection, psycopg.Connection):
            return _PostgresSession(connection, ownership)
    else:
        import sqlite3

        fix = "give the sqlite3.Connection; elsewhere use `sql` and `parameters`"
        if isinstance(connection, sqlite3.Connection):
            return _SqliteSession(connection, ownership)
    raise BadInput("connection", f"{type(connection).__name__} is not a connection", fix)
